// SPDX-License-Identifier: Apache-2.0

// Package retold keeps the words in which a controller tells of a failure that goes on. A condition that follows each
// new text of the same failure is a write, and the event of that write repeats the failing pass at once, whatever the
// back-off says.
package retold

import (
	"maps"
	"regexp"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// first is for how long a failure is told in the words of its second change. It doubles with each change.
	first = time.Second
	// longest is how far apart changes are at the most.
	longest = time.Minute
	// kept is after what time without a word a failure is forgotten; no back-off is as long.
	kept = time.Hour
)

// Text is what is told of a failure.
type Text struct{ Reason, Message string }

// Failures has the words in which the failure of each object was told. The zero value is ready; its methods are safe
// for concurrent use.
type Failures struct {
	mu sync.Mutex
	by map[types.NamespacedName]said // guarded by mu
	// swept is when what is not heard of any more was forgotten; guarded by mu.
	swept time.Time
}

// said is what was told last, when, and how often it has changed since the failure began.
type said struct {
	text    Text
	at      time.Time
	changes int
	// heard is when the failure was last heard of.
	heard time.Time
}

// Tell returns the words in which the failure of an object is to be told, and whether they are news. Those that differ
// in numbers and times alone are not. Others are, if the last change is long enough ago.
func (f *Failures) Tell(of types.NamespacedName, is Text, now time.Time) (words Text, news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sweep(now)
	was, known := f.by[of]
	next := said{text: is, at: now, changes: was.changes + 1, heard: now}
	switch {
	case !known:
		next.changes = 0
	case same(was.text, is), now.Before(was.at.Add(pause(was.changes))):
		next = was
		next.heard = now
	}
	f.by[of] = next
	return next.text, !known || next.changes != was.changes
}

// sweep forgets failures of which nothing was heard for long; mu is held.
func (f *Failures) sweep(now time.Time) {
	if f.by == nil {
		f.by, f.swept = map[types.NamespacedName]said{}, now
	}
	if now.Sub(f.swept) < kept {
		return
	}
	f.swept = now
	maps.DeleteFunc(f.by, func(_ types.NamespacedName, s said) bool { return now.Sub(s.heard) >= kept })
}

// Over forgets the failure of an object: what it did has worked, or it is gone.
func (f *Failures) Over(of types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.by, of)
}

// pause is for how long words stay that have changed so often before; the first change is told at once.
func pause(changes int) time.Duration {
	if changes == 0 {
		return 0
	}
	d := first
	for range changes - 1 {
		if d *= 2; d >= longest {
			return longest
		}
	}
	return d
}

// variable is what differs between two texts of one failure: numbers, quantities, times, addresses, identifiers in
// hexadecimal digits.
var variable = regexp.MustCompile(`\b[0-9a-fA-F]*[0-9][0-9a-fA-F.:TZ+-]*[a-zA-Zµ]{0,2}\b`)

func same(a, b Text) bool {
	return a == b || a.Reason == b.Reason && variable.ReplaceAllString(a.Message, "#") == variable.ReplaceAllString(b.Message, "#")
}
