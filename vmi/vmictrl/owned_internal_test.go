// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
)

// TestPodsGone_NotByLabels covers Pods whose labels a user has changed.
func TestPodsGone_NotByLabels(t *testing.T) {
	but := func(edit func(*corev1.Pod)) client.Object {
		p := launched("node-a")
		edit(p)
		return p
	}
	for name, tt := range map[string]struct {
		pod  client.Object
		owns bool // controlled by the VMI
		gone bool // no Pod of the VMI is on the node
	}{
		"as it was made":           {but(func(*corev1.Pod) {}), true, false},
		"without its labels":       {but(func(p *corev1.Pod) { p.Labels = nil }), true, false},
		"labelled as another's":    {but(func(p *corev1.Pod) { p.Labels[v1.CreatedByLabel] = "another" }), true, false},
		"finished":                 {but(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), true, true},
		"on another node":          {but(func(p *corev1.Pod) { p.Spec.NodeName = "node-b" }), true, true},
		"a stranger with labels":   {but(func(p *corev1.Pod) { p.OwnerReferences = nil }), false, true},
		"of an earlier object":     {but(func(p *corev1.Pod) { p.OwnerReferences[0].UID = "earlier" }), false, true},
		"of it, not as controller": {but(func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			guest := observed(v1.Running)
			r := observer(t, false, tt.pod, guest)
			g := &gathered{}
			g.VMI = guest
			e, err := nodeGatherer{r}.podsGone(t.Context(), g, "node-a")
			if err != nil || (e != nil) != tt.gone || e != nil && e.Kind != handoff.PodGone {
				t.Errorf("evidence %+v, %v; want some: %t", e, err, tt.gone)
			}
			if err := (gatherer{r}).livePods(t.Context(), g); err != nil || (len(g.Pods) == 1) != tt.owns {
				t.Errorf("%d Pods, %v; want it to be the guest's: %t", len(g.Pods), err, tt.owns)
			}
		})
	}
}
