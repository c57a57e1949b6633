// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"

	"google.golang.org/grpc/stats"
)

// afterwards defers a call's side effect until its answer is sent: a server that a call ends closes
// the connection, and the caller would never get its answer.
type afterwards struct{}

type deedKey struct{}

// deed is the deferred function of a call; it belongs to the call's goroutine.
type deed struct{ do func() }

// later calls do when the call of ctx is answered, or at once outside of a call.
func later(ctx context.Context, do func()) {
	if d, ok := ctx.Value(deedKey{}).(*deed); ok {
		d.do = do
		return
	}
	do()
}

// TagRPC implements stats.Handler.
func (afterwards) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, deedKey{}, &deed{})
}

// HandleRPC implements stats.Handler.
func (afterwards) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, answered := s.(*stats.End); !answered {
		return
	}
	if d, ok := ctx.Value(deedKey{}).(*deed); ok && d.do != nil {
		d.do()
	}
}

// TagConn implements stats.Handler.
func (afterwards) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (afterwards) HandleConn(context.Context, stats.ConnStats) {}
