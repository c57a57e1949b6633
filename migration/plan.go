// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// ErrForeignPod means a Pod of the target's name exists and is not this
// migration's.
var ErrForeignPod = errors.New("migration: the target Pod's name is taken by a Pod that is not this migration's")

// ErrQuota means a ResourceQuota refused the target Pod, or the claim that it needs.
var ErrQuota = errors.New("migration: a ResourceQuota refused what the target needs")

// ErrNoAborter means that nothing here can abort a backup.
var ErrNoAborter = errors.New("migration: nothing here can abort backups")

// ErrRender means the target Pod cannot be rendered; retrying without a change
// of the guest or the configuration is pointless.
var ErrRender = errors.New("migration: the target Pod cannot be rendered")

// ActionKind names a write.
type ActionKind string

// The writes a Plan may ask for.
const (
	// Adopt adds KubeVirt's selector label and finalizer to the migration, and the
	// annotation [GuestUID].
	Adopt ActionKind = "Adopt"
	// CreateTarget renders and creates the target Pod. A Pod that exists
	// already and carries the migration's job label counts as created.
	CreateTarget ActionKind = "CreateTarget"
	// CreateClaim creates Action.Claim. One that exists already counts as created.
	CreateClaim ActionKind = "CreateClaim"
	// CreateAttachment renders and creates the Pod that brings Action.Volumes to the
	// target Pod's node. One that exists already under its name counts as created.
	CreateAttachment ActionKind = "CreateAttachment"
	// ChangeClaim writes the labels of Action.Claim. A missing claim is success.
	ChangeClaim ActionKind = "ChangeClaim"
	// DeleteClaim deletes Action.Claim under its UID. A missing claim is success.
	DeleteClaim ActionKind = "DeleteClaim"
	// AnnotatePod adds Action.Annotations to Action.Pod. A missing Pod is success.
	AnnotatePod ActionKind = "AnnotatePod"
	// DeletePod deletes Action.Pod under its UID. A missing Pod is success.
	DeletePod ActionKind = "DeletePod"
	// ChangeVMI writes Action.Change to the guest, if lease, migration state, phase, labels
	// and deletion are as in the snapshot.
	ChangeVMI ActionKind = "ChangeVMI"
	// AbortBackup asks for the end of the backup Action.Name of the guest. Done, it is
	// told in Snapshot.BackupAborted.
	AbortBackup ActionKind = "AbortBackup"
	// Collect deletes the finished migration Action.Name.
	Collect ActionKind = "Collect"
)

// Action is one write as data.
type Action struct {
	// Kind says what to write.
	Kind ActionKind
	// Why is a short constant for logs and traces.
	Why string
	// Pod is the Pod to delete or annotate.
	Pod *PodRef
	// Annotations are those to add to Pod.
	Annotations map[string]string
	// Volumes are the plugged volumes that an attachment Pod is to bring, in the
	// order of the guest's spec.
	Volumes []string
	// Claim is the claim to create, change or delete.
	Claim *corev1.PersistentVolumeClaim
	// Change is the change of the guest.
	Change *VMIChange
	// Name is the migration to collect, in the same namespace, or the backup to abort.
	Name string
	// Event is to be emitted once the write took effect; nil for none.
	Event *Event
}

// PodRef names one incarnation of a Pod.
type PodRef struct {
	// Name is the Pod's name in the migration's namespace.
	Name string
	// UID guards against deleting a successor of the same name.
	UID types.UID
	// GraceSeconds is the grace period; nil means the Pod's own.
	GraceSeconds *int64
}

// VMIChange is a change of the guest's VirtualMachineInstance. All of it is
// written in one patch, guarded by what the decision depended on.
type VMIChange struct {
	// State replaces status.migrationState; nil leaves it.
	State *v1.VirtualMachineInstanceMigrationState
	// Lease replaces the handoff lease; nil leaves it.
	Lease *handoff.Lease
	// User replaces status.runtimeUser, and KubeVirt's annotation kubevirt.io/nonroot
	// follows; nil leaves both.
	User *uint64
	// Labels are set on the guest, beside those that it has.
	Labels map[string]string
	// ActivePods are added to status.activePods: the node of each Pod, by its UID.
	ActivePods map[types.UID]string
	// Volumes replaces status.migratedVolumes; nil leaves it.
	Volumes *[]v1.StorageMigratedVolumeInfo
	// Phase ends the guest at the time At; empty leaves it.
	Phase v1.VirtualMachineInstancePhase
	At    time.Time
	// TargetNode sets the label kubevirt.io/migrationTargetNodeName, if it is not
	// empty. With a Lease the label follows that.
	TargetNode string
}

