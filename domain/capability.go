// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"io"
	"time"

	"libvirt.org/go/libvirtxml"
)

// What follows are abilities of a [Hypervisor] beyond its five methods, as are
// [Migrator] and [PostCopier]. Each is found by type assertion; a driver that has
// the methods but meets a version that cannot do it answers [ErrUnsupported]. The
// rules of Hypervisor for contexts, concurrency and lost connections hold. An unknown
// domain is [ErrNotFound], one that does not run [ErrInvalidState].

// GuestAgent is the ability to talk to the agent inside a guest. Without an agent
// that answers, methods return [ErrNoAgent].
type GuestAgent interface {
	// GuestInfo asks the agent about the guest. What it does not know is left
	// empty.
	GuestInfo(ctx context.Context, name string) (GuestInfo, error)
	// Freeze flushes the guest's file systems and holds all writes until Thaw.
	// Frozen already, and not frozen, are successes.
	Freeze(ctx context.Context, name string) error
	Thaw(ctx context.Context, name string) error
	// SetTime sets the guest's clock.
	SetTime(ctx context.Context, name string, now time.Time) error
	// AgentCommand sends a command in the agent's own JSON and returns its answer.
	// The command has to be made by an encoder; nothing of a user's may be put
	// into it as text.
	AgentCommand(ctx context.Context, name, command string) (string, error)
}

// GuestInfo is what a guest agent tells.
type GuestInfo struct {
	// AgentVersion is the agent's version; Commands are those it has enabled,
	// sorted, such as guest-ping.
	AgentVersion string
	Commands     []string
	// Hostname and Timezone ("CET, 3600") are the guest's.
	Hostname, Timezone string
	// OS is the guest's operating system.
	OS GuestOS
	// Users are logged in.
	Users []GuestUser
	// Filesystems are mounted.
	Filesystems []GuestFilesystem
	// Interfaces are the guest's network interfaces, the loopback included.
	Interfaces []GuestInterface
	// Frozen says that the file systems are frozen; see [GuestAgent]. An agent may
	// tell little else then, so nothing else counts.
	Frozen bool
}

// GuestOS is the operating system of a guest by the names of the agent's
// guest-get-osinfo.
type GuestOS struct {
	Name, ID, PrettyName, Version, VersionID, KernelRelease, KernelVersion, Machine string
}

// GuestUser is a user who is logged in.
type GuestUser struct {
	// Name and Domain (Windows) tell who, LoginTime since when.
	Name, Domain string
	LoginTime    time.Time
}

// GuestFilesystem is a mounted file system.
type GuestFilesystem struct {
	// Name is the device's in the guest, Mountpoint where it is mounted, Type its
	// kind.
	Name, Mountpoint, Type string
	// UsedBytes and TotalBytes are its size; zero if they are not known.
	UsedBytes, TotalBytes uint64
	// Disks are the targets (vda) it lies on, as far as they are known.
	Disks []string
}

// GuestInterface is a network interface as the guest has it.
type GuestInterface struct {
	// Name is the guest's name for it (eth0), MAC its hardware address.
	Name, MAC string
	// IPs are its addresses without prefix lengths, in the agent's order.
	IPs []string
}

// StatsReader is the ability to count what guests use.
type StatsReader interface {
	// Stats returns the counters of every running domain, sorted by name, in one
	// bulk question. A domain that hangs has what is known without it.
	Stats(ctx context.Context) ([]Stats, error)
}

// Stats are the counters of one running domain. They begin with its process.
type Stats struct {
	// Name and UUID identify the domain.
	Name, UUID string
	// CPUTime is the time all its CPUs have run, VCPUs that of each.
	CPUTime time.Duration
	VCPUs   []VCPUStats
	// Memory is what its balloon tells.
	Memory MemoryStats
	// Disks and Interfaces are in the order of the domain.
	Disks      []DiskStats
	Interfaces []InterfaceStats
}

