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

	"github.com/virtloom/virtloom/internal/launcherpod"
)

// Older returns an unfinished migration of the same VMI that this one must wait for, or nil.
// An acting migration goes before one that does not act, then the older one before the newer,
// with one exception: a migration that backs off counts as created when its back-off ends. So
// a user's migration created meanwhile overtakes it.
//
// The migrations of a VMI are totally ordered, for every observer and at any time: what
// decides, their age and the failures before them, does not change while they wait. If a
// stale cache lets an overtaken migration start, both own a target Pod and the VMI's lease
// admits one of them at a time.
func (s Snapshot) Older() *v1.VirtualMachineInstanceMigration {
	var first *v1.VirtualMachineInstanceMigration
	until, _ := s.Config.Backoff.Until(s.Others)
	own := contender{acts: s.acting(), m: s.Migration, until: until}
	for _, o := range s.Others {
		its := contender{acts: started(o) || slices.Contains(s.Targets, o.UID), m: o, until: until}
		if !o.IsFinal() && its.before(own) && (first == nil || CompareCreated(o, first) < 0) {
			first = o
		}
	}
	return first
}

// contender holds all that decides the turn of a migration.
type contender struct {
	acts bool
	m    *v1.VirtualMachineInstanceMigration
	// until is when the back-off of the VMI ends.
	until time.Time
}

func (t contender) before(o contender) bool {
	if t.acts != o.acts {
		return t.acts
	}
	return cmp.Or(t.from().Compare(o.from()), CompareCreated(t.m, o.m)) < 0
}

// from returns since when it can be the migration's turn.
func (t contender) from() time.Time {
	at := t.m.CreationTimestamp.Time
	if !t.acts && backsOff(t.m) && at.Before(t.until) {
		return t.until
	}
	return at
}

// acting reports whether the migration has begun to act.
func (s Snapshot) acting() bool { return s.TargetPod != nil || started(s.Migration) }

// started reports of a migration between clusters whether its half is written: the VMI's
// migration state is then its own, also while it is queued.
func started(m *v1.VirtualMachineInstanceMigration) bool {
	return m.Status.Phase != v1.MigrationPhaseUnset && (m.Status.Phase != v1.MigrationPending || m.IsDecentralized())
}

// checkEvacuation ends an evacuation that has become obsolete: its VMI has left the node
// meanwhile.
func checkEvacuation(s Snapshot, _ time.Time) Finding {
	node := s.Migration.Annotations[v1.EvacuationMigrationAnnotation]
	if node == "" || s.VMI == nil || s.State() != nil || s.VMI.Status.NodeName == "" || s.VMI.Status.NodeName == node {
		return Finding{}
	}
	return never(reasonGuestAway, fmt.Sprintf("the VMI has already left node %q, which is being evacuated, for node %q", node, s.VMI.Status.NodeName), "")
}

// checkOrder serializes the migrations of a VMI.
func checkOrder(s Snapshot, _ time.Time) Finding {
	if o := s.Older(); o != nil {
		return waitFor(o, "goes first")
	}
	if o := s.Owner(); o != nil {
		return waitFor(o, "is running")
	}
	return Finding{}
}

func waitFor(o *v1.VirtualMachineInstanceMigration, how string) Finding {
	f := later(ReasonWaitingForMigration, fmt.Sprintf("migration %q of the same VMI %s", o.Name, how), "it must end, or be deleted")
	f.Object = "VirtualMachineInstanceMigration " + o.Name
	return f
}

// TargetOwners returns the UIDs of the migrations, except one, whose target Pods are among
// the VMI's Pods and have not ended.
func TargetOwners(pods []*corev1.Pod, except types.UID) []types.UID {
	var out []types.UID
	for _, p := range pods {
		job := types.UID(p.Labels[v1.MigrationJobLabel])
		if job != "" && job != except && p.Labels[v1.AppLabel] == launcherpod.LauncherApp && !launcherpod.Terminal(p) && !slices.Contains(out, job) {
			out = append(out, job)
		}
	}
	return out
}
