// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/handoff"
)

// Sight is everything a node sees of one guest when it decides.
type Sight struct {
	// Node is the name of this node.
	Node string
	// Listening is where this node takes the migration of the guest, for its target;
	// the zero value while it takes none.
	Listening Listening
	// Migrations is what the cluster says about migrations, for those to which a
	// controller has stored nothing; nil for KubeVirt's defaults.
	Migrations *v1.MigrationConfiguration
	// VMI is the object, read live when the cache did not have it; nil means
	// that it is certain not to exist.
	VMI *v1.VirtualMachineInstance
	// Pods are those on this node that VMI controls, by its UID, as the API server has
	// them; see [Sight.Proof].
	Pods []*corev1.Pod
	// State is the domain here, with its live XML; nil when there is none.
	State *State
	// Unseen is why it is not known whether there is a domain here; nil if it is known.
	// State is nil then, which says nothing.
	Unseen error
	// Desired is the domain to start, from [Convert]; nil while it is not needed.
	Desired *libvirtxml.Domain
	// CopyDisks are the targets of the disks that must travel with the guest.
	CopyDisks []string
	// CopyBytes is how much they hold; zero means that it is not known.
	CopyBytes int64
	// Destinations tell where the volumes that the guest's migration replaces
	// (status.migratedVolumes) lie at the target, by the name of the volume; for the
	// source of the migration.
	Destinations map[string]DiskSource
	// Facts are those Desired was made from.
	Facts Facts
	// Obstacle is why the guest cannot be made ready here, nil if it can.
	Obstacle error
	// Guest is what the guest's agent said last; nil if nothing of it is known in
	// this process, and what the status says of it then stays.
	Guest *GuestInfo
	// Credentials is how far access credentials have reached the guest
	// (spec.accessCredentials); nil if that is not known.
	Credentials *CredentialSync
	// SilentSince is since when the hypervisor does not answer about the domain, so
	// that State is what was known before; zero if State is fresh.
	SilentSince time.Time
	// Troubles are the tasks for the guest that failed in the last pass of this
	// process, in their order.
	Troubles []Trouble
	// Moving says that this process is carrying out a migration of the guest.
	Moving bool
	// MoveFailure is why the last migration this process carried out failed.
	MoveFailure string
	// MoveEnded is when that was over; zero if this process carried out none.
	MoveEnded time.Time
	// MoveActive says that the hypervisor is busy with a migration of the
	// guest, whoever started it.
	MoveActive bool
	// Progress is how far that migration has come, as the hypervisor said last; nil if
	// there is none, or that is not known.
	Progress *Progress
	// Shown is what to tell of it in the status ([MigrationProgress]); nil while there is
	// nothing to tell. It changes now and then only, so that a status is not written all
	// the time.
	Shown *Progress
	// MoveMode is the mode that the [Monitor] of this process told last; empty if it
	// watches no migration of the guest.
	MoveMode v1.MigrationMode
	// Leftovers are the UIDs of objects of this name, other than VMI, of which
	// there are files on the node.
	Leftovers []types.UID
}

// CredentialSync tells how far access credentials have reached a guest.
type CredentialSync struct {
	// Done says that all of them have.
	Done bool
	// Message tells why not; may be empty.
	Message string
}

// TaskVerb says what a [Task] does.
type TaskVerb string

const (
	// TaskApply carries out Operation at the hypervisor.
	TaskApply TaskVerb = "Apply"
	// TaskMigrate begins the migration Request, whose URIs are those of the [Route] for
	// Passage and To.
	TaskMigrate TaskVerb = "Migrate"
	// TaskAbort cancels a running migration.
	TaskAbort TaskVerb = "AbortMigration"
	// TaskCleanup removes the guest's files on this node.
	TaskCleanup TaskVerb = "Cleanup"
	// TaskFreeze holds writes to the guest's file systems, by its agent; see
	// [GuestAgent].
	TaskFreeze TaskVerb = "Freeze"
	// TaskThaw releases them.
	TaskThaw TaskVerb = "Thaw"
	// TaskSyncTime sets the guest's clock, by its agent, to the present. It may fail
	// without consequence; see [Task.Optional].
	TaskSyncTime TaskVerb = "SyncTime"
)

