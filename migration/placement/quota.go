// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"
)

// Shortage is a resource with too little left in a ResourceQuota.
type Shortage struct {
	// Quota is the name of the ResourceQuota, Resource the limited resource.
	Quota    string
	Resource corev1.ResourceName
	// Needed is what the Pod takes, Used what others take of Limit.
	Needed, Used, Limit resource.Quantity
}

// QuotaError means that ResourceQuotas, as far as they are known, have no room for the target
// Pod; it is an [ErrQuota].
type QuotaError struct {
	// Shortages are sorted by quota, then by resource.
	Shortages []Shortage
}

// Error returns the message with all numbers.
func (e *QuotaError) Error() string {
	var parts []string
	for _, s := range e.Shortages {
		parts = append(parts, fmt.Sprintf("%s: needs %s, %s of %s are used in ResourceQuota %s",
			s.Resource, s.Needed.String(), s.Used.String(), s.Limit.String(), s.Quota))
	}
	return "the target Pod exceeds the quota: " + strings.Join(parts, "; ")
}

// Text returns the message without the numbers that change with other workloads.
func (e *QuotaError) Text() string {
	var parts []string
	for _, s := range e.Shortages {
		parts = append(parts, fmt.Sprintf("%s of %s out of %s in ResourceQuota %s", s.Needed.String(), s.Resource, s.Limit.String(), s.Quota))
	}
	return "the target Pod needs " + strings.Join(parts, "; ") + ", which is not available (raise the quota or free resources)"
}

// Unwrap returns ErrQuota.
func (e *QuotaError) Unwrap() error { return ErrQuota }

// CheckQuota returns the resources of which the ResourceQuotas have too little left for the
// Pod. It is pure. It skips quotas with scopes, and what the API server adds to a Pod, above
// all defaults of a LimitRange: the API server has the last word.
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

// charged returns what a quota counts for the Pod, under all names a quota may use.
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

// ErrQuota means that a ResourceQuota rejected the target Pod, or the claim that it needs.
var ErrQuota = errors.New("placement: a ResourceQuota rejected an object of the target")