// Apply makes the change on the object. The error is of encoding the lease.
func (c VMIChange) Apply(vmi *v1.VirtualMachineInstance) error {
	if c.State != nil {
		vmi.Status.MigrationState = c.State.DeepCopy()
	}
	if c.User != nil {
		vmi.Status.RuntimeUser = *c.User
		delete(vmi.Annotations, v1.DeprecatedNonRootVMIAnnotation)
		if *c.User != 0 {
			metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, v1.DeprecatedNonRootVMIAnnotation, "true")
		}
	}
	for key, value := range c.Labels {
		metav1.SetMetaDataLabel(&vmi.ObjectMeta, key, value)
	}
	c.record(vmi)
	if c.Volumes != nil {
		vmi.Status.MigratedVolumes = slices.Clone(*c.Volumes)
	}
	if c.Phase != "" {
		vmistatus.SetPhase(vmi, c.Phase, c.At)
	}
	if c.TargetNode != "" {
		if vmi.Labels == nil {
			vmi.Labels = map[string]string{}
		}
		vmi.Labels[v1.MigrationTargetNodeNameLabel] = c.TargetNode
	}
	if c.Lease == nil {
		return nil
	}
	if err := handoff.Put(vmi, *c.Lease); err != nil {
		return fmt.Errorf("migration: change VirtualMachineInstance %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	return nil
}

// record adds to status.activePods.
func (c VMIChange) record(vmi *v1.VirtualMachineInstance) {
	if len(c.ActivePods) > 0 && vmi.Status.ActivePods == nil {
		vmi.Status.ActivePods = map[types.UID]string{}
	}
	maps.Copy(vmi.Status.ActivePods, c.ActivePods)
}

// Event is a Kubernetes event to emit.
type Event struct {
	// Warning tells the type Warning from Normal.
	Warning bool
	// OnVMI says that the event is about the guest; otherwise it is about the
	// migration.
	OnVMI bool
	// Reason is KubeVirt's event reason.
	Reason string
	// Message is the text.
	Message string
}

// Event reasons as KubeVirt names them.
const (
	EventSucceeded     = "SuccessfulMigration"
	EventFailed        = "FailedMigration"
	EventAborted       = "SuccessfulAbortMigration"
	EventHandOver      = "SuccessfulHandOver"
	EventCreated       = "SuccessfulCreate"
	EventCreateFailed  = "FailedCreate"
	EventDeleted       = "SuccessfulDelete"
	EventUnschedulable = "migrationTargetPodUnschedulable"
	// EventNoSuitableNodes: no other node has the CPU of a host-model guest.
	EventNoSuitableNodes   = "NoSuitableNodesForHostModelMigration"
	EventBackoff           = "MigrationBackoff"
	EventUtilityVolumes    = "UtilityVolumeMigrationPending"
	EventBackupAborted     = "BackupAbortedForMigration"
	EventBackupAbortFailed = "BackupAbortFailed"
)

// EventOptionsChanged, an event reason of our own, tells on the guest that its migration, which
// has been handed over, goes by changed options.
const EventOptionsChanged = "MigrationOptionsChanged"

// Owner says whose move it is.
type Owner string

// Owners of a phase's next step.
const (
	// OwnerController: this controller, or the capacity it guards.
	OwnerController Owner = "controller"
	// OwnerScheduler: scheduler and kubelet, for the target Pod.
	OwnerScheduler Owner = "scheduler"
	// OwnerTarget: the node that receives.
	OwnerTarget Owner = "target node"
	// OwnerSource: the node that sends.
	OwnerSource Owner = "source node"
	// OwnerNobody: the migration is finished.
	OwnerNobody Owner = "nobody"
)

// Plan is the outcome of [Decide].
type Plan struct {
	// Status is the status the migration should have. Whoever executes the
	// plan writes it once, after the actions, if it differs.
	Status v1.VirtualMachineInstanceMigrationStatus
	// Actions are the writes, in order; a failed one ends the pass.
	Actions []Action
	// Events are to be emitted after Status was written.
	Events []Event
	// Release says that the finalizer may go once Status is written: nothing
	// of the migration is left to do, so there are no Actions.
	Release bool
	// Owner says whose move it is.
	Owner Owner
	// Reason and Message explain why the migration stands where it stands.
	Reason  Reason
	Message string
	// Deadline is when the current phase is overdue; zero means never.
	Deadline time.Time
	// overdue is the reason with which the migration ends at Deadline; empty if it then
	// succeeds all the same.
	overdue Reason
	// Wake is when time alone lets the migration go on or fail before its deadline, as
	// the end of a back-off does; zero means never.
	Wake time.Time
}
