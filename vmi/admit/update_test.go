// SPDX-License-Identifier: Apache-2.0

package admit_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi/admit"
)

func TestValidateUpdate(t *testing.T) {
	const running = "{metadata: {labels: {kubevirt.io/nodeName: n1}, annotations: {example.com/lease: x}}, status: {phase: Running}}"
	for name, tt := range map[string]struct {
		edit       string
		privileged bool
		want       string
	}{
		"nothing":                      {},
		"a user's labels":              {edit: "{metadata: {labels: {app: web}, annotations: {note: x}, finalizers: [a.b/c]}}"},
		"a user's spec":                {edit: "{spec: {hostname: other}}", want: "spec"},
		"a user's node":                {edit: "{metadata: {labels: {kubevirt.io/nodeName: n2}}}", want: "metadata.labels[kubevirt.io/nodeName]"},
		"a user takes the node away":   {edit: "{metadata: {labels: null}}", want: "metadata.labels[kubevirt.io/nodeName]"},
		"a user's target":              {edit: "{metadata: {labels: {kubevirt.io/migrationTargetNodeName: ''}}}", want: "metadata.labels[kubevirt.io/migrationTargetNodeName]"},
		"a user's lease":               {edit: "{metadata: {annotations: {example.com/lease: y}}}", want: "metadata.annotations[example.com/lease]"},
		"a user's trace":               {edit: "{metadata: {annotations: {virtloom.dev/traceparent: x}}}", want: "metadata.annotations[virtloom.dev/traceparent]"},
		"a user asks for a receiver":   {edit: "{metadata: {annotations: {kubevirt.io/create-migration-target: 'true'}}}", want: "metadata.annotations[kubevirt.io/create-migration-target]"},
		"a user asks to leave":         {edit: "{metadata: {annotations: {kubevirt.io/eviction-source: api}}}", want: "metadata.annotations[kubevirt.io/eviction-source]"},
		"a label of ours":              {edit: "{metadata: {labels: {virtloom.dev/any: x}}}", want: "metadata.labels[virtloom.dev/any]"},
		"a controller's spec":          {edit: "{metadata: {labels: {kubevirt.io/nodeName: n2}}, spec: {hostname: other}}", privileged: true},
		"a controller plugs a claim":   {edit: volumes("{name: a, dataVolume: {name: x, hotpluggable: true}}, {name: b, memoryDump: {claimName: x}}"), privileged: true},
		"a controller plugs something": {edit: volumes("{name: a, containerDisk: {image: x}}, {name: b, dataVolume: {name: x}}"), privileged: true, want: "spec.volumes[0] spec.volumes[1]"},
	} {
		t.Run(name, func(t *testing.T) {
			was := merge(t, plainGuest, running)
			c := admit.Config{ReservedAnnotations: []string{"example.com/lease"}, Request: admit.Request{Privileged: tt.privileged}}
			var fields []string
			errs := admit.ValidateUpdate(parse[v1.VirtualMachineInstance](t, was), parse[v1.VirtualMachineInstance](t, merge(t, was, tt.edit)), c)
			for _, err := range errs {
				complete(t, err)
				fields = append(fields, err.Field)
			}
			if diff := cmp.Diff(strings.Fields(tt.want), fields, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// TestValidateUpdate_Finalizer checks that users keep KubeVirt's finalizer, and may add and remove others.
func TestValidateUpdate_Finalizer(t *testing.T) {
	guest := func(finalizers ...string) *v1.VirtualMachineInstance {
		return &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Finalizers: finalizers}}
	}
	for name, tt := range map[string]struct {
		old, updated []string
		privileged   bool
		refused      bool
	}{
		"removed":              {old: []string{v1.VirtualMachineInstanceFinalizer}, refused: true},
		"of before, removed":   {old: []string{v1.DeprecatedVirtualMachineInstanceFinalizer}, refused: true},
		"removed by a control": {old: []string{v1.VirtualMachineInstanceFinalizer}, privileged: true},
		"another's removed":    {old: []string{"a.b/c", v1.VirtualMachineInstanceFinalizer}, updated: []string{v1.VirtualMachineInstanceFinalizer}},
	} {
		t.Run(name, func(t *testing.T) {
			errs := admit.ValidateUpdate(guest(tt.old...), guest(tt.updated...), admit.Config{Request: admit.Request{Privileged: tt.privileged}})
			if refused := len(errs) > 0; refused != tt.refused || refused && errs[0].Field != "metadata.finalizers" {
				t.Errorf("%v, want refused %t", errs, tt.refused)
			}
		})
	}
}

// TestValidateUpdate_VolumesBeforePhase checks that a controller may add any volume before the VMI has a phase.
func TestValidateUpdate_VolumesBeforePhase(t *testing.T) {
	c := admit.Config{Request: admit.Request{Privileged: true}}
	updated := parse[v1.VirtualMachineInstance](t, merge(t, plainGuest, volumes("{name: a, containerDisk: {image: x}}")))
	if errs := admit.ValidateUpdate(parse[v1.VirtualMachineInstance](t, plainGuest), updated, c); len(errs) > 0 {
		t.Error(errs)
	}
}

func TestDefaultUpdate_KeepsStatus(t *testing.T) {
	old := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: "n1"}}
	for privileged, want := range map[bool]v1.VirtualMachineInstancePhase{false: v1.Running, true: v1.Failed} {
		updated := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Failed}}
		admit.DefaultUpdate(old, updated, admit.Config{Request: admit.Request{Privileged: privileged}})
		if got := updated.Status.Phase; got != want {
			t.Errorf("privileged %t: %s, want %s", privileged, got, want)
		}
	}
}
