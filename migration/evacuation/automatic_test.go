// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
)

func TestAutomaticNames(t *testing.T) {
	nameOf := func(edits ...func(*Candidate)) string {
		g := guestWith(edits...)
		return nextName(g.VMI, g.Migrations)
	}
	first := nameOf()
	for name, tc := range map[string]struct {
		edits []func(*Candidate)
		same  bool
	}{
		"one that is not finished":  {edits: []func(*Candidate){has("m", v1.MigrationPending, 0)}, same: true},
		"one that is":               {edits: []func(*Candidate){has("m", v1.MigrationFailed, 0)}},
		"another guest of the name": {edits: []func(*Candidate){is(func(vmi *v1.VirtualMachineInstance) { vmi.UID = "other" })}},
	} {
		if got := nameOf(tc.edits...); (got == first) != tc.same {
			t.Errorf("%s: %s, without: %s", name, got, first)
		}
	}
	for _, guest := range []string{"a", strings.Repeat("a", 63), strings.Repeat("a", 44) + ".b", strings.Repeat("a.", 100)} {
		if got := nameOf(named(guest)); len(validation.IsDNS1123Subdomain(got)) > 0 || len(got) > validation.LabelValueMaxLength {
			t.Errorf("%q is no name: %v", got, validation.IsDNS1123Subdomain(got))
		}
	}
}

// TestAutomaticNames_SameSecond fails attempt after attempt in one second, in which their ages do not order them.
func TestAutomaticNames_SameSecond(t *testing.T) {
	for name, numbered := range map[string]bool{"stored": true, "in a plan, without UIDs": false} {
		t.Run(name, func(t *testing.T) {
			g, seen := guestWith(), map[string]bool{}
			for range 20 {
				name := nextName(g.VMI, g.Migrations)
				if seen[name] {
					t.Fatalf("%s is made again after %d", name, len(seen))
				}
				seen[name] = true
				has(name, v1.MigrationFailed, 0)(&g)
				if !numbered {
					g.Migrations[len(g.Migrations)-1].UID = ""
				}
			}
		})
	}
}

func TestCircumstances(t *testing.T) {
	node := func(edits ...func(*corev1.Node)) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}}}
		for _, edit := range edits {
			edit(&n)
		}
		return n
	}
	taint := func(at time.Time) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule, TimeAdded: &metav1.Time{Time: at}}}
		}
	}
	kv := &v1.KubeVirt{}
	configured := &v1.KubeVirt{Spec: v1.KubeVirtSpec{Configuration: v1.KubeVirtConfiguration{MachineType: "odd"}}}
	base := circumstances(guestWith().VMI, Fleet([]corev1.Node{node()}, kv))
	for name, tc := range map[string]struct {
		guest []func(*Candidate)
		nodes []corev1.Node
		kv    *v1.KubeVirt
		same  bool
	}{
		"nothing":           {nodes: []corev1.Node{node()}, same: true},
		"a heartbeat":       {nodes: []corev1.Node{node(func(n *corev1.Node) { n.Annotations = map[string]string{"beat": "1"}; n.ResourceVersion = "2" })}, same: true},
		"a mark":            {nodes: []corev1.Node{node()}, guest: []func(*Candidate){marked(sourceNode)}, same: true},
		"a node":            {nodes: []corev1.Node{node(), node(func(n *corev1.Node) { n.Name = "m" })}},
		"a label":           {nodes: []corev1.Node{node(func(n *corev1.Node) { n.Labels["a"] = "c" })}},
		"a taint":           {nodes: []corev1.Node{node(taint(start))}},
		"a cordon":          {nodes: []corev1.Node{node(func(n *corev1.Node) { n.Spec.Unschedulable = true })}},
		"a configuration":   {nodes: []corev1.Node{node()}, kv: configured},
		"the guest's word":  {nodes: []corev1.Node{node()}, guest: []func(*Candidate){notMigratable}},
		"the guest's place": {nodes: []corev1.Node{node()}, guest: []func(*Candidate){runsOn("other")}},
		"the guest's spec":  {nodes: []corev1.Node{node()}, guest: []func(*Candidate){is(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.NodeSelector = map[string]string{"a": "b"} })}},
		"a plugged volume": {nodes: []corev1.Node{node()}, guest: []func(*Candidate){is(func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "v", HotplugVolume: &v1.HotplugVolumeStatus{}}}
		})}},
	} {
		if tc.kv == nil {
			tc.kv = kv
		}
		if got := circumstances(guestWith(tc.guest...).VMI, Fleet(tc.nodes, tc.kv)); (got == base) != tc.same {
			t.Errorf("%s changes: %t", name, got != base)
		}
	}
	m := node(func(n *corev1.Node) { n.Name = "m" })
	if Fleet([]corev1.Node{node(taint(start)), m}, nil) != Fleet([]corev1.Node{m, node(taint(start.Add(time.Hour)))}, nil) {
		t.Error("the order of nodes, or the time of a taint, counts")
	}
}
