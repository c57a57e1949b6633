// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"
)

// Shortage is a resource of which a ResourceQuota has too little left.
type Shortage struct {
	// Quota is the name of the ResourceQuota, Resource what it limits.
	Quota    string
	Resource corev1.ResourceName
	// Needed is what the Pod takes, Used what others take of Limit.
	Needed, Used, Limit resource.Quantity
}

// QuotaError means that ResourceQuotas have no room for the target Pod, as far as they
// are known; it is an [ErrQuota].
type QuotaError struct {
	// Shortages are by quota, then by resource.
	Shortages []Shortage
}

// Error tells all numbers.
func (e *QuotaError) Error() string {
	var parts []string
	for _, s := range e.Shortages {
		parts = append(parts, fmt.Sprintf("%s: needs %s, %s of %s are used in ResourceQuota %s",
			s.Resource, s.Needed.String(), s.Used.String(), s.Limit.String(), s.Quota))
	}
	return "the target Pod does not fit into the quota: " + strings.Join(parts, "; ")
}

// Text tells what stays true while others come and go.
func (e *QuotaError) Text() string {
	var parts []string
	for _, s := range e.Shortages {
		parts = append(parts, fmt.Sprintf("%s of %s out of %s in ResourceQuota %s", s.Needed.String(), s.Resource, s.Limit.String(), s.Quota))
	}
	return "the target Pod needs " + strings.Join(parts, "; ") + ", and less is left (the quota must be raised, or others must end)"
}

// Unwrap makes the error an ErrQuota.
func (e *QuotaError) Unwrap() error { return ErrQuota }

// CheckQuota returns of what the ResourceQuotas have too little left for the Pod. It is
// pure. Quotas with scopes are passed over, and so is what the API server adds to a Pod,
// defaults of a LimitRange above all: its refusal remains the truth.
func CheckQuota(pod *corev1.Pod, quotas []*corev1.ResourceQuota) []Shortage {
	var out []Shortage
	var needed corev1.ResourceList
	for _, q := range quotas {
		if len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil {
			continue
		}
		if needed == nil {
			needed = charged(pod)
		}
		for name, limit := range q.Status.Hard {
			need, asked := needed[name]
			if !asked || need.IsZero() {
				continue
			}
			used := q.Status.Used[name]
			if sum := add2(used, need); sum.Cmp(limit) > 0 {
				out = append(out, Shortage{Quota: q.Name, Resource: name, Needed: need, Used: used, Limit: limit})
			}
		}
	}
	slices.SortFunc(out, func(a, b Shortage) int {
		return cmp.Or(cmp.Compare(a.Quota, b.Quota), cmp.Compare(a.Resource, b.Resource))
	})
	return out
}

func add2(a, b resource.Quantity) resource.Quantity {
	sum := a.DeepCopy()
	sum.Add(b)
	return sum
}

// charged is what a quota counts for the Pod, under all names a quota may use.
func charged(pod *corev1.Pod) corev1.ResourceList {
	one := *resource.NewQuantity(1, resource.DecimalSI)
	out := corev1.ResourceList{corev1.ResourcePods: one, "count/pods": one}
	for name, q := range podresource.PodRequests(pod, podresource.PodResourcesOptions{}) {
		out[corev1.DefaultResourceRequestsPrefix+name] = q
		if plain(name) {
			out[name] = q
		}
	}
	for name, q := range podresource.PodLimits(pod, podresource.PodResourcesOptions{}) {
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
			out["limits."+name] = q
		}
	}
	return out
}

// plain reports whether a quota may name a request without its prefix.
func plain(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage ||
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}
