// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

// Reasons why a guest is, or is not, migrated though nobody asked for it by name.
const (
	// ReasonEvacuating: the guest has to leave its node.
	ReasonEvacuating Reason = "Evacuating"
	// ReasonUpdating: the guest's Pod is older than what the guest or the cluster asks for.
	ReasonUpdating Reason = "UpdatingWorkload"
	// ReasonNotAsked: nothing asks for a migration of the guest, or not any more.
	ReasonNotAsked Reason = "NotAsked"
	// ReasonStrategyNone: the guest's eviction strategy is None, or unset in guest and cluster.
	ReasonStrategyNone Reason = "EvictionStrategyNone"
	// ReasonStrategyExternal: the guest's eviction strategy leaves it to somebody else.
	ReasonStrategyExternal Reason = "EvictionStrategyExternal"
	// ReasonMigrationExists: a migration of the guest is not finished.
	ReasonMigrationExists Reason = "MigrationExists"
	// ReasonActivePods: the guest has more than one Pod that is not finished.
	ReasonActivePods Reason = "SeveralActivePods"
	// ReasonCooldown: the guest was migrated automatically a short time ago.
	ReasonCooldown Reason = "Cooldown"
	// ReasonUnchanged: a migration of the guest failed for a reason that lasts, and nothing that it
	// depends on has changed since.
	ReasonUnchanged Reason = "UnchangedSinceFailure"
	// ReasonCacheBehind: what is known of the guest is older than what was done to it.
	ReasonCacheBehind Reason = "CacheBehind"
	// ReasonNotRunning: the guest does not run.
	ReasonNotRunning Reason = "NotRunning"
)

// staticRetry is when a migration is tried again that failed for a lasting reason, though nothing is
// known to have changed: not all that it depends on is looked at.
const staticRetry = time.Hour

// behindFor bounds how long a guest's object is taken to be older than the end of its last migration.
const behindFor = time.Minute

// Verb says what is to be done about a guest.
type Verb string

// What is done about a guest; the empty Verb is nothing.
const (
	// Create a migration: Standing.Migration.
	Create Verb = "Create"
	// Cancel migrations by deleting them: Standing.Cancel.
	Cancel Verb = "Cancel"
	// EvictPod evicts a Pod: Standing.Pod.
	EvictPod Verb = "Evict"
)

// Guest is what is known of a guest that may be migrated without a user's request. Objects are read
// only.
type Guest struct {
	// VMI is the guest. Required.
	VMI *v1.VirtualMachineInstance
	// Migrations are all of the guest, finished ones too.
	Migrations []*v1.VirtualMachineInstanceMigration
	// Pods are those of the guest.
	Pods []*corev1.Pod
	// Unsettled tells which own writes about the guest the caches do not show yet; empty when they show
	// all of them.
	Unsettled string
}

// Key names the guest.
func (g Guest) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: g.VMI.Namespace, Name: g.VMI.Name}
}

// Standing is what was decided about one guest, and why: also why nothing is done.
type Standing struct {
	// Guest is the guest.
	Guest *v1.VirtualMachineInstance
	// Verb is what to do; empty for nothing.
	Verb Verb
	// Reason and Message say why.
	Reason  Reason
	Message string
	// Migration is the one to create, complete, or the unfinished one that stands in the way.
	Migration *v1.VirtualMachineInstanceMigration
	// Cancel are the migrations to delete, each only in the version it has here.
	Cancel []*v1.VirtualMachineInstanceMigration
	// Pod is the one to evict.
	Pod *corev1.Pod
	// At is when time alone would change the answer; zero means never.
	At time.Time
}

// Soonest returns the first moment at which time alone would change one of the answers; zero if none.
func Soonest(all []Standing) time.Time {
	var at time.Time
	for i := range all {
		if t := all[i].At; !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at
}

// leave is a standing in which nothing is done.
func (g Guest) leave(r Reason, message string) *Standing {
	return &Standing{Guest: g.VMI, Reason: r, Message: message}
}

// until adds the moment at which the answer changes by itself.
func (s *Standing) until(at time.Time) *Standing {
	s.At = at
	return s
}

// unfinished returns the guest's oldest migration that is not finished, or nil.
func (g Guest) unfinished() *v1.VirtualMachineInstanceMigration {
	var open []*v1.VirtualMachineInstanceMigration
	for _, m := range g.Migrations {
		if !m.IsFinal() {
			open = append(open, m)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return slices.MinFunc(open, created)
}

// newest returns the youngest of the guest's migrations that match, or nil.
func (g Guest) newest(match func(*v1.VirtualMachineInstanceMigration) bool) *v1.VirtualMachineInstanceMigration {
	var found *v1.VirtualMachineInstanceMigration
	for _, m := range g.Migrations {
		if match(m) && (found == nil || created(found, m) < 0) {
			found = m
		}
	}
	return found
}

func succeeded(m *v1.VirtualMachineInstanceMigration) bool {
	return m.Status.Phase == v1.MigrationSucceeded
}

// endOf returns when a finished migration ended, as far as it says.
func endOf(m *v1.VirtualMachineInstanceMigration) time.Time {
	for _, t := range m.Status.PhaseTransitionTimestamps {
		if t.Phase == m.Status.Phase {
			return t.PhaseTransitionTimestamp.Time
		}
	}
	if ms := m.Status.MigrationState; ms != nil && ms.EndTimestamp != nil {
		return ms.EndTimestamp.Time
	}
	return m.CreationTimestamp.Time
}

// onTheWay reports whether the guest's object says that it is on its way.
func onTheWay(vmi *v1.VirtualMachineInstance) bool {
	ms := vmi.Status.MigrationState
	return ms != nil && ms.StartTimestamp != nil && ms.EndTimestamp == nil
}

// begun reports whether the nodes have begun to move the guest for the migration.
func begun(m *v1.VirtualMachineInstanceMigration, vmi *v1.VirtualMachineInstance) bool {
	if m.Status.Phase == v1.MigrationRunning {
		return true
	}
	ms := vmi.Status.MigrationState
	return ms != nil && ms.MigrationUID == m.UID && ms.StartTimestamp != nil
}

// withNodes reports whether the nodes were told to move the guest for the migration.
func withNodes(m *v1.VirtualMachineInstanceMigration, vmi *v1.VirtualMachineInstance) bool {
	ms := vmi.Status.MigrationState
	return ms != nil && ms.MigrationUID == m.UID
}

// activePods are the names of the guest's launcher Pods that have not ended. One that is being deleted
// elsewhere than where the guest is does not count: where its node is lost, it stays like that.
func (g Guest) activePods() []string {
	var names []string
	for _, p := range g.Pods {
		if p.Labels[v1.AppLabel] == launcherApp && metav1.IsControlledBy(p, g.VMI) && !terminal(p) &&
			(p.DeletionTimestamp == nil || p.Spec.NodeName == g.VMI.Status.NodeName) {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// priority returns a pointer to one.
func priority(p v1.MigrationPriority) *v1.MigrationPriority { return &p }

// byGuest orders guests by namespace and name.
func byGuest(a, b *v1.VirtualMachineInstance) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
