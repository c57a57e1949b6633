// SPDX-License-Identifier: Apache-2.0

// Package failuretext keeps the wording of a continuing failure in a controller's reports. A condition that follows each new
// text of the same failure is a write, and the event of that write repeats the failing pass at once, whatever the
// back-off is.
package failuretext

import (
	"maps"
	"regexp"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// first is how long the wording of the second change is kept. It doubles with each change.
	first = time.Second
	// longest is the maximum interval between changes.
	longest = time.Minute
	// kept is how long an unreported failure is remembered; no back-off is as long.
	kept = time.Hour
)

// Text is the report of a failure.
type Text struct{ Reason, Message string }

// Failures records the reported text of each object's failure. The zero value is ready; its methods are safe for
// concurrent use.
type Failures struct {
	mu sync.Mutex
	by map[types.NamespacedName]said // guarded by mu
	// swept is when unreported failures were last removed; guarded by mu.
	swept time.Time
}

// said is the last reported text, when it was reported, and how often it has changed since the failure began.
type said struct {
	text    Text
	at      time.Time
	changes int
	// heard is when the failure occurred last.
	heard time.Time
}

// Wording returns the text by which to report the failure of an object, and whether it is new. A text that differs in
// numbers and times alone is not new. Another text is, if the last change is long enough ago.
func (f *Failures) Wording(of types.NamespacedName, is Text, now time.Time) (words Text, news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sweep(now)
	was, known := f.by[of]
	next := said{text: is, at: now, changes: was.changes + 1, heard: now}
	switch {
	case !known:
		next.changes = 0
	case sameButNumbers(was.text, is), now.Before(was.at.Add(pause(was.changes))):
		next = was
		next.heard = now
	}
	f.by[of] = next
	return next.text, !known || next.changes != was.changes
}

// sweep removes failures that have not occurred for long; mu must be held.
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

// Over removes the failure of an object that has succeeded or was deleted.
func (f *Failures) Over(of types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.by, of)
}

// pause returns how long a text is kept after so many changes; the first change is reported at once.
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

// variable matches the parts in which two texts of one failure differ: numbers, quantities, times, addresses, hexadecimal
// identifiers.
var variable = regexp.MustCompile(`\b[0-9a-fA-F]*[0-9][0-9a-fA-F.:TZ+-]*[a-zA-Zµ]{0,2}\b`)

func sameButNumbers(a, b Text) bool {
	return a == b || a.Reason == b.Reason && variable.ReplaceAllString(a.Message, "#") == variable.ReplaceAllString(b.Message, "#")
}
