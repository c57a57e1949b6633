// SPDX-License-Identifier: Apache-2.0

// Package relay delivers queued values to a channel.
// Package relay delivers merged values to the receiver of a channel: the events of a driver
// (domain.Hints) and the changes of an informer (domain/informer).
//
// The owner of the values keeps them, merges new ones into those that wait, and signals on a channel
// with room for one token. [Deliver] runs in a goroutine per receiver: it takes one value at a time
// and blocks only itself on a slow receiver. It never merges, drops or reorders values itself, and
// does not close the output channel, which its caller does when it returns.
package relay

import (
	"context"
)

// Deliver sends the values that next returns to out, one after the other, until ctx ends or next
// reports closed. If next has no value (ok is false), Deliver waits for wake, which signals that
// there may be one. It does not close out.
func Deliver[T any](ctx context.Context, out chan<- T, wake <-chan struct{}, next func() (v T, ok, closed bool)) {
	for {
		v, ok, closed := next()
		if closed {
			return
		}
		if !ok {
			select {
			case <-wake:
			case <-ctx.Done():
				return
			}
			continue
		}
		select {
		case out <- v:
		case <-ctx.Done():
			return
		}
	}
}
