// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
)

// statusIsThere has the status of objects patched as a part of them, which is as guarded.
func statusIsThere(ctx context.Context, c client.Client, _ string, o client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
	return c.Patch(ctx, o, p)
}

// stored is a scene with a migration and its VMI, as they were read.
func stored(t *testing.T, faults interceptor.Funcs, more ...client.Object) (*scene, *gathered) {
	t.Helper()
	m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "move", UID: "move-uid", Finalizers: []string{v1.VirtualMachineInstanceMigrationFinalizer},
	}}
	faults.SubResourcePatch = statusIsThere
	s := newScene(t, faults, append(more, m, leaving("web", "node-1"))...)
	s.mapped(t)
	g := &gathered{key: types.NamespacedName{Namespace: "ns", Name: "move"}}
	g.Migration, g.VMI = &v1.VirtualMachineInstanceMigration{}, &v1.VirtualMachineInstance{}
	if err := errors.Join(s.Get(t.Context(), g.key, g.Migration), s.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"}, g.VMI)); err != nil {
		t.Fatal(err)
	}
	g.owner.Key, g.owner.UID = g.key, g.Migration.UID
	return s, g
}

// interfere changes an object after it was read, as another client.
func (s *scene) interfere(t *testing.T, o client.Object, edit func()) {
	t.Helper()
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		t.Fatal(err)
	}
	edit()
	if err := s.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func TestStore_StatusOfWhatHasChangedIsNotWritten(t *testing.T) {
	s, g := stored(t, interceptor.Funcs{})
	m := g.Migration.DeepCopy()
	s.interfere(t, m, func() { m.Status.Phase = v1.MigrationRunning })
	plan := migration.Plan{Status: v1.VirtualMachineInstanceMigrationStatus{Phase: v1.MigrationPending}}
	if err := (storer{s.r}).store(t.Context(), g, plan); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	if err := s.Get(t.Context(), g.key, m); err != nil || m.Status.Phase != v1.MigrationRunning {
		t.Errorf("phase %s, %v: written over", m.Status.Phase, err)
	}
}

func TestStore_FinalizerStaysWhileActionsFail(t *testing.T) {
	for name, failures := range map[string]map[migration.Verb]error{
		"none": nil, "one": {migration.DeletePod: errors.New("no")},
	} {
		t.Run(name, func(t *testing.T) {
			s, g := stored(t, interceptor.Funcs{})
			g.Failures = failures
			if err := (storer{s.r}).store(t.Context(), g, migration.Plan{Release: true}); err != nil {
				t.Fatal(err)
			}
			m := &v1.VirtualMachineInstanceMigration{}
			if err := s.Get(t.Context(), g.key, m); err != nil {
				t.Fatal(err)
			}
			if kept := len(m.Finalizers) > 0; kept != (len(failures) > 0) {
				t.Errorf("the finalizer is kept: %v", kept)
			}
		})
	}
}

// The VMI is written only if all that the decision depended on is unchanged.
func TestChangeVMI_GuestThatHasChangedIsNotWritten(t *testing.T) {
	for name, edit := range map[string]func(*v1.VirtualMachineInstance){
		"its phase": func(g *v1.VirtualMachineInstance) { g.Status.Phase = v1.Failed },
		"its node":  func(g *v1.VirtualMachineInstance) { g.Status.NodeName = "node-2" },
		"its lease": func(g *v1.VirtualMachineInstance) { g.Annotations = map[string]string{handoff.Annotation: "{}"} },
		"its label": func(g *v1.VirtualMachineInstance) { g.Labels = map[string]string{v1.NodeNameLabel: "node-2"} },
		"its move": func(g *v1.VirtualMachineInstance) {
			g.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "another"}
		},
		"nothing that counts": func(g *v1.VirtualMachineInstance) { g.Status.Reason = "x" },
	} {
		t.Run(name, func(t *testing.T) {
			s, g := stored(t, interceptor.Funcs{})
			vmi := g.VMI.DeepCopy()
			s.interfere(t, vmi, func() { edit(vmi) })
			err := actor{s.r}.changeVMI(t.Context(), g, migration.Action{Change: &migration.VMIChange{Labels: map[string]string{"moves": "yes"}}})
			if refused := err != nil; refused == (name == "nothing that counts") {
				t.Errorf("refused: %v", err)
			}
		})
	}
}

// A handoff depends on the volumes of the VMI as well; other changes of it do not.
func TestChangeVMI_HandoffAwaitsVolumes(t *testing.T) {
	hotplug := func(g *v1.VirtualMachineInstance) { g.Spec.Volumes = append(g.Spec.Volumes, v1.Volume{Name: "plug"}) }
	attach := func(g *v1.VirtualMachineInstance) { g.Status.VolumeStatus[0].Phase = v1.VolumeReady }
	for name, r := range map[string]struct {
		edit    func(*v1.VirtualMachineInstance)
		change  migration.VMIChange
		refused bool
	}{
		"a volume is hotplugged":             {hotplug, migration.VMIChange{TargetNode: "node-2"}, true},
		"a volume is attached":               {attach, migration.VMIChange{TargetNode: "node-2"}, true},
		"neither":                            {func(g *v1.VirtualMachineInstance) { g.Status.Reason = "x" }, migration.VMIChange{TargetNode: "node-2"}, false},
		"a volume is hotplugged, no handoff": {hotplug, migration.VMIChange{Labels: map[string]string{"moves": "yes"}}, false},
		"a volume is attached, no handoff":   {attach, migration.VMIChange{Labels: map[string]string{"moves": "yes"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, g := stored(t, interceptor.Funcs{})
			s.interfere(t, g.VMI, func() {
				g.VMI.Spec.Volumes = []v1.Volume{{Name: "disk"}}
				g.VMI.Status.VolumeStatus = []v1.VolumeStatus{{Name: "disk", Phase: v1.VolumeBound}}
			})
			vmi := g.VMI.DeepCopy()
			s.interfere(t, vmi, func() { r.edit(vmi) })
			if err := (actor{s.r}).changeVMI(t.Context(), g, migration.Action{Change: &r.change}); (err != nil) != r.refused {
				t.Errorf("refused: %v", err)
			}
		})
	}
}

// A Pod that has the name by now is another one, and that the old one is to go is awaited.
func TestDeletePod_NamesOneIncarnationAndIsAwaited(t *testing.T) {
	var guard *types.UID
	s, g := stored(t, interceptor.Funcs{Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, opts ...client.DeleteOption) error {
		if p := (&client.DeleteOptions{}).ApplyOptions(opts).Preconditions; p != nil {
			guard = p.UID
		}
		return nil
	}}, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "target", UID: "target-uid"}})
	err := actor{s.r}.deletePod(t.Context(), g, migration.Action{Verb: migration.DeletePod, Pod: &migration.PodRef{Name: "target", UID: "target-uid"}})
	if err != nil || guard == nil || *guard != "target-uid" {
		t.Errorf("error %v, guarded by %v; want the UID", err, guard)
	}
	if pending := s.r.gate.Tracker().Pending(g.key); len(pending) != 1 || pending[0].Needs != "target-uid" {
		t.Errorf("pending are %v, want the deletion", pending)
	}
}
