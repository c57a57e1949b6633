// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher/launcherpb"
)

// meaning is a sentinel of package domain, and its name on the wire.
type meaning struct {
	kind launcherpb.Kind
	err  error
	code codes.Code
}

// meanings are all sentinels; the code is that of the first match.
var meanings = []meaning{
	{launcherpb.Kind_KIND_NOT_FOUND, domain.ErrNotFound, codes.NotFound},
	{launcherpb.Kind_KIND_DISCONNECTED, domain.ErrDisconnected, codes.Unavailable},
	{launcherpb.Kind_KIND_UNSUPPORTED, domain.ErrUnsupported, codes.Unimplemented},
	{launcherpb.Kind_KIND_INVALID_STATE, domain.ErrInvalidState, codes.FailedPrecondition},
	{launcherpb.Kind_KIND_INVALID, domain.ErrInvalid, codes.InvalidArgument},
	{launcherpb.Kind_KIND_NO_AGENT, domain.ErrNoAgent, codes.FailedPrecondition},
	{launcherpb.Kind_KIND_MIGRATION_ABORTED, domain.ErrMigrationAborted, codes.Aborted},
	{launcherpb.Kind_KIND_NOT_READY, domain.ErrNotReady, codes.Unavailable},
	{launcherpb.Kind_KIND_MIGRATION_UNSAFE, domain.ErrMigrationUnsafe, codes.FailedPrecondition},
	{launcherpb.Kind_KIND_TIMEOUT, domain.ErrTimeout, codes.DeadlineExceeded},
	{launcherpb.Kind_KIND_DEADLINE, context.DeadlineExceeded, codes.DeadlineExceeded},
	{launcherpb.Kind_KIND_CANCELED, context.Canceled, codes.Canceled},
}

// Error is an error of a launcher. errors.Is finds the sentinels of package domain that it means.
type Error struct {
	// Op is the operation, Domain its domain; may be empty.
	Op, Domain string
	// Message is the launcher's text, unchanged.
	Message string

	means []error
}

// Error returns the operation and the launcher's text.
func (e *Error) Error() string {
	if e.Domain == "" {
		return "launcher: " + e.Op + ": " + e.Message
	}
	return "launcher: " + e.Op + " " + e.Domain + ": " + e.Message
}

// Unwrap returns the sentinels that the error means.
func (e *Error) Unwrap() []error { return e.means }

// toWire converts an error to a message; nil is an empty one.
func toWire(err error) *launcherpb.Error {
	if err == nil {
		return &launcherpb.Error{}
	}
	out := &launcherpb.Error{Message: validUTF8(err.Error())}
	for _, m := range meanings {
		if errors.Is(err, m.err) {
			out.Kinds = append(out.Kinds, m.kind)
		}
	}
	return out
}

// fromWire converts a message to an error; nil for an empty one.
func fromWire(op, name string, in *launcherpb.Error) error {
	if in.GetMessage() == "" && len(in.GetKinds()) == 0 {
		return nil
	}
	out := &Error{Op: op, Domain: name, Message: shortWireText(in.GetMessage())}
	for _, m := range meanings {
		if slices.Contains(in.GetKinds(), m.kind) {
			out.means = append(out.means, m.err)
		}
	}
	return out
}

// toStatus converts the error of a server's call.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, already := status.FromError(err); already {
		return err
	}
	wire, code := toWire(err), codes.Unknown
	for _, m := range meanings {
		if errors.Is(err, m.err) {
			code = m.code
			break
		}
	}
	s := status.New(code, wire.Message)
	if detailed, err := s.WithDetails(wire); err == nil {
		s = detailed
	}
	return s.Err()
}

// transportMeans are the meanings of statuses that gRPC itself has made.
var transportMeans = map[codes.Code]error{
	codes.Unavailable:       domain.ErrDisconnected,
	codes.Canceled:          domain.ErrDisconnected,
	codes.DeadlineExceeded:  domain.ErrTimeout,
	codes.Unimplemented:     domain.ErrUnsupported,
	codes.ResourceExhausted: domain.ErrInvalid,
	codes.InvalidArgument:   domain.ErrInvalid,
}

// fromStatus converts the error of a client's call.
func fromStatus(ctx context.Context, op, name string, err error) error {
	if err == nil {
		return nil
	}
	s, _ := status.FromError(err)
	for _, d := range s.Details() {
		if wire, ours := d.(*launcherpb.Error); ours {
			return fromWire(op, name, wire)
		}
	}
	if s.Code() == codes.Canceled || s.Code() == codes.DeadlineExceeded {
		awaitDeadline(ctx)
	}
	if ended := contextError(ctx, op, name); ended != nil {
		return ended
	}
	out := &Error{Op: op, Domain: name, Message: shortWireText(s.Message())}
	if means := transportMeans[s.Code()]; means != nil {
		out.means = []error{means}
	}
	return out
}

// skew is by how much a launcher, or the transport, may be ahead of a call's context in seeing that its deadline has passed: a
// launcher has a timer of its own, and resets the stream when that fires.
const skew = 100 * time.Millisecond

// awaitDeadline waits for the deadline of a context if it is due within that time.
func awaitDeadline(ctx context.Context) {
	soon, cancel := context.WithTimeout(ctx, skew)
	defer cancel()
	<-soon.Done()
}

// contextError is the error of a call whose context has ended; nil while it has not.
func contextError(ctx context.Context, op, name string) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, err) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", domain.ErrTimeout, err)
	}
	return fmt.Errorf("launcher: %s %s: %w", op, name, err)
}
