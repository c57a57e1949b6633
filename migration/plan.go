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

// ErrForeignPod means that the target Pod's name is taken by a Pod of something other than
// this migration.
var ErrForeignPod = errors.New("migration: the target Pod's name is taken by a Pod that does not belong to this migration")

// ErrNoAborter means that the executor cannot abort backups.
var ErrNoAborter = errors.New("migration: aborting backups is not supported")

// ErrRender means that the target Pod cannot be rendered; retrying without a change of the
// VMI or the configuration is pointless.
var ErrRender = errors.New("migration: the target Pod cannot be rendered")

// Verb names a write.
type Verb string

// The writes a Plan may ask for.
const (
	// Adopt adds KubeVirt's selector label and finalizer to the migration, and the
	// annotation [VMIUID].
	Adopt Verb = "Adopt"
	// CreateTarget renders and creates the target Pod. An existing Pod with the
	// migration's job label counts as created.
	CreateTarget Verb = "CreateTarget"
	// CreateClaim creates Action.Claim. An existing claim counts as created.
	CreateClaim Verb = "CreateClaim"
	// CreateAttachment renders and creates the Pod that attaches Action.Volumes on the
	// target Pod's node. An existing Pod of its name counts as created.
	CreateAttachment Verb = "CreateAttachment"
	// ChangeClaim writes the labels of Action.Claim. A missing claim is success.
	ChangeClaim Verb = "ChangeClaim"
	// DeleteClaim deletes Action.Claim by its UID. A missing claim is success.
	DeleteClaim Verb = "DeleteClaim"
	// AnnotatePod adds Action.Annotations to Action.Pod. A missing Pod is success.
	AnnotatePod Verb = "AnnotatePod"
	// DeletePod deletes Action.Pod by its UID. A missing Pod is success.
	DeletePod Verb = "DeletePod"
	// ChangeVMI writes Action.Change to the VMI, guarded by lease, migration state, phase,
	// labels and deletion as in the snapshot.
	ChangeVMI Verb = "ChangeVMI"
	// AbortBackup requests the abort of the VMI's backup Action.Name. Success is reported
	// in Snapshot.BackupAborted.
	AbortBackup Verb = "AbortBackup"
	// Collect deletes the finished migration Action.Name.
	Collect Verb = "Collect"
)

// Action is one write as data.
type Action struct {
	// Kind is the kind of the write.
	Verb Verb
	// Why is a short constant for logs and traces.
	Why string
	// Pod is the Pod to delete or annotate.
	Pod *PodRef
	// Annotations are added to Pod.
	Annotations map[string]string
	// Volumes are the hotplugged volumes for the attachment Pod, in the order of the VMI's
	// spec.
	Volumes []string
	// Claim is the claim to create, change or delete.
	Claim *corev1.PersistentVolumeClaim
	// Change is the change of the VMI.
	Change *VMIChange
	// Name is the migration to collect, in the same namespace, or the backup to abort.
	Name string
	// Event is emitted once the write took effect; nil for none.
	Event *Event
}

// PodRef identifies one incarnation of a Pod.
type PodRef struct {
	// Name is the Pod's name in the migration's namespace.
	Name string
	// UID guards against deleting a successor with the same name.
	UID types.UID
	// GraceSeconds is the grace period; nil means the Pod's own.
	GraceSeconds *int64
}

// VMIChange is a change of the VMI. All of it is written in one patch, guarded by what the
// decision depended on.
type VMIChange struct {
	// State replaces status.migrationState; nil leaves it.
	State *v1.VirtualMachineInstanceMigrationState
	// Lease replaces the handoff lease; nil leaves it.
	Lease *handoff.Lease
	// User replaces status.runtimeUser and sets KubeVirt's annotation kubevirt.io/nonroot
	// accordingly; nil leaves both.
	User *uint64
	// Labels are merged into the VMI's labels.
	Labels map[string]string
	// ActivePods are added to status.activePods: the node of each Pod, by its UID.
	ActivePods map[types.UID]string
	// Volumes replaces status.migratedVolumes; nil leaves it.
	Volumes *[]v1.StorageMigratedVolumeInfo
	// Phase ends the VMI at the time At; empty leaves it.
	Phase v1.VirtualMachineInstancePhase
	At    time.Time
	// TargetNode sets the label kubevirt.io/migrationTargetNodeName; empty leaves it. With
	// a Lease the label follows the lease.
	TargetNode string
}

// Apply makes the change on the object. It returns an error if the lease cannot be encoded.
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
	// Warning selects the type Warning instead of Normal.
	Warning bool
	// OnVMI says that the event is about the VMI; otherwise it is about the
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
	eventFailed        = "FailedMigration"
	eventAborted       = "SuccessfulAbortMigration"
	EventHandOver      = "SuccessfulHandOver"
	EventCreated       = "SuccessfulCreate"
	EventCreateFailed  = "FailedCreate"
	EventDeleted       = "SuccessfulDelete"
	eventUnschedulable = "migrationTargetPodUnschedulable"
	// eventNoSuitableNodes: no other node has the CPU of a host-model VMI.
	eventNoSuitableNodes   = "NoSuitableNodesForHostModelMigration"
	eventBackoff           = "MigrationBackoff"
	eventUtilityVolumes    = "UtilityVolumeMigrationPending"
	eventBackupAborted     = "BackupAbortedForMigration"
	eventBackupAbortFailed = "BackupAbortFailed"
)

// EventOptionsChanged is this module's event reason for a VMI whose migration, already handed
// off, follows changed options.
const EventOptionsChanged = "MigrationOptionsChanged"

// Plan is the outcome of [Decide].
type Plan struct {
	// Status is the status the migration should have. The executor writes it once, after
	// the actions, if it differs.
	Status v1.VirtualMachineInstanceMigrationStatus
	// Actions are the writes, in order; a failed one ends the pass.
	Actions []Action
	// Events are emitted after Status was written.
	Events []Event
	// Release says that the finalizer may be removed once Status is written: the
	// migration has nothing left to do, so there are no Actions.
	Release bool
	// Responsible is the component that has to act next.
	Responsible handoff.Responsible
	// Reason and Message say why the migration is in its phase.
	Reason  Reason
	Message string
	// Deadline is when the current phase is overdue; zero means never.
	Deadline time.Time
	// Overdue is the reason with which the migration fails at Deadline; empty if it then
	// succeeds.
	Overdue Reason
	// RequeueAt is when time alone lets the migration continue or fail before its deadline, as
	// the end of a back-off does; zero means never.
	RequeueAt time.Time
}
