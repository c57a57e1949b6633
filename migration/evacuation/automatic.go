// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/launcherpod"
	"github.com/virtloom/virtloom/migration"
)

// Reasons why a VMI is, or is not, migrated without a user's request.
const (
	// reasonEvacuating: the VMI must leave its node.
	reasonEvacuating migration.Reason = "Evacuating"
	// reasonUpdating: the VMI's Pod is older than what the VMI or the cluster requires.
	reasonUpdating migration.Reason = "UpdatingWorkload"
	// reasonNotAsked: nothing requests a migration of the VMI, or no longer.
	reasonNotAsked migration.Reason = "NotAsked"
	// ReasonStrategyNone: the VMI's eviction strategy is None, or unset in VMI and cluster.
	ReasonStrategyNone migration.Reason = "EvictionStrategyNone"
	// reasonStrategyExternal: the VMI's eviction strategy leaves it to an external controller.
	reasonStrategyExternal migration.Reason = "EvictionStrategyExternal"
	// reasonMigrationExists: a migration of the VMI is not finished.
	reasonMigrationExists migration.Reason = "MigrationExists"
	// ReasonActivePods: the VMI has more than one Pod that is not finished.
	ReasonActivePods migration.Reason = "SeveralActivePods"
	// ReasonCooldown: the VMI was migrated automatically a short time ago.
	ReasonCooldown migration.Reason = "Cooldown"
	// ReasonUnchanged: a migration of the VMI failed for a lasting reason, and nothing that it
	// depends on has changed since.
	ReasonUnchanged migration.Reason = "UnchangedSinceFailure"
	// reasonCacheBehind: the cache is older than this controller's writes about the VMI.
	reasonCacheBehind migration.Reason = "CacheBehind"
	// ReasonNotRunning: the VMI is not running.
	ReasonNotRunning migration.Reason = "NotRunning"
)

// staticRetry is the time after which a migration that failed for a lasting reason is retried without
// a known change: not all that it depends on is watched.
const staticRetry = time.Hour

// behindFor bounds how long a VMI is taken to be older than the end of its last migration.
const behindFor = time.Minute

// Verb is what to do about a VMI.
type Verb string

// What to do about a VMI; the empty Verb is nothing.
const (
	// Create a migration: Standing.Migration.
	Create Verb = "Create"
	// Cancel migrations by deleting them: Standing.Cancel.
	Cancel Verb = "Cancel"
	// EvictPod evicts a Pod: Standing.Pod.
	EvictPod Verb = "Evict"
)

// Guest is what is known of a VMI that may be migrated without a user's request. Objects are read
// only.
type Candidate struct {
	// VMI is the VMI. Required.
	VMI *v1.VirtualMachineInstance
	// Migrations are all migrations of the VMI, finished ones too.
	Migrations []*v1.VirtualMachineInstanceMigration
	// Pods are the VMI's Pods.
	Pods []*corev1.Pod
	// Unsettled says which own writes about the VMI the cache has not shown yet; empty when it shows
	// all of them.
	Pending string
}

// Standing is the decision about one VMI and its reason, also if nothing is done.
type Standing struct {
	// Guest is the input about a VMI that may be migrated without a user's request. Its objects are
	// read only.
	VMI *v1.VirtualMachineInstance
	// Verb is what to do; empty for nothing.
	Verb Verb
	// Reason and Message say why.
	Reason  migration.Reason
	Message string
	// Migration is the complete migration to create, or the unfinished one that blocks.
	Migration *v1.VirtualMachineInstanceMigration
	// Cancel are the migrations to delete, each only in this version.
	Cancel []*v1.VirtualMachineInstanceMigration
	// Pod is the Pod to evict.
	Pod *corev1.Pod
	// At is when time alone would change the answer; zero means never.
	At time.Time
}

// Soonest returns the first moment at which time alone would change one of the standings; zero for none.
func Soonest(all []Standing) time.Time {
	var at time.Time
	for i := range all {
		if t := all[i].At; !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at
}

// leave returns a standing in which nothing is done.
func (g Candidate) leave(r migration.Reason, message string) *Standing {
	return &Standing{VMI: g.VMI, Reason: r, Message: message}
}

// until sets the moment at which time alone changes the answer.
func (s *Standing) until(at time.Time) *Standing {
	s.At = at
	return s
}

// unfinished returns the VMI's oldest unfinished migration, or nil.
func (g Candidate) unfinished() *v1.VirtualMachineInstanceMigration {
	var open []*v1.VirtualMachineInstanceMigration
	for _, m := range g.Migrations {
		if !m.IsFinal() {
			open = append(open, m)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return slices.MinFunc(open, migration.CompareCreated)
}

// newest returns the youngest of the VMI's migrations that match, or nil.
func (g Candidate) newest(match func(*v1.VirtualMachineInstanceMigration) bool) *v1.VirtualMachineInstanceMigration {
	var found *v1.VirtualMachineInstanceMigration
	for _, m := range g.Migrations {
		if match(m) && (found == nil || migration.CompareCreated(found, m) < 0) {
			found = m
		}
	}
	return found
}

func succeeded(m *v1.VirtualMachineInstanceMigration) bool {
	return m.Status.Phase == v1.MigrationSucceeded
}

// endOf returns when a finished migration ended, as far as recorded.
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

// onTheWay reports whether the VMI's status has it migrating.
func onTheWay(vmi *v1.VirtualMachineInstance) bool {
	ms := vmi.Status.MigrationState
	return ms != nil && ms.StartTimestamp != nil && ms.EndTimestamp == nil
}

// begun reports whether the nodes have begun the migration of the VMI.
func begun(m *v1.VirtualMachineInstanceMigration, vmi *v1.VirtualMachineInstance) bool {
	if m.Status.Phase == v1.MigrationRunning {
		return true
	}
	ms := vmi.Status.MigrationState
	return ms != nil && ms.MigrationUID == m.UID && ms.StartTimestamp != nil
}

// withNodes reports whether the migration was handed off to the nodes.
func withNodes(m *v1.VirtualMachineInstanceMigration, vmi *v1.VirtualMachineInstance) bool {
	ms := vmi.Status.MigrationState
	return ms != nil && ms.MigrationUID == m.UID
}

// activePods returns the names of the VMI's launcher Pods that have not ended. A Pod that is being
// deleted on another node than the VMI's does not count: if that node is lost, the Pod stays.
func (g Candidate) activePods() []string {
	var names []string
	for _, p := range g.Pods {
		if p.Labels[v1.AppLabel] == launcherpod.LauncherApp && metav1.IsControlledBy(p, g.VMI) && !launcherpod.Terminal(p) &&
			(p.DeletionTimestamp == nil || p.Spec.NodeName == g.VMI.Status.NodeName) {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// priority returns a pointer to p.
func priority(p v1.MigrationPriority) *v1.MigrationPriority { return &p }

// byGuest orders VMIs by namespace and name.
func byVMI(a, b *v1.VirtualMachineInstance) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
