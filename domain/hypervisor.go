// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"libvirt.org/go/libvirtxml"
)

// Hypervisor is the virtualisation daemon of one node.
//
// All methods may be called from many goroutines. A method returns when its
// context ends, with an error that wraps [ErrTimeout] (deadline) or
// context.Canceled; what it had asked for may still happen afterwards. One
// domain that hangs delays no call that is about another one. Without a daemon
// on the other side methods return [ErrDisconnected] at once; the driver
// reconnects by itself, so trying again later is all a caller does.
type Hypervisor interface {
	// Host describes the node. The answer is cheap after the first call, and the
	// caller's own to change.
	Host(ctx context.Context) (Host, error)

	// List returns every domain, running or not, ours or not, sorted by name, with
	// name, UUID, status and reason; metadata and live XML are Get's. It is the
	// truth that events only hint at, and cheap enough to be asked for every tick:
	// one bulk question, whose cost does not depend on what a single domain is
	// doing.
	List(ctx context.Context) ([]State, error)

	// Get returns one domain with its live XML (the inactive one if it does not
	// run), or [ErrNotFound].
	Get(ctx context.Context, name string) (State, error)

	// Apply carries out one operation and returns when the hypervisor has
	// accepted it; see [Verb] for when each one is done. Every operation may be
	// repeated: one whose goal is reached already is a success. An operation on
	// a domain that does not exist is [ErrNotFound], except for Start, Destroy
	// and Undefine.
	Apply(ctx context.Context, op Operation) error

	// Watch returns a stream of hints about what to look at again. It begins
	// with a Resync. It never blocks the hypervisor: hints that wait are merged,
	// one per domain, and none is lost. When the connection breaks the watcher
	// is told by a Lost event, once, and after the reconnect by a Resync. The channel
	// is closed when ctx ends or the driver is closed.
	Watch(ctx context.Context) (<-chan Event, error)
}

// Host describes a node's hypervisor.
type Host struct {
	// Name is the node's host name as the hypervisor sees it.
	Name string
	// Arch is x86_64, aarch64 or s390x.
	Arch string
	// Hypervisor is its kind: QEMU or TEST.
	Hypervisor string
	// Version of the hypervisor, and LibraryVersion of the daemon, as
	// major.minor.release.
	Version, LibraryVersion string
	// KVM says that hardware virtualisation is usable for a real guest.
	KVM bool
	// KVMReason tells what KVM was concluded from.
	KVMReason string
	// Emulator is the path of the emulator binary; empty if there is none.
	Emulator string
	// CPUs is the number of host CPUs, MemoryBytes the host's memory.
	CPUs        int
	MemoryBytes uint64
	// Cells is the NUMA topology, in ascending order of ID; empty if the
	// hypervisor does not tell.
	Cells []Cell
}

// Clone returns a copy that shares nothing with h.
func (h Host) Clone() Host {
	h.Cells = slices.Clone(h.Cells)
	for i := range h.Cells {
		c := &h.Cells[i]
		c.CPUs, c.HugepagesKiB, c.Distances = slices.Clone(c.CPUs), slices.Clone(c.HugepagesKiB), maps.Clone(c.Distances)
	}
	return h
}

// Verb says what an [Operation] does.
type Verb string

// The verbs of an Operation.
const (
	// Start defines the domain from Operation.Definition and starts it. If it
	// runs already nothing happens, not even to its definition. Done when the
	// guest runs, or is paused if Operation.Paused is set.
	Start Verb = "Start"
	// Shutdown asks the guest to power off. Done when the guest has been asked;
	// whether it obeys is seen in its state. A domain not running: success. A
	// paused one cannot listen: ErrInvalidState.
	Shutdown Verb = "Shutdown"
	// Destroy ends the guest at once. Done when no process runs it any more. A
	// domain unknown or not running: success.
	Destroy Verb = "Destroy"
	// Undefine forgets a domain that does not run, with everything the
	// hypervisor keeps about it except firmware variables. Unknown: success.
	// Running: ErrInvalidState.
	Undefine Verb = "Undefine"
	// Suspend pauses the guest's CPUs, Resume lets them run again. Done when
	// the state has changed. A domain not running: ErrInvalidState.
	Suspend Verb = "Suspend"
	Resume  Verb = "Resume"
	// SetMetadata replaces our metadata, in the running domain as in the
	// definition. Done when it is stored.
	SetMetadata Verb = "SetMetadata"
	// AttachDevice, DetachDevice and UpdateDevice change Operation.Device, known
	// by its alias, in the running domain and the definition. An attach that the
	// definition refuses is taken back in the running domain. Attach of a device
	// already there and detach of one already gone: success; update of one that is
	// not there: ErrNotFound. Detach is done when
	// the guest has been asked to release it; one that has not booted yet hears
	// nothing and has to be asked again, as often as is liked.
	AttachDevice Verb = "AttachDevice"
	DetachDevice Verb = "DetachDevice"
	UpdateDevice Verb = "UpdateDevice"
	// Reset restarts the guest at once, as its reset button does, without a new
	// process. Reboot asks the guest to restart by itself: its agent if
	// Operation.Agent is set (nobody answers: ErrNoAgent), else its power button.
	// Both are done when asked. A domain not running, and for Reboot a paused one:
	// ErrInvalidState.
	Reset  Verb = "Reset"
	Reboot Verb = "Reboot"
	// SetVCPUs gives the running domain, if it runs, and its definition
	// Operation.VCPUs CPUs.
	// Done when the hypervisor has plugged them; the guest may take a moment to
	// use them. More than the domain has room for: ErrInvalid.
	SetVCPUs Verb = "SetVCPUs"
	// ResizeDisk makes the disk with the alias Operation.Disk Operation.Bytes
	// large, or as large as the block device behind it if that is zero. Done when
	// the guest has been told. A disk never shrinks: a smaller size than it has is
	// ErrInvalid, the same a success. A domain not running: ErrInvalidState; no
	// such disk: ErrNotFound.
	ResizeDisk Verb = "ResizeDisk"
)

