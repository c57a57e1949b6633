// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// kubelet starts and stops Pods.
type kubelet struct{ *Sim }

// start runs the kubelet for the Pod.
func (s kubelet) start(p *placing) {
	s.after(s.o.Latency.PodStart, func() {
		if p.pod.DeletionTimestamp == nil {
			p.pod.Status.Phase = corev1.PodRunning
			controller(s).changed(p.guest)
		}
	})
}

// deletePod deletes a Pod of the VMI, which is gone a little later.
func (s kubelet) deletePod(g *simulatedGuest, name string) {
	i := slices.IndexFunc(g.pods, func(p *corev1.Pod) bool { return p.Name == name })
	if i < 0 || g.pods[i].DeletionTimestamp != nil {
		return
	}
	p, now := g.pods[i], s.clock.stamp()
	p.DeletionTimestamp = &now
	s.after(s.o.Latency.PodStop, func() { s.gone(g, p) })
}

// gone removes a stopped Pod of the VMI.
func (s kubelet) gone(g *simulatedGuest, p *corev1.Pod) {
	g.pods = slices.DeleteFunc(g.pods, func(o *corev1.Pod) bool { return o == p })
	for _, beside := range migration.Attachments(g.pods, p) {
		s.deletePod(g, beside.Name)
	}
	if p.Spec.NodeName != "" {
		s.usage.Remove(p.Spec.NodeName, p)
	}
	s.quotas.refund(p)
	controller(s).changed(g)
	evacuator(s).reconsider(g, s.clock.now.Add(s.o.Latency.Watch))
	scheduler(s).retryPods()
}
