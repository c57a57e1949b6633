// SPDX-License-Identifier: Apache-2.0

package migrationproxy

import (
	"context"
	"slices"
	"sync"
)

// line lets connections go on one after the other, in the order in which they joined;
// what goes ahead of its turn is done by all of them at once. Nil lets all of them go on.
type line struct {
	mu      sync.Mutex
	waiting []turn // the first has its turn
}

// turn is a connection's place in a line; it is closed when its turn has come.
type turn chan struct{}

// join goes to the line's end. All who join have to leave.
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

// leave lets the next one go on, whose turn does not come before that of all who joined
// earlier: a connection may fail before its own has come.
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