// Task is one thing to do on the node.
type Task struct {
	// Verb says what to do; it decides which of the fields below count.
	Verb TaskVerb
	// Operation is for TaskApply.
	Operation Operation
	// Request is for TaskMigrate, Passage and To are which way it goes.
	Request MigrationRequest
	Passage Passage
	To      Listening
	// UID is whose files TaskCleanup removes; empty if nobody's.
	UID types.UID
	// Command is the lease's command that the task carries out; the zero value if
	// it carries out none. Every task that starts or moves a guest has one, and
	// may be begun only while [handoff.Lease.Authorize] allows it.
	Command handoff.Command
	// Needed says that the tasks after this one must wait for it, whatever it does.
	Needed bool
	// Why is the reason in a few words.
	Why string
}

// TouchesGuest tells whether the task does anything to the guest or its files:
// everything but what is noted in the domain's metadata. Such a task may be begun
// only on the API server's own, recent word ([handoff.Confirmed]).
func (t Task) TouchesGuest() bool {
	return t.Verb != TaskApply || t.Operation.Verb != SetMetadata
}

// Independent tells whether the tasks after this one may be carried out although
// it failed: what plugs one device says nothing about the next.
func (t Task) Independent() bool {
	if t.Verb != TaskApply || t.Needed {
		return false
	}
	switch t.Operation.Verb {
	case AttachDevice, DetachDevice, UpdateDevice, SetVCPUs:
		return true
	}
	return false
}

// Optional tells whether the task may fail without being tried again or told.
func (t Task) Optional() bool { return t.Verb == TaskSyncTime }

// String prints the task on one line.
func (t Task) String() string {
	if t.Verb == TaskApply {
		return fmt.Sprintf("%s (%s)", t.Operation, t.Why)
	}
	return fmt.Sprintf("%s (%s)", t.Verb, t.Why)
}

// Plan is what a decision comes to: what the object shall say, to be stored
// first, and what to do after that is stored.
type Plan struct {
	// VMI is the object as it shall become; nil when there is none.
	VMI *v1.VirtualMachineInstance
	// Tasks are to be carried out in order, once VMI is stored. If it cannot be
	// stored none of them may be.
	Tasks []Task
	// RequeueAt is when to look again even if nothing happens.
	RequeueAt *time.Time
	// Notices are to be told as events of the object once VMI is stored, and not if
	// it is not. They tell of changes: without a write there are none.
	Notices []Notice
	// Differences are between the object and the running domain; empty when the
	// two agree, or were not compared.
	Differences []Difference
	// Role says what this node is to the guest.
	Role Role
}

// Notice is an event of the object (Kubernetes: Event).
type Notice struct {
	// Warning says that something went wrong.
	Warning bool
	// Reason is a CamelCase word, KubeVirt's where it has one.
	Reason string
	// Message tells what happened.
	Message string
}

// Role is what a node is to a guest.
type Role string

// The roles. A node that is nothing to a guest must not run it.
const (
	RoleNone    Role = "None"
	RoleOffered Role = "Offered"
	RoleHolder  Role = "Holder"
	RoleTarget  Role = "Target"
)

// RoleOf tells what the node is to the guest under the lease.
func RoleOf(l handoff.Lease, node string) Role {
	switch {
	case node == "":
		return RoleNone
	case l.State == handoff.Offered && l.Holder == node:
		return RoleOffered
	case l.Holds(node):
		return RoleHolder
	case l.Target == node && (l.InMove() || l.Switching()):
		return RoleTarget
	default:
		return RoleNone
	}
}
