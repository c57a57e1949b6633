// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// quotas are the ResourceQuotas by namespace, with what is used of them.
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

// charge counts a Pod that was made.
func (q quotas) charge(p *corev1.Pod) {
	q.each(p, func(used corev1.ResourceList, s migration.Shortage) {
		sum := used[s.Resource]
		sum.Add(s.Needed)
		used[s.Resource] = sum
	})
}

// refund counts a Pod no longer that is gone.
func (q quotas) refund(p *corev1.Pod) {
	q.each(p, func(used corev1.ResourceList, s migration.Shortage) {
		rest := used[s.Resource]
		if rest.Sub(s.Needed); rest.Sign() < 0 {
			rest.Set(0)
		}
		used[s.Resource] = rest
	})
}

// each tells for every quota what the Pod takes of it: that is what a quota that is of nothing
// at all has too little of.
func (q quotas) each(p *corev1.Pod, do func(used corev1.ResourceList, s migration.Shortage)) {
	for _, have := range q[p.Namespace] {
		nothing := &corev1.ResourceQuota{ObjectMeta: have.ObjectMeta, Spec: have.Spec}
		nothing.Status.Hard = corev1.ResourceList{}
		for name, limit := range have.Status.Hard {
			limit.Set(0)
			nothing.Status.Hard[name] = limit
		}
		for _, s := range migration.CheckQuota(p, []*corev1.ResourceQuota{nothing}) {
			do(have.Status.Used, s)
		}
	}
}
