// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"errors"
	"strings"
)

// The errors of a [Hypervisor]. Drivers wrap them, so that callers decide by errors.Is and
// never by text.
var (
	// ErrNotFound: there is no domain of that name, no device of that alias, no
	// snapshot of that name.
	ErrNotFound = errors.New("not found")
	// ErrNoHypervisor: no known hypervisor serves the domain, so its state is unknown: it
	// may run. Errors that wrap it wrap ErrNotFound as well.
	ErrNoHypervisor = errors.New("no hypervisor serves the domain")
	// ErrDisconnected: the hypervisor is unreachable at the moment; the requested operation
	// may or may not have happened. The driver reconnects by itself.
	ErrDisconnected = errors.New("hypervisor disconnected")
	// ErrUnsupported: this hypervisor, or this version of it, does not support the operation.
	ErrUnsupported = errors.New("not supported")
	// ErrInvalidState: the state of the domain does not allow the operation.
	ErrInvalidState = errors.New("invalid state for the operation")
	// ErrInvalid: the request itself is invalid; a retry cannot succeed.
	ErrInvalid = errors.New("invalid request")
	// ErrTimeout: the deadline passed; the requested operation may still happen.
	ErrTimeout = errors.New("timed out")
	// ErrNoAgent: no guest agent answers in the domain, or it does not know the
	// command.
	ErrNoAgent = errors.New("guest agent does not answer")
	// ErrMigrationAborted: the migration was canceled; the domain still runs at the source.
	ErrMigrationAborted = errors.New("migration aborted")
	// ErrNotReady: the hypervisor or a resource of the VMI is not ready yet; it becomes
	// ready without any action of the caller.
	ErrNotReady = errors.New("not ready")
	// ErrBroken: an operation for the VMI on this node was interrupted at an unknown point.
	// A retry does not repair it.
	ErrBroken = errors.New("broken")
	// ErrMigrationUnsafe: the hypervisor rejected the migration because it does not know
	// that the disks are shared; see [MigrationRequest.Unsafe].
	ErrMigrationUnsafe = errors.New("migration considered unsafe")
)

// Error is a defect of a spec, or of a node, that prevents a domain. It names the change
// that its owner has to make.
type Error struct {
	// Object names the defective object: "VirtualMachineInstance ns/name".
	Object string
	// Field is the path in the object, spec.domain.devices.disks[0].disk.bus; empty if
	// the cause is not a single field.
	Field string
	// Reason is the defect.
	Reason string
	// Remedy is the change that repairs it; may be empty.
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
