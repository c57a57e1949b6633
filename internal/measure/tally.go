// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"regexp"
	"sync"
)

// Labels are the label values of a [Tally]. Unused ones are empty.
type Labels [3]string

// Tally counts current objects, by labels. A count of zero is removed, so that a deleted node
// leaves no series behind. It is safe for concurrent use; its zero value is empty.
type Tally struct {
	mu     sync.Mutex
	counts map[Labels]int // guarded by mu
}

// Add adds n, which may be negative, to the count under the labels.
func (t *Tally) Add(n int, l Labels) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[Labels]int{}
	}
	if t.counts[l] += n; t.counts[l] == 0 {
		delete(t.counts, l)
	}
}

// Each emits every non-zero count, with the first labels of its key.
func (t *Tally) Each(labels int, emit Emit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, n := range t.counts {
		emit(float64(n), key[:labels]...)
	}
}

// Other is the label value for all values beyond the bound.
const Other = "Other"

// word matches the form of reasons in Kubernetes.
var word = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.,:-]{0,63}$`)

// Limited bounds the values of a label that other programs set, such as the reason of a
// condition: the first values that have the form of a reason are kept, all others become
// [Other]. It is safe for concurrent use. Create it with NewLimited.
type Limited struct {
	most int
	mu   sync.Mutex
	seen map[string]bool // guarded by mu
}

// NewLimited returns a bound of most values in addition to Other. The known values count first.
func NewLimited(most int, known ...string) *Limited {
	l := &Limited{most: most, seen: map[string]bool{}}
	for _, k := range known {
		l.Value(k)
	}
	return l
}

// Value returns the bounded label value of v.
func (l *Limited) Value(v string) string {
	if !word.MatchString(v) {
		return Other
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.seen[v]:
		return v
	case len(l.seen) >= l.most:
		return Other
	}
	l.seen[v] = true
	return v
}
