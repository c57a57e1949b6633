// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

// Older returns an unfinished migration of the same guest that this one has to wait for,
// or nil. One that acts goes before one that does not, then the older one goes first, but
// for one case: what is held back by failures counts as made when that ends. So a migration
// that a user asks for meanwhile overtakes it.
//
// The migrations of a guest are in one order, whoever asks, and whenever: what decides, their
// age and the failures before them, does not change while they wait. Should a cache be so late
// that an overtaken one starts all the same, then both own a target Pod and the guest's lease
// takes one move at a time.
func (s Snapshot) Older() *v1.VirtualMachineInstanceMigration {
	var first *v1.VirtualMachineInstanceMigration
	until, _ := s.Config.Backoff.Until(s.Others)
	own := contender{acts: s.acting(), m: s.Migration, until: until}
	for _, o := range s.Others {
		its := contender{acts: started(o) || slices.Contains(s.Targets, o.UID), m: o, until: until}
		if !o.IsFinal() && its.before(own) && (first == nil || created(o, first) < 0) {
			first = o
		}
	}
	return first
}

// contender is all that decides when it is a migration's turn.
type contender struct {
	acts bool
	m    *v1.VirtualMachineInstanceMigration
	// until is when the back-off of the guest ends.
	until time.Time
}

func (t contender) before(o contender) bool {
	if t.acts != o.acts {
		return t.acts
	}
	return cmp.Or(t.from().Compare(o.from()), created(t.m, o.m)) < 0
}

// from is since when it can be the migration's turn.
func (t contender) from() time.Time {
	at := t.m.CreationTimestamp.Time
	if !t.acts && backsOff(t.m) && at.Before(t.until) {
		return t.until
	}
	return at
}

// acting reports whether the migration has begun to do something.
func (s Snapshot) acting() bool { return s.TargetPod != nil || started(s.Migration) }

// started tells of a migration between clusters that its half is written: the guest's
// migration state is then its own, also while it is queued.
func started(m *v1.VirtualMachineInstanceMigration) bool {
	return m.Status.Phase != v1.MigrationPhaseUnset && (m.Status.Phase != v1.MigrationPending || m.IsDecentralized())
}

// checkEvacuation ends an evacuation that has come to nothing: its guest has left the
// node in the meantime.
func checkEvacuation(s Snapshot) Finding {
	node := s.Migration.Annotations[v1.EvacuationMigrationAnnotation]
	if node == "" || s.VMI == nil || s.State() != nil || s.VMI.Status.NodeName == "" || s.VMI.Status.NodeName == node {
		return Finding{}
	}
	return never(ReasonGuestAway, fmt.Sprintf("node %q is to be evacuated, and the guest is on node %q already", node, s.VMI.Status.NodeName), "")
}

// checkOrder lets the migrations of a guest act one after another.
func checkOrder(s Snapshot) Finding {
	if o := s.Older(); o != nil {
		return waitFor(o, "goes first")
	}
	if o := s.owner(); o != nil {
		return waitFor(o, "is running")
	}
	return Finding{}
}

func waitFor(o *v1.VirtualMachineInstanceMigration, how string) Finding {
	f := later(ReasonWaitingForMigration, fmt.Sprintf("migration %q of the same guest %s", o.Name, how), "it must end, or be deleted")
	f.Object = "VirtualMachineInstanceMigration " + o.Name
	return f
}

// TargetOwners returns the UIDs of the migrations, except one, whose target Pods are among
// the Pods of a guest and have not ended.
func TargetOwners(pods []*corev1.Pod, except types.UID) []types.UID {
	var out []types.UID
	for _, p := range pods {
		job := types.UID(p.Labels[v1.MigrationJobLabel])
		if job != "" && job != except && p.Labels[v1.AppLabel] == launcherApp && !terminal(p) && !slices.Contains(out, job) {
			out = append(out, job)
		}
	}
	return out
}
