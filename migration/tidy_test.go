// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"slices"
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
)

// ended is a world whose migration has ended so and is not tidied up.
func ended(t *testing.T, how v1.VirtualMachineInstanceMigrationPhase, l handoff.Lease, node string) *world {
	w := newWorld(t)
	w.Migration.Finalizers = []string{v1.VirtualMachineInstanceMigrationFinalizer}
	w.Migration.Labels = map[string]string{v1.MigrationSelectorLabel: "guest"}
	w.Migration.Status.Phase = how
	moved := how == v1.MigrationSucceeded
	w.Migration.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
		MigrationUID: ourUID, SourcePod: "src", SourceNode: sourceNode, TargetNode: targetNode, TargetPod: "dst", Completed: moved,
	}
	w.Pods["dst"] = w.NewPod("dst", targetNode, ourUID)
	w.VMI.Status.NodeName = node
	w.Put(l)
	return w
}

func deletes(p migration.Plan, pod string) bool {
	return slices.ContainsFunc(p.Actions, func(a migration.Action) bool { return a.Verb == migration.DeletePod && a.Pod.Name == pod })
}

// TestTidyUp_SourcePodStaysWhileItsNodeMayRunTheGuest: the VMI has moved and is on its way
// back, or its lease and its status do not name one node.
func TestTidyUp_SourcePodStaysWhileItsNodeMayRunTheGuest(t *testing.T) {
	for name, tt := range map[string]struct {
		lease handoff.Lease
		goes  bool
	}{
		"it runs at the target":  {handoff.Lease{State: handoff.Owned, Epoch: 5, Holder: targetNode}, true},
		"on its way back":        {handoff.Lease{State: handoff.Moving, Epoch: 6, Holder: targetNode, Target: sourceNode, Tag: "other"}, false},
		"the lease names source": {handoff.Lease{State: handoff.Owned, Epoch: 5, Holder: sourceNode}, false},
		"the target went silent": {handoff.Lease{State: handoff.Fenced, Epoch: 6}, false},
	} {
		w := ended(t, v1.MigrationSucceeded, tt.lease, targetNode)
		w.VMI.Status.NodeName = targetNode // whatever the lease says
		if p := migration.Decide(w.Snapshot(), w.Now); deletes(p, "src") != tt.goes {
			t.Errorf("%s: the source Pod is deleted: %t, want %t", name, !tt.goes, tt.goes)
		}
	}
}

// TestTidyUp_FailedMigrationRollsBackState: before its target Pod and its
// finalizer go.
func TestTidyUp_FailedMigrationRollsBackState(t *testing.T) {
	for _, s := range []handoff.State{handoff.Preparing, handoff.Prepared} {
		w := ended(t, v1.MigrationFailed, handoff.Lease{State: s, Epoch: 2, Holder: sourceNode, Target: targetNode, Tag: ourUID}, sourceNode)
		p := migration.Decide(w.Snapshot(), w.Now)
		if p.Release || deletes(p, "dst") {
			t.Errorf("%s: released is %t, actions %v", s, p.Release, p.Actions)
		}
		i := slices.IndexFunc(p.Actions, func(a migration.Action) bool { return a.Verb == migration.ChangeVMI })
		if i < 0 || p.Actions[i].Change.Lease == nil || p.Actions[i].Change.Lease.State != handoff.Owned {
			t.Errorf("%s: the migration is not canceled: %v", s, p.Actions)
		}
	}
}
