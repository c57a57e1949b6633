// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration/policy"
	"github.com/virtloom/virtloom/migration/queue"
)

// Snapshot is the complete input of [Decide]. Its objects are read only: they may come
// straight from a cache.
type Snapshot struct {
	// Migration is the migration to decide about. Required.
	Migration *v1.VirtualMachineInstanceMigration
	// VMI is its VMI; nil when there is none.
	VMI *v1.VirtualMachineInstance
	// Others are the other migrations of the same VMI, finished ones too.
	Others []*v1.VirtualMachineInstanceMigration
	// SourcePod is the Pod that the VMI is to leave, or has left, see
	// [Snapshot.SourcePodName]; nil when there is none.
	SourcePod *corev1.Pod
	// TargetPod is the Pod created for this migration, see [TargetPod]; nil when
	// there is none.
	TargetPod *corev1.Pod
	// Launchers are all launcher Pods of the VMI.
	Launchers []*corev1.Pod
	// Attachments are the Pods that attach hotplugged volumes beside the target Pod,
	// see [Attachments].
	Attachments []*corev1.Pod
	// Claims are the existing claims among those that [Snapshot.StateClaims] names,
	// by name.
	Claims map[string]*corev1.PersistentVolumeClaim
	// Sending is the data that a sender reports about its VMI; nil while it is not
	// gathered, which only a [Snapshot.NeedsSending] needs.
	Sending *Sending
	// SyncAddresses are the addresses of the cluster's synchronization controllers, from
	// the KubeVirt object; nil keeps what is stored.
	SyncAddresses []string
	// Slot is the answer of [queue.Admission] to [Snapshot.Claim].
	Slot queue.Verdict
	// Resolution is the policy in force, and the options it leads to.
	Resolution policy.Resolution
	// Config is the configuration, with defaults filled in.
	Config Config
	// Entered is when phases were entered that are not stored in the status yet; it may be
	// nil.
	Entered map[v1.VirtualMachineInstanceMigrationPhase]metav1.Time
	// Targets are the other migrations of the VMI that own a target Pod, by UID, see
	// [TargetOwners].
	Targets []types.UID
	// BackupAborted says that AbortBackup was executed in this pass.
	BackupAborted bool
	// Pending says which own writes the cache has not shown yet; empty when it shows all
	// of them.
	Pending string
	// Late says which own creations may still be carried out, though the API server had not done so when last
	// read; empty for none. They are repeated under the same names; the finalizer stays meanwhile.
	Late string
	// Failures holds the errors of actions tried in this pass, by kind.
	Failures map[Verb]error
}

// uid is the migration's uid, which is also the tag of its commands.
func (s Snapshot) uid() types.UID { return s.Migration.UID }

// State returns the VMI's migration state if it is this migration's, else nil.
func (s Snapshot) State() *v1.VirtualMachineInstanceMigrationState {
	if s.VMI == nil || s.VMI.Status.MigrationState == nil || s.VMI.Status.MigrationState.MigrationUID != s.Migration.UID {
		return nil
	}
	return s.VMI.Status.MigrationState
}

// SourcePodName returns the recorded name of the Pod that the VMI leaves; empty while
// none is recorded.
func (s Snapshot) SourcePodName() string {
	if ms := s.State(); ms != nil && ms.SourcePod != "" {
		return ms.SourcePod
	}
	if ms := s.Migration.Status.MigrationState; ms != nil {
		return ms.SourcePod
	}
	return ""
}

// CompareCreated orders migrations by age; within a second by name.
func CompareCreated(a, b *v1.VirtualMachineInstanceMigration) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// Owner returns the unfinished migration, other than this one, that owns the VMI's migration
// state; nil for none.
func (s Snapshot) Owner() *v1.VirtualMachineInstanceMigration {
	if s.VMI == nil || s.VMI.Status.MigrationState == nil {
		return nil
	}
	for _, o := range s.Others {
		if concerns(s.VMI.Status.MigrationState, o) && !o.IsFinal() {
			return o
		}
	}
	return nil
}

// adopted reports whether the finalizer and, where the name is a valid label value, the
// selector label are in place.
func (s Snapshot) adopted() bool {
	m := s.Migration
	if uid, noted := m.Annotations[VMIUID]; noted && m.Status.Phase == v1.MigrationPhaseUnset && s.VMI != nil && uid != string(s.VMI.UID) {
		return false // it is a copy of another migration
	}
	labelled := m.Labels[v1.MigrationSelectorLabel] == m.Spec.VMIName || len(validation.IsValidLabelValue(m.Spec.VMIName)) > 0
	return labelled && slices.Contains(m.Finalizers, v1.VirtualMachineInstanceMigrationFinalizer)
}

