// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"io"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/stats"
)

// The interfaces below are abilities of a [Hypervisor] beyond its five methods, as are
// [Migrator] and [PostCopier]. Each is found by type assertion; a driver that has the
// methods for a hypervisor whose version lacks the ability returns [ErrUnsupported]. The
// rules of Hypervisor for contexts, concurrency and lost connections apply. An unknown
// domain is [ErrNotFound], one that does not run [ErrInvalidState].

// GuestAgent is the ability to call the agent inside a guest. Without a responding agent,
// methods return [ErrNoAgent].
type GuestAgent interface {
	// GuestInfo asks the agent about the guest. Unknown fields are empty.
	GuestInfo(ctx context.Context, name string) (guestagent.Info, error)
	// Freeze flushes the guest's file systems and blocks all writes until Thaw. Both are
	// idempotent.
	Freeze(ctx context.Context, name string) error
	Thaw(ctx context.Context, name string) error
	// SetTime sets the guest's clock.
	SetTime(ctx context.Context, name string, now time.Time) error
	// AgentCommand sends a command in the agent's own JSON and returns its answer. The
	// command must come from an encoder; user input must not be concatenated into it.
	AgentCommand(ctx context.Context, name, command string) (string, error)
}

// StatsReader is the ability to report the resource usage of domains.
type StatsReader interface {
	// Stats returns the counters of every running domain, sorted by name, with one bulk
	// call. An unresponsive domain has the counters that are available without it.
	Stats(ctx context.Context) ([]stats.Domain, error)
}

// Snapshotter is the ability to take snapshots of a domain and to revert to them. The
// domain need not run.
type Snapshotter interface {
	// TakeSnapshot saves the domain's disks, and its memory if s.Memory is set, under the
	// name in s. The name exists, or memory of a domain that does not run:
	// [ErrInvalidState]. No name: [ErrInvalid]. Disks that cannot be saved, or not without
	// the memory of the running domain: [ErrUnsupported].
	TakeSnapshot(ctx context.Context, name string, s Snapshot) error
	// Snapshots returns the snapshots of the domain, oldest first.
	Snapshots(ctx context.Context, name string) ([]Snapshot, error)
	// RevertSnapshot returns the domain to a snapshot: one with memory runs from there,
	// one without is off. [Metadata] stays as it is now, since a snapshot does not decide
	// to which VMI the domain belongs. Unknown: [ErrNotFound].
	RevertSnapshot(ctx context.Context, name, snapshot string) error
	// DeleteSnapshot deletes a snapshot. Unknown: success.
	DeleteSnapshot(ctx context.Context, name, snapshot string) error
}

// Snapshot is a saved state of a domain.
type Snapshot struct {
	// Name identifies the snapshot within its domain.
	Name string
	// Memory says that the memory of the running domain is part of it.
	Memory bool
	// Created is the time at which it was taken; the hypervisor sets it.
	Created time.Time
}

// ConsoleOpener is the ability to connect to a domain's serial console.
type ConsoleOpener interface {
	// OpenConsole connects to the console with that alias; empty is the first. An unknown
	// alias is [ErrNotFound]. An earlier stream of the same console, opened with the same
	// driver, is closed. The stream ends with the context, with Close or with the domain:
	// Read then returns io.EOF or the cause.
	OpenConsole(ctx context.Context, name, alias string) (io.ReadWriteCloser, error)
}

// MemoryHotplugger is the ability to hotplug memory by [AttachDevice] and [UpdateDevice] of
// a *libvirtxml.DomainMemorydev.
type MemoryHotplugger interface {
	// MemoryModel returns the model of memory device that the hypervisor has for domains
	// of that architecture, x86_64; [ErrUnsupported] if it has none.
	MemoryModel(ctx context.Context, arch string) (MemoryModel, error)
}

// MemoryModel is a model of memory device.
type MemoryModel string

// The models, by libvirt's names.
const (
	// VirtioMem grows and shrinks in blocks.
	VirtioMem MemoryModel = "virtio-mem"
	// DIMM is plugged and unplugged as a whole.
	DIMM MemoryModel = "dimm"
)

var _ Device = (*libvirtxml.DomainMemorydev)(nil)
