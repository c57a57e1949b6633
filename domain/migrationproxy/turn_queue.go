// SPDX-License-Identifier: Apache-2.0

package migrationproxy

import (
	"context"
	"slices"
	"sync"
)

// line serializes connections in the order in which they joined; work before their turn is
// concurrent. Nil serializes nothing.
type line struct {
	mu      sync.Mutex
	waiting []turn // it is the first one's turn
}

// turn is a connection's place in a line; it is closed when its turn has come.
type turn chan struct{}

// join appends a connection to the line. All that join have to leave.
func (l *line) join() turn {
	its := make(turn)
	if l == nil {
		close(its)
		return its
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, its)
	if len(l.waiting) == 1 {
		close(its)
	}
	return its
}

// leave gives the turn to the next connection, after those that joined earlier: a connection may
// fail before its own turn.
func (l *line) leave(its turn) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting, its)
	l.waiting = slices.Delete(l.waiting, i, i+1)
	if i == 0 && len(l.waiting) > 0 {
		close(l.waiting[0])
	}
}

// await returns nil when its turn has come, unless the context ends first.
func (its turn) await(ctx context.Context) error {
	select {
	case <-its:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