// Claim returns the migration's claim for capacity, and false when it needs none: because it
// is finished, must not start yet, or its VMI has migrated.
func (s Snapshot) Claim(now time.Time) (queue.Claim, bool) {
	s = s.ofItsVMI()
	m := s.Migration
	if m.IsFinal() || s.VMI == nil {
		return queue.Claim{}, false
	}
	c := queue.Claim{
		Key:      types.NamespacedName{Namespace: m.Namespace, Name: m.Name},
		Priority: queue.PriorityOf(m.Spec.Priority), Since: m.CreationTimestamp.Time,
		SourceNode: s.VMI.Status.NodeName, Bandwidth: s.bandwidth(), Size: policy.GuestMemory(s.VMI),
	}
	if m.IsDecentralized() {
		return s.claimApart(c, now)
	}
	if s.TargetPod != nil {
		c.Acting, c.TargetNode = true, s.TargetPod.Spec.NodeName
		_, c.Stuck = unschedulable(s.TargetPod)
	}
	if ms := s.State(); ms != nil {
		c.Acting, c.Arriving, c.Stuck, c.SourceNode, c.TargetNode = true, true, false, ms.SourceNode, ms.TargetNode
		return c, !ms.Completed
	}
	if c.Acting {
		return c, true
	}
	return c, s.mayStart(now)
}

// bandwidth returns the limit on the migration's bandwidth, in bytes per second: as handed
// off, else as resolved, else as in the cluster's configuration, which a policy may
// override; zero means no limit.
func (s Snapshot) bandwidth() int64 {
	var limit *resource.Quantity
	switch ms := s.State(); {
	case ms != nil && ms.VMIMConfigurationOptions != nil:
		limit = ms.VMIMConfigurationOptions.BandwidthPerMigration
	case s.Resolution.Options != nil:
		limit = s.Resolution.Options.BandwidthPerMigration
	case s.Config.Cluster != nil:
		limit = s.Config.Cluster.BandwidthPerMigration
	}
	if limit == nil {
		return 0
	}
	return limit.Value()
}

// mayStart reports whether only capacity is missing for the migration to start.
func (s Snapshot) mayStart(now time.Time) bool {
	return notBegun(s.Migration) && s.Migration.DeletionTimestamp == nil && s.Older() == nil && s.Owner() == nil && s.orphan() == nil &&
		!s.refused() && !s.Config.evaluate(s, now).Blocked
}

// notBegun reports whether nothing was done for the migration yet, as far as stored.
func notBegun(m *v1.VirtualMachineInstanceMigration) bool {
	return m.Status.Phase == v1.MigrationPhaseUnset || m.Status.Phase == v1.MigrationPending
}

// refused reports whether the target Pod, or the claim that it needs, was rejected in this
// pass, so that retrying is pointless.
func (s Snapshot) refused() bool { return s.refusal() != nil }

// refusal returns the error of the rejection, or nil.
func (s Snapshot) refusal() error {
	return cmp.Or(s.Failures[CreateTarget], s.Failures[CreateClaim])
}

// orphan returns the lease when it is in a migration that has not begun and that no
// unfinished migration stands for: its object was removed by force.
func (s Snapshot) orphan() *handoff.Lease {
	lease, err := handoff.Of(s.VMI)
	if err != nil || lease.Tag == s.Migration.UID || (lease.State != handoff.Preparing && lease.State != handoff.Prepared) {
		return nil
	}
	for _, o := range s.Others {
		if o.UID == lease.Tag && (!o.IsFinal() || slices.Contains(o.Finalizers, v1.VirtualMachineInstanceMigrationFinalizer)) {
			return nil
		}
	}
	return &lease
}

// evaluate evaluates Checks() without building the list.
func (c Config) evaluate(s Snapshot, now time.Time) Finding {
	e := c.Evaluator
	if e == nil {
		e = DefaultChecks()
	}
	turn, rest := order.Evaluate(s, now), e.Evaluate(s, now)
	switch {
	case !turn.Blocked || rest.Blocked && !rest.Temporary:
		return rest
	case !turn.Temporary:
		return turn
	}
	return turn.and(rest, now)
}

// phaseSince returns when the migration entered its current phase; its creation where that
// was not recorded.
func phaseSince(m *v1.VirtualMachineInstanceMigration, st *v1.VirtualMachineInstanceMigrationStatus) time.Time {
	for _, t := range st.PhaseTransitionTimestamps {
		if t.Phase == st.Phase {
			return t.PhaseTransitionTimestamp.Time
		}
	}
	return m.CreationTimestamp.Time
}
