// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"time"

	"libvirt.org/go/libvirtxml"
)

// Status is the life cycle status of a domain, with KubeVirt's names.
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

// Reason is why a domain is in its status, with KubeVirt's names. libvirt defines the reasons
// of each status (virDomain*Reason).
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
	// ReasonPostcopy is that of a migration after the switch to post-copy: Paused at the
	// source, and Running at the target, where the domain runs before all of its memory has
	// arrived. ReasonPostcopyFailed is the same on either side once the connection is lost.
	ReasonPostcopy       Reason = "Postcopy"
	ReasonPostcopyFailed Reason = "PostcopyFailed"
)

// State is the state of one domain at one moment, as its hypervisor reports it.
type State struct {
	// Name is the domain's name, <namespace>_<name> for ours; see [Name].
	Name string
	// UUID is the domain's UUID in lower case with hyphens.
	UUID string
	// Status and Reason are the life cycle status of the domain and its cause.
	Status Status
	Reason Reason
	// Metadata is the metadata stored in the domain; the zero value, with an empty UID, if
	// there is none of [MetadataNamespace]. Get sets it, List does not.
	Metadata Metadata
	// Domain is the live XML, including the additions of the hypervisor. Get sets it, List
	// does not.
	Domain *libvirtxml.Domain
	// Stale is the time since which the hypervisor has not answered about the domain:
	// Status and Reason are then those of the last listing, the rest is from before. Only
	// an [informer.Informer] and a [fleet.Fleet] set it; it is zero for a complete answer.
	Stale time.Time
}

// Alive reports whether a process runs the domain, or may run it: in every status except
// Shutoff, Crashed and the empty one.
func (s *State) Alive() bool {
	switch s.Status {
	case "", StatusShutoff, StatusCrashed:
		return false
	}
	return true
}

// Ours reports whether the domain carries [Metadata].
func (s *State) Ours() bool { return s.Metadata.UID != "" }

// Held reports whether the domain has arrived by a migration and waits, with its CPUs stopped, until its source has
// stored that it has left; see [Metadata.Held].
func (s *State) Held() bool {
	return s.Status == StatusPaused && s.Reason == ReasonUser && s.Metadata.Held
}

// Busy reports whether an operation under way, such as a snapshot or the end of a migration, has stopped the domain's
// CPUs, so that resuming them would interfere.
func (s *State) Busy() bool {
	switch s.Reason {
	case ReasonPostcopy, ReasonPostcopyFailed, ReasonStartingUp, ReasonSave, ReasonDump, ReasonSnapshot, ReasonShuttingDown:
		return true
	}
	return false
}
