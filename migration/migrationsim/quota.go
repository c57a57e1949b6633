// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/migration/placement"
)

// quotas are the ResourceQuotas by namespace, with their usage.
type quotas map[string][]*corev1.ResourceQuota

func newQuotas(all []corev1.ResourceQuota) quotas {
	out := quotas{}
	for i := range all {
		q := all[i].DeepCopy()
		if q.Status.Used == nil {
			q.Status.Used = corev1.ResourceList{}
		}
		out[q.Namespace] = append(out[q.Namespace], q)
	}
	return out
}

// charge counts a created Pod.
func (q quotas) charge(p *corev1.Pod) {
	q.each(p, func(used corev1.ResourceList, s placement.Shortage) {
		sum := used[s.Resource]
		sum.Add(s.Needed)
		used[s.Resource] = sum
	})
}

// refund stops counting a Pod that is gone.
func (q quotas) refund(p *corev1.Pod) {
	q.each(p, func(used corev1.ResourceList, s placement.Shortage) {
		rest := used[s.Resource]
		if rest.Sub(s.Needed); rest.Sign() < 0 {
			rest.Set(0)
		}
		used[s.Resource] = rest
	})
}

// each calls do for every quota with what the Pod takes of it: the shortage of a quota of nothing
// at all.
func (q quotas) each(p *corev1.Pod, do func(used corev1.ResourceList, s placement.Shortage)) {
	for _, have := range q[p.Namespace] {
		nothing := &corev1.ResourceQuota{ObjectMeta: have.ObjectMeta, Spec: have.Spec}
		nothing.Status.Hard = corev1.ResourceList{}
		for name, limit := range have.Status.Hard {
			limit.Set(0)
			nothing.Status.Hard[name] = limit
		}
		for _, s := range placement.CheckQuota(p, []*corev1.ResourceQuota{nothing}) {
			do(have.Status.Used, s)
		}
	}
}
