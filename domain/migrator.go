// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
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
	// meanwhile ([ErrDisconnected]) the migration goes on, and its outcome is open: ask
	// both sides. With any other error the state of the domain tells what is certain:
	// Paused/PostcopyFailed is a guest that runs, or waits, at the target without some
	// of its memory, and can only be resumed ([MigrationRequest.Resume]);
	// Paused/Migration is one whose switch the target has not confirmed, so that both
	// sides have to be asked; in all others the guest is here and nowhere else, unless
	// the answer of the destination was lost: then it may run there too, if the request
	// was not Paused.
	Migrate(ctx context.Context, req MigrationRequest) error

	// MigrationProgress returns how far the migration of that domain has come;
	// Active is false if there is none, and the rest then tells, at either end, how its
	// last one ended, if the hypervisor knows. Unknown domain: [ErrNotFound].
	MigrationProgress(ctx context.Context, name string) (Progress, error)

	// AbortMigration cancels a migration, also one that was asked for here and has not
	// begun; that it has ended is seen by Migrate's return. None running: success. A
	// guest that runs at the target by post-copy cannot come back: [ErrInvalidState].
	AbortMigration(ctx context.Context, name string) error
}

// MigrationRequest asks for one live migration. The zero value of an option
// leaves the hypervisor's default.
type MigrationRequest struct {
	// Migration is the migration's UID: a hypervisor that remembers it does not begin it
	// twice. Empty for one that may be begun whenever it is asked for.
	Migration types.UID
	// Domain is the name of the running domain.
	Domain string
	// DestinationURI is how the hypervisor here reaches the one there:
	// qemu+tcp://192.0.2.7/system.
	DestinationURI string
	// MigrateURI is where the guest's memory goes, tcp://192.0.2.7 or
	// unix:///path; empty lets the destination choose. DisksURI is the same for disks
	// that are copied; empty is where the memory goes, and a unix MigrateURI needs one.
	MigrateURI, DisksURI string
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
	// MaxDowntime is how long the guest may stand still at the switch, up to
	// [MaxDowntimeCeiling]; zero is the hypervisor's default (QEMU: 300 ms).
	MaxDowntime time.Duration
	// AutoConverge slows the guest down if it writes faster than is copied.
	AutoConverge bool
	// PostCopy allows a switch to post-copy later on.
	PostCopy bool
	// Parallel is the number of connections; 0 or 1: one. With PostCopy it is one in any
	// case: not every QEMU has both. Compression is how memory is compressed on
	// them: empty for not, or zstd; where there is one connection, or the hypervisor
	// cannot do it, the migration is refused as [ErrUnsupported].
	Parallel    int
	Compression string
	// Resume goes on with a migration whose connection broke after the switch to
	// post-copy, when neither side can run the guest alone. The rest of the request is
	// that of the migration. One that breaks off again, or that the hypervisor finishes
	// by itself, is an error; the state of the domain tells which.
	Resume bool
	// Paused lets the guest arrive with its CPUs stopped. That is also how a guest is
	// kept from running twice where the hypervisor here lets it run on when it has not
	// heard that it runs there (libvirt: the answer to Finish is lost): whoever asked for
	// it resumes it at the destination, once it is known to have stopped here.
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
	// BytesPerSecond is the rate of the memory copy, DirtyBytesPerSecond the rate at
	// which the guest rewrites its memory; zero if not known.
	BytesPerSecond, DirtyBytesPerSecond uint64
	// Throttle is by how many percent the guest is slowed down (auto-converge).
	Throttle int
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

// Left is how long the rest takes at the present rates; false if it will never be done
// at them, or they are not known.
func (p Progress) Left() (time.Duration, bool) {
	if p.BytesPerSecond <= p.DirtyBytesPerSecond {
		return 0, false
	}
	seconds := float64(p.Remaining) / float64(p.BytesPerSecond-p.DirtyBytesPerSecond)
	return time.Duration(min(seconds, maxMove) * float64(time.Second)), true
}

// MigrationTuner is the ability to change a migration that is running. Found by type
// assertion. None running: [ErrInvalidState].
type MigrationTuner interface {
	// SetMaxDowntime sets how long the guest may stand still at the switch.
	SetMaxDowntime(ctx context.Context, name string, d time.Duration) error
	// SetMigrationBandwidth limits the rate in MiB/s; 0: no limit.
	SetMigrationBandwidth(ctx context.Context, name string, mib uint64) error
}
