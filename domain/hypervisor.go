// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"fmt"

	"libvirt.org/go/libvirtxml"
)

// Hypervisor is the virtualization daemon of one node.
//
// All methods are safe for concurrent use. A method returns when its context ends, with an
// error that wraps [ErrTimeout] (deadline) or context.Canceled; the requested operation may
// still happen afterwards. An unresponsive domain delays no call about another one. Without
// a connection to the daemon methods return [ErrDisconnected] at once; the driver reconnects
// by itself, so callers only retry.
type Hypervisor interface {
	// Host describes the node. It is cheap after the first call; the caller may change the
	// result.
	Host(ctx context.Context) (Host, error)

	// List returns every domain, running or not, with or without [Metadata], sorted by name,
	// with name, UUID, status and reason; metadata and live XML come from Get. Listings are
	// authoritative where events are only hints, and cheap enough for every tick: one bulk
	// call, whose cost does not depend on the activity of any single domain.
	List(ctx context.Context) ([]State, error)

	// Get returns one domain with its live XML (the inactive XML if it does not run), or
	// [ErrNotFound].
	Get(ctx context.Context, name string) (State, error)

	// Apply carries out one operation and returns when the hypervisor has accepted it; see
	// [Verb] for when each one is done. Operations are idempotent: one whose goal is reached
	// already is a success. An operation on a domain that does not exist is [ErrNotFound],
	// except for Start, Destroy and Undefine.
	Apply(ctx context.Context, op Operation) error

	// Watch returns a stream of hints that a domain should be read again. It begins with a
	// Resync. It never blocks the hypervisor: hints that wait are merged, one per domain,
	// and none is lost. A lost connection is reported by one Lost event, the reconnect by a
	// Resync. The channel is closed when ctx ends or the driver is closed.
	Watch(ctx context.Context) (<-chan Event, error)
}

// Verb is the kind of an [Operation].
type Verb string

// The verbs of an Operation.
const (
	// Start defines the domain from Operation.Definition and starts it. A running domain
	// and its definition stay unchanged. Done when the domain runs, or is paused if
	// Operation.Paused is set.
	Start Verb = "Start"
	// Shutdown requests a graceful shutdown. Done when the guest has received the request;
	// the state of the domain shows whether it complies. A domain that does not run:
	// success. A paused one cannot react: ErrInvalidState.
	Shutdown Verb = "Shutdown"
	// Destroy force-stops the domain. Done when no process runs it any more. A domain
	// unknown or not running: success.
	Destroy Verb = "Destroy"
	// Undefine removes a domain that does not run, with everything the hypervisor stores
	// about it except firmware variables. Unknown: success. Running: ErrInvalidState.
	Undefine Verb = "Undefine"
	// Suspend pauses the domain's CPUs, Resume lets them run again. Done when the state has
	// changed. A domain that does not run: ErrInvalidState.
	Suspend Verb = "Suspend"
	Resume  Verb = "Resume"
	// SetMetadata replaces the [Metadata], in the running domain and in its definition. Done
	// when it is stored.
	SetMetadata Verb = "SetMetadata"
	// AttachDevice, DetachDevice and UpdateDevice change Operation.Device, identified by its
	// alias, in the running domain and in its definition. An attach that the definition
	// rejects is reverted in the running domain. Attach of a device that is present and
	// detach of one that is absent: success; update of one that is absent: ErrNotFound.
	// Detach is done when the guest has received the request to release the device; a guest
	// that has not booted yet ignores it, so callers repeat it as often as they like.
	AttachDevice Verb = "AttachDevice"
	DetachDevice Verb = "DetachDevice"
	UpdateDevice Verb = "UpdateDevice"
	// Reset restarts the domain at once, like a reset button, in the same process. Reboot
	// requests a restart from the guest: from its agent if Operation.Agent is set (no
	// response: ErrNoAgent), else by its power button. Both are done when requested. A
	// domain that does not run, and for Reboot a paused one: ErrInvalidState.
	Reset  Verb = "Reset"
	Reboot Verb = "Reboot"
	// SetVCPUs sets the number of CPUs to Operation.VCPUs, in the definition and, if it
	// runs, in the domain. Done when the hypervisor has hotplugged them; the guest may take
	// a moment to use them. More than the domain's maximum: ErrInvalid.
	SetVCPUs Verb = "SetVCPUs"
	// ResizeDisk grows the disk with the alias Operation.Disk to Operation.Bytes, or to the
	// size of the block device behind it if that is zero. Done when the guest has been
	// notified. A disk never shrinks: a smaller size than it has is ErrInvalid, the same
	// size a success. A domain that does not run: ErrInvalidState; no such disk: ErrNotFound.
	ResizeDisk Verb = "ResizeDisk"
)

// Device is a device of libvirtxml: *DomainDisk, *DomainInterface and so on.
type Device = libvirtxml.Document

// Operation is one change to one domain: data, so that it can be logged,
// compared and replayed.
type Operation struct {
	// Verb is the kind of the operation; it decides which of the fields below apply.
	Verb Verb
	// Domain is the name of the domain.
	Domain string
	// Definition is the domain to Start. It must not be changed afterwards.
	Definition *libvirtxml.Domain
	// Paused makes Start leave the domain's CPUs stopped.
	Paused bool
	// Metadata is the metadata that SetMetadata stores.
	Metadata Metadata
	// Device is the device of AttachDevice, DetachDevice and UpdateDevice.
	Device Device
	// Agent makes Reboot use the guest agent instead of the power button.
	Agent bool
	// VCPUs is the number of CPUs for SetVCPUs.
	VCPUs uint
	// Disk is the alias of the disk to resize, ua-root, and Bytes its new size.
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

// requirements has, for every verb, a function that returns the missing part of an
// operation; empty if it is complete.
var requirements = map[Verb]func(Operation) string{
	Start:        lacksDefinition,
	AttachDevice: lacksDevice,
	DetachDevice: lacksDevice,
	UpdateDevice: lacksDevice,
	SetVCPUs:     func(o Operation) string { return missingUnless(o.VCPUs > 0, "a number of CPUs") },
	ResizeDisk:   func(o Operation) string { return missingUnless(o.Disk != "", "a disk") },
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

func lacksDevice(o Operation) string { return missingUnless(o.Device != nil, "a device") }

func lacksDefinition(o Operation) string {
	if o.Definition == nil {
		return "a definition"
	}
	return missingUnless(o.Definition.Name == o.Domain, "a definition of that name")
}

// missingUnless returns the missing part, or nothing if it is present.
func missingUnless(present bool, part string) string {
	if present {
		return ""
	}
	return part
}

// EventKind is the kind of an [Event].
type EventKind string

// The kinds of events.
const (
	// Changed: one domain was changed, created or removed.
	Changed EventKind = "Changed"
	// Resync: any domain may have changed; List again.
	Resync EventKind = "Resync"
	// Lost: the connection was lost, with the cause in Event.Err. A Resync follows after the
	// reconnect.
	Lost EventKind = "Lost"
)

// Event is a hint to read a domain again. It does not carry the state, which may have
// changed again since.
type Event struct {
	// Kind is the kind of the event.
	Kind EventKind
	// Domain is the name, for Changed.
	Domain string
	// Why is the last cause for Changed, for logs only: "Started", "DeviceRemoved".
	Why string
	// Err is the cause, for Lost.
	Err error
}
