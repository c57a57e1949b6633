// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"
)

// Migrator is the ability of a [Hypervisor] to migrate a running domain to another one.
// Found by type assertion.
type Migrator interface {
	// Migrate migrates a running domain and returns when it runs at the target and has
	// stopped here, or when it is certain that it still runs here. The domain stays defined
	// here as Shutoff/Migrated until it is undefined. The end of the context aborts the
	// migration: Migrate then waits for the hypervisor's confirmation, and returns an error
	// that wraps [ErrMigrationAborted], or nil if the migration was complete already. A call
	// of AbortMigration yields the same error. If the connection is lost meanwhile
	// ([ErrDisconnected]) the migration continues with an open outcome: ask both sides. After
	// any other error the state of the domain shows what is certain. Paused/PostcopyFailed: the
	// domain runs, or waits, at the target without some of its memory, and the migration can
	// only be resumed ([MigrationRequest.Resume]). Paused/Migration: the target has not
	// confirmed the switch, so both sides have to be asked. In all other states the domain is
	// here alone, unless the answer of the destination was lost: then it may run there too, if
	// the request was not Paused.
	Migrate(ctx context.Context, req MigrationRequest) error

	// MigrationProgress returns the progress of the domain's migration. If there is none,
	// Active is false and the rest, at either end, describes the last one, if the hypervisor
	// knows it. Unknown domain: [ErrNotFound].
	MigrationProgress(ctx context.Context, name string) (Progress, error)

	// AbortMigration cancels a migration, including one that was requested here and has not
	// started; Migrate returns when it has ended. No migration: success. A domain that runs
	// at the target by post-copy cannot return: [ErrInvalidState].
	AbortMigration(ctx context.Context, name string) error
}

// MigrationRequest describes one live migration. The zero value of an option stands for the
// hypervisor's default.
type MigrationRequest struct {
	// Migration is the UID of the migration: a hypervisor that remembers it does not start it
	// twice. Empty for one that may be started with each request.
	Migration types.UID
	// Domain is the name of the running domain.
	Domain string
	// DestinationURI is the URI of the destination's hypervisor as this hypervisor reaches it:
	// qemu+tcp://192.0.2.7/system.
	DestinationURI string
	// MigrateURI is the destination of the memory, tcp://192.0.2.7 or unix:///path; empty lets
	// the destination choose. DisksURI is the destination of copied disks; empty is that of the
	// memory. A unix MigrateURI requires a DisksURI.
	MigrateURI, DisksURI string
	// Definition is the definition of the domain at the destination; nil for the present one.
	// It may differ only in parts that the guest cannot see.
	Definition *libvirtxml.Domain
	// CopyDisks are the targets (vda) of the disks whose content is copied as well; see
	// [status.CopyDisks]. The destination needs a file of the same size.
	CopyDisks []string
	// Unsafe asserts that both sides see the same data on the disks that are not copied,
	// whatever the hypervisor concludes from the file system.
	Unsafe bool
	// BandwidthMiB limits the rate in MiB/s; 0: no limit.
	BandwidthMiB uint64
	// MaxDowntime is the longest standstill at the switch, up to [migrate.MaxDowntimeCeiling];
	// zero is the hypervisor's default (QEMU: 300 ms).
	MaxDowntime time.Duration
	// AutoConverge throttles a guest that writes memory faster than it is copied.
	AutoConverge bool
	// PostCopy allows a switch to post-copy later on.
	PostCopy bool
	// Parallel is the number of connections; 0 or 1: one. With PostCopy it is one in any case,
	// since not every QEMU supports both. Compression is the method by which memory is
	// compressed on them: empty for none, or zstd; with one connection, or a hypervisor without
	// the method, the migration is rejected with [ErrUnsupported].
	Parallel    int
	Compression string
	// Resume continues a migration whose connection was lost after the switch to post-copy,
	// when neither side can run the domain alone. The rest of the request is that of the
	// migration. Another loss of the connection, and a migration that the hypervisor completes
	// by itself, are errors; the state of the domain shows which.
	Resume bool
	// Paused lets the domain arrive with its CPUs stopped. This also prevents that the domain
	// runs twice where the source's hypervisor lets it continue when it misses the confirmation
	// of the destination (libvirt: the answer to Finish is lost): the caller resumes the domain
	// at the destination once it is known to have stopped here.
	Paused bool
}

// Progress is how far a migration has come.
type Progress struct {
	// Active says that a migration is in progress.
	Active bool
	// Elapsed is the time since its start.
	Elapsed time.Duration
	// Total, Processed and Remaining count bytes, memory and disks together.
	Total, Processed, Remaining uint64
	// Iteration counts passes over the memory.
	Iteration uint64
	// Downtime is the expected, or the measured, standstill at the switch.
	Downtime time.Duration
	// BytesPerSecond is the rate of the memory copy, DirtyBytesPerSecond the rate at which the
	// guest rewrites its memory; zero if unknown.
	BytesPerSecond, DirtyBytesPerSecond uint64
	// Throttle is the throttling of the guest in percent (auto-converge).
	Throttle int
	// PostCopy says that the domain runs at the destination already.
	PostCopy bool
}

// PostCopier is the ability to switch a running migration, requested with
// MigrationRequest.PostCopy, to post-copy: the domain runs at the destination before all of
// its memory has arrived. Found by type assertion.
type PostCopier interface {
	// SwitchToPostCopy returns when the switch has been accepted. No such migration:
	// [ErrInvalidState].
	SwitchToPostCopy(ctx context.Context, name string) error
}

// maxLeft bounds Progress.left, in seconds: a year, so that no rate, however low, overflows a time.Duration.
const maxLeft = 365 * 24 * 60 * 60

// left returns the remaining time at the present rates, a year at most; false if the
// migration cannot complete at these rates, or they are unknown.
func (p Progress) left() (time.Duration, bool) {
	if p.BytesPerSecond <= p.DirtyBytesPerSecond {
		return 0, false
	}
	seconds := float64(p.Remaining) / float64(p.BytesPerSecond-p.DirtyBytesPerSecond)
	return time.Duration(min(seconds, maxLeft) * float64(time.Second)), true
}

// MigrationTuner is the ability to change a running migration. Found by type assertion.
// Without one its methods return [ErrInvalidState].
type MigrationTuner interface {
	// SetMaxDowntime sets the longest standstill at the switch.
	SetMaxDowntime(ctx context.Context, name string, d time.Duration) error
	// SetMigrationBandwidth limits the rate in MiB/s; 0: no limit.
	SetMigrationBandwidth(ctx context.Context, name string, mib uint64) error
}

// Sockets are the paths of the sockets for migrations. The hypervisor may run in another
// mount namespace than this process and see them at other paths.
type Sockets struct {
	// Control is the hypervisor's own socket, as this process sees it.
	Control string
	// Outside is the directory for the sockets of migrations as this process sees it,
	// Inside the same directory as the hypervisor sees it.
	Outside, Inside string
	// Own says that the hypervisor behind Control runs that one domain and is confined with
	// it, as in a launcher Pod: access to Control gives power over that domain alone.
	Own bool
}

// SocketMigrator is the ability of a [Migrator] to be reached by unix sockets of the node,
// so that it need not listen on any network. Found by type assertion.
type SocketMigrator interface {
	// MigrationSockets returns the paths for a domain of that name, which need not exist
	// yet. The directory exists.
	MigrationSockets(ctx context.Context, name string) (Sockets, error)
}
