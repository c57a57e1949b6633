// SPDX-License-Identifier: Apache-2.0

package domain

import "errors"

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
