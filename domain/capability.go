// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"io"
	"time"

	"libvirt.org/go/libvirtxml"
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
	GuestInfo(ctx context.Context, name string) (GuestInfo, error)
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

// GuestInfo is the report of a guest agent.
type GuestInfo struct {
	// AgentVersion is the agent's version; Commands are those it has enabled,
	// sorted, such as guest-ping.
	AgentVersion string
	Commands     []string
	// Hostname and Timezone ("CET, 3600") are the guest's.
	Hostname, Timezone string
	// OS is the guest's operating system.
	OS GuestOS
	// Users are the users who are logged in.
	Users []GuestUser
	// Filesystems are the mounted file systems.
	Filesystems []GuestFilesystem
	// Interfaces are the guest's network interfaces, including the loopback.
	Interfaces []GuestInterface
	// Frozen says that the file systems are frozen; see [GuestAgent]. A frozen agent
	// reports little else, so the other fields are to be ignored.
	Frozen bool
}

// GuestOS is the operating system of a guest, with the field names of the agent's
// guest-get-osinfo.
type GuestOS struct {
	Name, ID, PrettyName, Version, VersionID, KernelRelease, KernelVersion, Machine string
}

// GuestUser is a user who is logged in.
type GuestUser struct {
	// Name and Domain (Windows) identify the user, LoginTime is the time of the login.
	Name, Domain string
	LoginTime    time.Time
}

// GuestFilesystem is a mounted file system.
type GuestFilesystem struct {
	// Name is the name of the device in the guest, Mountpoint the path at which it is
	// mounted, Type its file system type.
	Name, Mountpoint, Type string
	// UsedBytes and TotalBytes are its size; zero if unknown.
	UsedBytes, TotalBytes uint64
	// Disks are the targets (vda) of the disks below it, as far as they are known.
	Disks []string
}

// GuestInterface is a network interface as the guest sees it.
type GuestInterface struct {
	// Name is the guest's name for it (eth0), MAC its hardware address.
	Name, MAC string
	// IPs are its addresses without prefix lengths, in the agent's order.
	IPs []string
}

// StatsReader is the ability to report the resource usage of domains.
type StatsReader interface {
	// Stats returns the counters of every running domain, sorted by name, with one bulk
	// call. An unresponsive domain has the counters that are available without it.
	Stats(ctx context.Context) ([]Stats, error)
}

// Stats are the counters of one running domain, since the start of its process.
type Stats struct {
	// Name and UUID identify the domain.
	Name, UUID string
	// CPUTime is the time that all its CPUs have run, VCPUs has the time of each.
	CPUTime time.Duration
	VCPUs   []VCPUStats
	// Memory has the statistics of the balloon device.
	Memory MemoryStats
	// Disks and Interfaces are in the order of the domain.
	Disks      []DiskStats
	Interfaces []InterfaceStats
}

// VCPUStats are the counters of one virtual CPU.
type VCPUStats struct {
	// Time is how long it has run, Wait how long it has waited for a CPU of the host.
	Time, Wait time.Duration
}

// MemoryStats are the statistics of a domain's memory, in bytes; zero if unknown.
type MemoryStats struct {
	// Current is the memory of the guest, Resident the memory that its process uses on
	// the host.
	Current, Resident uint64
	// Available, Unused and Usable are the guest's own view.
	Available, Unused, Usable uint64
	// SwappedIn and SwappedOut are the amounts that the guest has swapped.
	SwappedIn, SwappedOut uint64
}

// DiskStats are the counters of a disk.
type DiskStats struct {
	// Target is the disk's target, vda; Alias the name in the spec, if it has one.
	Target, Alias string
	// ReadRequests and the fields after it count requests and bytes.
	ReadRequests, ReadBytes, WriteRequests, WriteBytes, FlushRequests uint64
	// Capacity is the size that the guest sees, Allocation the size on the host.
	Capacity, Allocation uint64
}

// InterfaceStats are the counters of a network interface.
type InterfaceStats struct {
	// Device is the host's device, Alias the name in the spec, if it has one.
	Device, Alias string
	// ReceivedBytes and the fields after it count the traffic as the guest sees it.
	ReceivedBytes, ReceivedPackets, ReceiveErrors, ReceiveDrops uint64
	SentBytes, SentPackets, SendErrors, SendDrops               uint64
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
