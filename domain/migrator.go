// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"time"

	"libvirt.org/go/libvirtxml"
)

// Migrator is the ability of a [Hypervisor] to move a running guest to another
// one. Found by type assertion.
type Migrator interface {
	// Migrate moves a running guest and returns when it runs at the target and
	// has stopped here, or when it is certain that it still runs here. The
	// domain stays defined here as Shutoff/Migrated until it is undefined. A
	// cancelled context aborts the migration: Migrate then waits until the
	// hypervisor has confirmed, and returns an error that wraps
	// [ErrMigrationAborted], or nil if the guest had moved already. The same
	// error tells that AbortMigration was called. If the connection is lost
	// meanwhile ([ErrDisconnected]) the outcome is open: ask both sides.
	Migrate(ctx context.Context, req MigrationRequest) error

	// MigrationProgress returns how far the migration of that domain has come;
	// Active is false if there is none. Unknown domain: [ErrNotFound].
	MigrationProgress(ctx context.Context, name string) (Progress, error)

	// AbortMigration cancels a running migration. None running: success.
	AbortMigration(ctx context.Context, name string) error
}

// MigrationRequest asks for one live migration. The zero value of an option
// leaves the hypervisor's default.
type MigrationRequest struct {
	// Domain is the name of the running domain.
	Domain string
	// DestinationURI is how the hypervisor here reaches the one there:
	// qemu+tcp://192.0.2.7/system.
	DestinationURI string
	// MigrateURI is where the guest's memory goes, tcp://192.0.2.7; empty lets
	// the destination choose.
	MigrateURI string
	// Definition is the domain as it shall be at the destination; nil for as it
	// is. Only what the guest cannot see may differ.
	Definition *libvirtxml.Domain
	// CopyDisks are the targets (vda) of the disks whose content has to travel
	// as well; see [CopyDisks]. The destination needs a file of the same size.
	CopyDisks []string
	// Unsafe vouches for the disks that are not copied: both sides see the same
	// data, whatever the hypervisor thinks of the file system.
	Unsafe bool
	// BandwidthMiB limits the rate in MiB/s; 0: no limit.
	BandwidthMiB uint64
	// MaxDowntime is how long the guest may stand still at the switch.
	MaxDowntime time.Duration
	// AutoConverge slows the guest down if it writes faster than is copied.
	AutoConverge bool
	// PostCopy allows a switch to post-copy later on.
	PostCopy bool
	// Parallel is the number of connections; 0 or 1: one.
	Parallel int
	// Paused lets the guest arrive with its CPUs stopped.
	Paused bool
}

// Progress tells how far a migration has come.
type Progress struct {
	// Active says that a migration is going on.
	Active bool
	// Elapsed is the time since its start.
	Elapsed time.Duration
	// Total, Processed and Remaining count bytes, memory and disks together.
	Total, Processed, Remaining uint64
	// Iteration counts passes over the memory.
	Iteration uint64
	// Downtime is the expected, or the measured, standstill at the switch.
	Downtime time.Duration
	// BytesPerSecond is the rate of the memory copy.
	BytesPerSecond uint64
	// PostCopy says that the guest runs at the destination already.
	PostCopy bool
}

// PostCopier is the ability to finish a running migration, requested with
// MigrationRequest.PostCopy, by letting the guest run at the destination before
// all of its memory is there. Found by type assertion.
type PostCopier interface {
	// SwitchToPostCopy returns when the switch has been accepted. No such
	// migration running: ErrInvalidState.
	SwitchToPostCopy(ctx context.Context, name string) error
}