// Device is a device of libvirtxml: *DomainDisk, *DomainInterface and so on.
type Device = libvirtxml.Document

// Operation is one change to one domain: data, so that it can be logged,
// compared and replayed.
type Operation struct {
	// Verb says what to do; it decides which of the fields below count.
	Verb Verb
	// Domain is the name of the domain.
	Domain string
	// Definition is the domain to Start. It must not be changed afterwards.
	Definition *libvirtxml.Domain
	// Paused lets Start leave the guest's CPUs stopped.
	Paused bool
	// Metadata is what SetMetadata stores.
	Metadata Metadata
	// Device is what AttachDevice, DetachDevice and UpdateDevice are about.
	Device Device
	// Agent lets Reboot ask the guest agent instead of pressing a button.
	Agent bool
	// VCPUs is the number of CPUs for SetVCPUs.
	VCPUs uint
	// Disk is the alias of the disk to resize, ua-root, and Bytes the size it shall
	// have.
	Disk  string
	Bytes uint64
}

// String returns verb and domain.
func (o Operation) String() string { return string(o.Verb) + " " + o.Domain }

// Validate checks that the operation is complete; drivers call it first. The
// error wraps [ErrInvalid].
func (o Operation) Validate() error {
	missing, known := requirements[o.Verb]
	if !known {
		return fmt.Errorf("operation %q: unknown verb: %w", o.Verb, ErrInvalid)
	}
	what := missing(o)
	if o.Domain == "" {
		what = "a domain name"
	}
	if what != "" {
		return fmt.Errorf("operation %s: needs %s: %w", o, what, ErrInvalid)
	}
	return nil
}

// requirements tell for every verb what an operation lacks; nothing if it is
// complete.
var requirements = map[Verb]func(Operation) string{
	Start:        lacksDefinition,
	AttachDevice: lacksDevice,
	DetachDevice: lacksDevice,
	UpdateDevice: lacksDevice,
	SetVCPUs:     func(o Operation) string { return unless(o.VCPUs > 0, "a number of CPUs") },
	ResizeDisk:   func(o Operation) string { return unless(o.Disk != "", "a disk") },
	Shutdown:     lacksNothing,
	Destroy:      lacksNothing,
	Undefine:     lacksNothing,
	Suspend:      lacksNothing,
	Resume:       lacksNothing,
	SetMetadata:  lacksNothing,
	Reset:        lacksNothing,
	Reboot:       lacksNothing,
}

func lacksNothing(Operation) string { return "" }

func lacksDevice(o Operation) string { return unless(o.Device != nil, "a device") }

func lacksDefinition(o Operation) string {
	if o.Definition == nil {
		return "a definition"
	}
	return unless(o.Definition.Name == o.Domain, "a definition of that name")
}

// unless is what is missing if there is none of it.
func unless(there bool, what string) string {
	if there {
		return ""
	}
	return what
}

// EventKind says what an [Event] is about.
type EventKind string

// The kinds of events.
const (
	// Changed: something about one domain changed, or it came or went.
	Changed EventKind = "Changed"
	// Resync: anything may have changed; List again.
	Resync EventKind = "Resync"
	// Lost: the connection broke; Event.Err tells why. A Resync follows when it
	// is back.
	Lost EventKind = "Lost"
)

// Event is a hint to look again. It tells nothing about the state, which may
// have changed again since.
type Event struct {
	// Kind says what the hint is about.
	Kind EventKind
	// Domain is the name, for Changed.
	Domain string
	// Why is the last cause for Changed, for logs only: "Started", "DeviceRemoved".
	Why string
	// Err is the cause, for Lost.
	Err error
}
