// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"errors"
	"strings"
)

// What may go wrong at a [Hypervisor]. Drivers wrap these, so that a caller
// decides by errors.Is and never by text.
var (
	// ErrNotFound: there is no domain of that name, no device of that alias, no
	// snapshot of that name.
	ErrNotFound = errors.New("not found")
	// ErrNoHypervisor: no hypervisor is known that serves the domain, so that nothing is
	// known of it either: it may run. Errors that wrap it wrap ErrNotFound as well.
	ErrNoHypervisor = errors.New("no hypervisor serves it")
	// ErrDisconnected: the hypervisor cannot be reached at the moment; what was
	// asked may or may not have happened. The driver reconnects by itself.
	ErrDisconnected = errors.New("hypervisor disconnected")
	// ErrUnsupported: this hypervisor, or this version, cannot do it.
	ErrUnsupported = errors.New("not supported")
	// ErrInvalidState: the domain is in a state that does not allow it.
	ErrInvalidState = errors.New("invalid state for the operation")
	// ErrInvalid: the request itself is wrong; repeating it cannot help.
	ErrInvalid = errors.New("invalid request")
	// ErrTimeout: the deadline passed; what was asked may still happen.
	ErrTimeout = errors.New("timed out")
	// ErrNoAgent: no guest agent answers in the domain, or it does not know the
	// command.
	ErrNoAgent = errors.New("guest agent does not answer")
	// ErrMigrationAborted: the migration was cancelled; the guest runs on at
	// the source.
	ErrMigrationAborted = errors.New("migration aborted")
	// ErrNotReady: what shall run the guest is not there yet; it comes by itself.
	ErrNotReady = errors.New("not ready")
	// ErrBroken: what was begun for the guest on this node was not finished, and nobody
	// knows how far it came. It does not come right by itself.
	ErrBroken = errors.New("broken")
	// ErrMigrationUnsafe: the hypervisor refuses because it does not know the
	// disks to be shared; see [MigrationRequest.Unsafe].
	ErrMigrationUnsafe = errors.New("migration considered unsafe")
)

// Error is something in a spec, or on a node, that cannot be turned into a
// domain. It tells the owner of the object what to change.
type Error struct {
	// Object names what is wrong: "VirtualMachineInstance ns/name".
	Object string
	// Field is the path in the object, spec.domain.devices.disks[0].disk.bus;
	// empty if no single field is to blame.
	Field string
	// Reason tells what is wrong with it.
	Reason string
	// Remedy tells what to do about it; may be empty.
	Remedy string
	// Err is the cause, or a sentinel such as ErrUnsupported; may be nil.
	Err error
}

// Error implements error: object, field, reason, cause and remedy in one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Object)
	if e.Field != "" {
		b.WriteString(": " + e.Field)
	}
	b.WriteString(": " + e.Reason)
	if e.Err != nil && !errors.Is(ErrUnsupported, e.Err) && !errors.Is(ErrInvalid, e.Err) {
		b.WriteString(": " + e.Err.Error())
	}
	if e.Remedy != "" {
		b.WriteString(" (" + e.Remedy + ")")
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
