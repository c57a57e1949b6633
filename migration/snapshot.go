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
)

// Snapshot is all that [Decide] looks at. Objects are read only: they may come
// straight from a cache.
type Snapshot struct {
	// Migration is the migration to decide about. Required.
	Migration *v1.VirtualMachineInstanceMigration
	// VMI is its guest; nil when there is none.
	VMI *v1.VirtualMachineInstance
	// Others are the other migrations of the same guest, finished ones too.
	Others []*v1.VirtualMachineInstanceMigration
	// SourcePod is the Pod the guest is to leave, or has left, see
	// [Snapshot.SourcePodName]; nil when there is none.
	SourcePod *corev1.Pod
	// TargetPod is the Pod made for this migration, see [TargetPod]; nil when
	// there is none.
	TargetPod *corev1.Pod
	// Launchers are all launcher Pods of the guest.
	Launchers []*corev1.Pod
	// Attachments are the Pods that carry plugged volumes beside the target Pod,
	// see [Attachments].
	Attachments []*corev1.Pod
	// Claims are the claims that [Snapshot.StateClaims] names, by name, as far as
	// they exist.
	Claims map[string]*corev1.PersistentVolumeClaim
	// Sending is what a sender has to tell about its guest; nil while it is not
	// gathered, which only a [Snapshot.NeedsSending] needs.
	Sending *Sending
	// SyncAddresses are where the synchronization controllers of the cluster are reached,
	// by the KubeVirt object; nil leaves what was stored.
	SyncAddresses []string
	// Slot is what [Admission] answered to [Snapshot.Claim].
	Slot Verdict
	// Resolution is the policy in force, and the options it comes to.
	Resolution Resolution
	// Config is the configuration, with defaults filled in.
	Config Config
	// Now is the time of the decision. [Decide] fills it in, for [Snapshot.Claim] it has to
	// be there.
	Now time.Time
	// Entered is when phases were entered that the status does not have, as it was not stored
	// since; it may be nil.
	Entered map[v1.VirtualMachineInstanceMigrationPhase]metav1.Time
	// Targets are the other migrations of the guest that own a target Pod, by UID, see
	// [TargetOwners].
	Targets []types.UID
	// BackupAborted says that AbortBackup was done in this pass.
	BackupAborted bool
	// Unsettled tells which own writes the caches do not show yet; empty when
	// they show all of them.
	Unsettled string
	// Late tells which own creations may still be carried out, though the API server had not done so when it was
	// asked; empty when there are none. They are repeated, as their names are the same; the finalizer stays meanwhile.
	Late string
	// Failures holds the errors of actions tried in this pass, by kind.
	Failures map[ActionKind]error
}

// UID is the migration's UID, which is also the tag of its commands.
func (s Snapshot) UID() types.UID { return s.Migration.UID }

// State returns the guest's migration state if it is this migration's, else nil.
func (s Snapshot) State() *v1.VirtualMachineInstanceMigrationState {
	if s.VMI == nil || s.VMI.Status.MigrationState == nil || s.VMI.Status.MigrationState.MigrationUID != s.Migration.UID {
		return nil
	}
	return s.VMI.Status.MigrationState
}

// SourcePodName returns the name of the Pod the guest leaves as far as it was
// recorded; empty while nothing was.
func (s Snapshot) SourcePodName() string {
	if ms := s.State(); ms != nil && ms.SourcePod != "" {
		return ms.SourcePod
	}
	if ms := s.Migration.Status.MigrationState; ms != nil {
		return ms.SourcePod
	}
	return ""
}

// created orders migrations by age; names tell those of one second apart.
func created(a, b *v1.VirtualMachineInstanceMigration) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// owner returns the unfinished migration that owns the guest's migration state,
// other than this one.
func (s Snapshot) owner() *v1.VirtualMachineInstanceMigration {
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

// adopted reports whether the selector label, where the name can be a label's value, and the
// finalizer are in place.
func (s Snapshot) adopted() bool {
	m := s.Migration
	if uid, noted := m.Annotations[GuestUID]; noted && m.Status.Phase == v1.MigrationPhaseUnset && s.VMI != nil && uid != string(s.VMI.UID) {
		return false // it is a copy of another one
	}
	labelled := m.Labels[v1.MigrationSelectorLabel] == m.Spec.VMIName || len(validation.IsValidLabelValue(m.Spec.VMIName)) > 0
	return labelled && slices.Contains(m.Finalizers, v1.VirtualMachineInstanceMigrationFinalizer)
}

// maxLabelValue is the longest legal label value.
const maxLabelValue = 63

// Claim returns what the migration needs capacity for, and false when it needs
// none: because it is finished, must not start yet, or its guest has moved.
func (s Snapshot) Claim() (Claim, bool) {
	s = s.ofItsGuest()
	m := s.Migration
	if m.IsFinal() || s.VMI == nil {
		return Claim{}, false
	}
	c := Claim{
		Key:      types.NamespacedName{Namespace: m.Namespace, Name: m.Name},
		Priority: PriorityOf(m.Spec.Priority), Since: m.CreationTimestamp.Time,
		SourceNode: s.VMI.Status.NodeName, Bandwidth: s.bandwidth(), Size: memory(s.VMI),
	}
	if m.IsDecentralized() {
		return s.claimApart(c)
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
	return c, s.mayStart()
}

// bandwidth returns what the migration may send at most, in bytes per second: as
// handed over, else as resolved, else as the cluster's configuration has it, which a
// policy may change; zero when nothing limits it.
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
func (s Snapshot) mayStart() bool {
	return fresh(s.Migration) && s.Migration.DeletionTimestamp == nil && s.Older() == nil && s.owner() == nil && s.orphan() == nil &&
		!s.refused() && !s.Config.evaluate(s).Blocked
}

// fresh reports whether nothing was done for the migration yet, as far as is stored.
func fresh(m *v1.VirtualMachineInstanceMigration) bool {
	return m.Status.Phase == v1.MigrationPhaseUnset || m.Status.Phase == v1.MigrationPending
}

// refused reports whether the target Pod, or the claim that it needs, was refused so
// recently that trying again is pointless.
func (s Snapshot) refused() bool { return s.refusal() != nil }

// refusal is why, or nil.
func (s Snapshot) refusal() error {
	return cmp.Or(s.Failures[CreateTarget], s.Failures[CreateClaim])
}

// orphan returns the lease when the guest is in a move that no unfinished
// migration stands for and that has not begun: left behind by a migration whose
// object was removed by force.
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

// evaluate is Checks().Evaluate without the list.
func (c Config) evaluate(s Snapshot) Finding {
	e := c.Evaluator
	if e == nil {
		e = DefaultChecks()
	}
	turn, rest := order.Evaluate(s), e.Evaluate(s)
	switch {
	case !turn.Blocked || rest.Blocked && !rest.Temporary:
		return rest
	case !turn.Temporary:
		return turn
	}
	return turn.and(rest, s.Now)
}

// phaseSince returns when the migration entered its current phase; its creation
// when that was not recorded.
func phaseSince(m *v1.VirtualMachineInstanceMigration, st *v1.VirtualMachineInstanceMigrationStatus) time.Time {
	for _, t := range st.PhaseTransitionTimestamps {
		if t.Phase == st.Phase {
			return t.PhaseTransitionTimestamp.Time
		}
	}
	return m.CreationTimestamp.Time
}
