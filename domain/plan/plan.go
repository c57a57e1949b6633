// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/diff"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/handoff"
)

// Snapshot is the input of a decision: one VMI as a node sees it.
type Snapshot struct {
	// Node is the name of this node.
	Node string
	// TargetEndpoint is the endpoint at which this node, as the target, receives the VMI's
	// migration; the zero value while it does not listen.
	TargetEndpoint transport.Endpoint
	// Migrations is the migration configuration of the cluster, for migrations without
	// stored options; nil for KubeVirt's defaults.
	Migrations *v1.MigrationConfiguration
	// VMI is the object, from a live read if the cache does not have it; nil means that it
	// certainly does not exist.
	VMI *v1.VirtualMachineInstance
	// Pods are the Pods on this node that VMI controls, by its UID, as the API server has
	// them; see [Snapshot.Proof].
	Pods []*corev1.Pod
	// State is the domain here, with its live XML; nil if there is none.
	State *domain.State
	// StateUnknown is why it is unknown whether there is a domain here; nil if it is known. With
	// it State is nil, which is no evidence.
	StateUnknown error
	// Desired is the domain to start, from [convert.Convert]; nil while it is not needed.
	Desired *libvirtxml.Domain
	// CopyDisks are the targets of the disks that the migration has to copy.
	CopyDisks []string
	// CopyBytes is the size of their content; zero if unknown.
	CopyBytes int64
	// Destinations are the sources at the target of the volumes that the VMI's migration
	// replaces (status.migratedVolumes), by the name of the volume; for the source of the
	// migration.
	Destinations map[string]convert.DiskSource
	// Facts are the facts from which Desired was converted.
	Facts convert.Facts
	// Checksums are those of the VMI's images here; zero while unknown.
	Checksums status.Checksums
	// VerifyUntil is until when the target of a migration waits for Checksums; zero if it does
	// not.
	VerifyUntil time.Time
	// PrepareError is why the VMI cannot be prepared here; nil if it can.
	PrepareError error
	// Guest is the last report of the guest agent; nil if this process has none: the status
	// then keeps the last one.
	Guest *guestagent.Info
	// Credentials is the state of the propagation of access credentials
	// (spec.accessCredentials); nil if unknown.
	Credentials *status.CredentialSync
	// SilentSince is since when the hypervisor has not answered about the domain, so that
	// State is out of date; zero if State is current.
	SilentSince time.Time
	// Failures are the actions for the VMI that failed in the last pass of this process, in
	// their order.
	Failures []action.Failure
	// Migrating says that this process carries out a migration of the VMI.
	Migrating bool
	// MigrationFailure is why the last migration of this process failed.
	MigrationFailure string
	// MigrationEnded is when the last migration of this process ended; zero without one.
	MigrationEnded time.Time
	// MigrationActive says that the hypervisor carries out a migration of the domain, whichever
	// process started it.
	MigrationActive bool
	// Progress is the last progress of that migration from the hypervisor; nil if there is
	// none, or it is unknown.
	Progress *domain.Progress
	// Shown is the progress to store in the status ([status.MigrationProgress]); nil without
	// one. It changes at intervals, to limit the writes of the status.
	Shown *domain.Progress
	// MigrationMode is the last mode from the [migrate.Monitor] of this process; empty if it
	// monitors no migration of the VMI.
	MigrationMode v1.MigrationMode
	// OrphanedUIDs are the UIDs of objects with this name, other than VMI, that have files on
	// the node.
	OrphanedUIDs []types.UID
}

// Plan is the result of a decision: the object to store first, and the actions after that.
type Plan struct {
	// VMI is the object to store; nil if there is none.
	VMI *v1.VirtualMachineInstance
	// Actions are to be carried out in order once VMI is stored, and not if that fails.
	Actions []action.Action
	// RequeueAt is when to decide again even without an event; nil for never.
	RequeueAt *time.Time
	// Events are to be emitted once VMI is stored, and not if that fails. They describe
	// changes: a plan without a change of VMI has none.
	Events []Event
	// Differences are those between the wanted and the running domain; empty if there are
	// none, or the two were not compared.
	Differences []diff.Difference
	// Role is the role of this node for the VMI.
	Role handoff.Role
}

// Event is an event about the object (Kubernetes: Event).
type Event struct {
	// Warning says that the event has type Warning instead of Normal.
	Warning bool
	// Reason is a word in CamelCase, KubeVirt's if it has one.
	Reason string
	// Message is a description for users.
	Message string
}