// VCPUStats are the counters of one CPU of a guest.
type VCPUStats struct {
	// Time is how long it has run, Wait how long it waited for the host.
	Time, Wait time.Duration
}

// MemoryStats tell about the memory of a guest, in bytes; zero if unknown.
type MemoryStats struct {
	// Current is what the guest has, Resident what its process takes on the host.
	Current, Resident uint64
	// Available, Unused and Usable are the guest's own view.
	Available, Unused, Usable uint64
	// SwappedIn and SwappedOut count what the guest has swapped.
	SwappedIn, SwappedOut uint64
}

// DiskStats are the counters of a disk.
type DiskStats struct {
	// Target is the disk's target, vda; Alias the name in the spec, if it has one.
	Target, Alias string
	// Requests and bytes since the start.
	ReadRequests, ReadBytes, WriteRequests, WriteBytes, FlushRequests uint64
	// Capacity is the size the guest sees, Allocation what it takes on the host.
	Capacity, Allocation uint64
}

// InterfaceStats are the counters of a network card.
type InterfaceStats struct {
	// Device is the host's device, Alias the name in the spec, if it has one.
	Device, Alias string
	// What the guest received and sent since the start.
	ReceivedBytes, ReceivedPackets, ReceiveErrors, ReceiveDrops uint64
	SentBytes, SentPackets, SendErrors, SendDrops               uint64
}

// Snapshotter is the ability to keep the state of a guest and return to it. Guests
// that do not run are welcome.
type Snapshotter interface {
	// TakeSnapshot keeps the guest's disks, and its memory if that is asked for,
	// under a name. A name that exists, and memory of a guest that does not run:
	// ErrInvalidState. No name: [ErrInvalid]. Disks that cannot be kept, or not
	// without the memory of the running guest: [ErrUnsupported].
	TakeSnapshot(ctx context.Context, name string, s Snapshot) error
	// Snapshots lists them, oldest first.
	Snapshots(ctx context.Context, name string) ([]Snapshot, error)
	// RevertSnapshot brings the guest back to what was kept; with memory it goes
	// on from there, without it is off. Our metadata stays what it is now: whose
	// the guest is has nothing to do with what was kept. Unknown: [ErrNotFound].
	RevertSnapshot(ctx context.Context, name, snapshot string) error
	// DeleteSnapshot forgets one. Unknown: success.
	DeleteSnapshot(ctx context.Context, name, snapshot string) error
}

// Snapshot is a state of a guest that was kept.
type Snapshot struct {
	// Name identifies it within its domain.
	Name string
	// Memory says that the memory of the running guest was kept too.
	Memory bool
	// Created is when; the hypervisor sets it.
	Created time.Time
}

// ConsoleOpener is the ability to talk to a guest's serial console.
type ConsoleOpener interface {
	// OpenConsole connects to the console with that alias; empty is the first. An
	// unknown alias: [ErrNotFound]. Whoever opened it before, with the same driver,
	// is cut off. The stream ends with the context, with Close or with the guest:
	// Read then returns io.EOF or what went wrong.
	OpenConsole(ctx context.Context, name, alias string) (io.ReadWriteCloser, error)
}

// MemoryHotplugger is the ability to give a running guest more memory by
// [AttachDevice] and [UpdateDevice] of a *libvirtxml.DomainMemorydev.
type MemoryHotplugger interface {
	// MemoryModel tells which model of memory device the hypervisor has for guests
	// of that architecture, x86_64; [ErrUnsupported] if it has none.
	MemoryModel(ctx context.Context, arch string) (MemoryModel, error)
}

// MemoryModel is a kind of memory device.
type MemoryModel string

// The models, by libvirt's names.
const (
	// VirtioMem grows and shrinks in blocks.
	VirtioMem MemoryModel = "virtio-mem"
	// DIMM comes and goes as a whole.
	DIMM MemoryModel = "dimm"
)

var _ Device = (*libvirtxml.DomainMemorydev)(nil)
