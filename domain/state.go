// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"time"

	"libvirt.org/go/libvirtxml"
)

// Status is the life cycle status of a domain, by KubeVirt's names.
type Status string

// The statuses a hypervisor reports.
const (
	StatusNoState      Status = "NoState"
	StatusRunning      Status = "Running"
	StatusBlocked      Status = "Blocked"
	StatusPaused       Status = "Paused"
	StatusShuttingDown Status = "ShuttingDown"
	StatusShutoff      Status = "Shutoff"
	StatusCrashed      Status = "Crashed"
	StatusPMSuspended  Status = "PMSuspended"
)

// Reason tells how a domain came into its status, by KubeVirt's names. Which
// reasons occur with which status is what libvirt defines (virDomain*Reason).
type Reason string

// The reasons a hypervisor reports. Some occur with more than one status.
const (
	ReasonUnknown      Reason = "Unknown"
	ReasonUser         Reason = "User"
	ReasonShutdown     Reason = "Shutdown"
	ReasonDestroyed    Reason = "Destroyed"
	ReasonCrashed      Reason = "Crashed"
	ReasonPanicked     Reason = "Panicked"
	ReasonMigrated     Reason = "Migrated"
	ReasonSaved        Reason = "Saved"
	ReasonFailed       Reason = "Failed"
	ReasonFromSnapshot Reason = "FromSnapshot"
	ReasonMigration    Reason = "Migration"
	ReasonSave         Reason = "Save"
	ReasonDump         Reason = "Dump"
	ReasonIOError      Reason = "IOError"
	ReasonWatchdog     Reason = "Watchdog"
	ReasonShuttingDown Reason = "ShuttingDown"
	ReasonSnapshot     Reason = "Snapshot"
	ReasonStartingUp   Reason = "StartingUp"
	// ReasonPostcopy goes with a migration after the switch to post-copy: Paused at the
	// source, and Running at the target, where the guest is ahead of its memory.
	// ReasonPostcopyFailed is the same on either side once the connection has broken.
	ReasonPostcopy       Reason = "Postcopy"
	ReasonPostcopyFailed Reason = "PostcopyFailed"
)

// State is what a hypervisor knows about one domain at one moment.
type State struct {
	// Name is the domain's name, <namespace>_<name> for ours; see [Name].
	Name string
	// UUID is the domain's UUID in lower case with hyphens.
	UUID string
	// Status and Reason tell what the domain does and why.
	Status Status
	Reason Reason
	// Metadata is what we stored in the domain; the zero value if there is
	// nothing of ours in it (Metadata.UID is then empty). Get fills it, List does
	// not.
	Metadata Metadata
	// Domain is the live XML, with what the hypervisor added. Get fills it,
	// List leaves it nil.
	Domain *libvirtxml.Domain
	// Stale is since when the hypervisor owes an answer about the domain: Status and
	// Reason are then by the last listing, the rest is what was known before. Only
	// an [Informer] and a [Fleet] set it; the zero value is a state answered in full.
	Stale time.Time
}

// Alive tells whether there is, or may be, a process that runs the guest: every
// status but Shutoff, Crashed and the empty one.
func (s *State) Alive() bool {
	switch s.Status {
	case "", StatusShutoff, StatusCrashed:
		return false
	}
	return true
}

// Ours tells whether the domain carries our metadata.
func (s *State) Ours() bool { return s.Metadata.UID != "" }
