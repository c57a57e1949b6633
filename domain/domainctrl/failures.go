// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
)

// Pauses before a failed task is tried again double from the first to the longest one, which is
// shorter for tasks that let a domain end or go on. A task that has not been tried for retryForget
// counts as new.
const (
	retryMost   = time.Minute
	retryUrgent = 5 * time.Second
	retryForget = 10 * time.Minute
)

// failures remembers, for each VMI, which of its last tasks failed, for the next pass to report,
// and when they may be tried again. That depends on the task, not on the text of its error: a text
// that differs each time must not defeat the pause. The zero value is ready; safe for concurrent
// use.
type failures struct {
	mu    sync.Mutex
	known map[types.NamespacedName]*trials
}

// trials are those of one VMI.
type trials struct {
	last  []action.Failure
	tasks map[string]*trial
}

// trial is a failed task, with the number of failures in a row.
type trial struct {
	action.Failure
	times int
	next  time.Time
}

// note stores which tasks of a pass failed, or are still pausing after a failure.
func (t *failures) note(key types.NamespacedName, failed []action.Failure, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.known[key]
	if all == nil {
		return // nothing has failed
	}
	all.last = failed
	maps.DeleteFunc(all.tasks, func(_ string, l *trial) bool { return now.Sub(l.next) > retryForget })
	if len(all.last) == 0 && len(all.tasks) == 0 {
		delete(t.known, key)
	}
}

// of returns the failed tasks of the VMI's last pass.
func (t *failures) of(key types.NamespacedName) []action.Failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	if all := t.known[key]; all != nil {
		return all.last
	}
	return nil
}

// waits returns the failure after which the task has to wait; nil if it may be tried.
func (t *failures) waits(key types.NamespacedName, task action.Action, now time.Time) *action.Failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.known[key]
	if all == nil {
		return nil
	}
	l := all.tasks[task.Key()]
	if l == nil || !now.Before(l.next) {
		return nil
	}
	return &l.Failure
}

// failed notes that a task failed, and returns the failure to report: the previous one if it has
// the same cause. news reports whether the cause is another one.
func (t *failures) failed(key types.NamespacedName, f action.Failure, now time.Time) (reported action.Failure, news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil {
		t.known = map[types.NamespacedName]*trials{}
	}
	all := t.known[key]
	if all == nil {
		all = &trials{tasks: map[string]*trial{}}
		t.known[key] = all
	}
	l := all.tasks[f.Action.Key()]
	if l == nil {
		l = &trial{}
		all.tasks[f.Action.Key()] = l
	}
	news = l.times == 0 || !l.SameCause(f)
	if news {
		l.Failure = f
	}
	most := retryMost
	if urgent(f.Action) {
		most = retryUrgent
	}
	l.next = now.Add(min(failedRetry<<min(l.times, 10), most))
	l.times++
	return l.Failure, news
}

// urgent reports whether the task lets a guest end or go on, or records metadata needed for that.
func urgent(t action.Action) bool {
	switch t.Operation.Verb {
	case domain.Destroy, domain.Shutdown, domain.Undefine, domain.Resume, domain.SetMetadata:
		return true
	}
	return t.Verb != action.Apply
}

// done notes that a task was carried out.
func (t *failures) done(key types.NamespacedName, task action.Action) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if all := t.known[key]; all != nil {
		delete(all.tasks, task.Key())
	}
}

// forget drops everything about a VMI that this node no longer serves.
func (t *failures) forget(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.known, key)
}

// next returns when the first of the failed tasks may be tried again; zero if none failed.
func (t *failures) next(key types.NamespacedName) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	var at time.Time
	all := t.known[key]
	if all == nil {
		return at
	}
	for _, f := range all.last {
		if l := all.tasks[f.Action.Key()]; l != nil && (at.IsZero() || l.next.Before(at)) {
			at = l.next
		}
	}
	return at
}

// lastEvents remembers the last event of each VMI, so that it is recorded once. The zero value is
// ready; safe for concurrent use.
type lastEvents struct {
	mu       sync.Mutex
	recorded map[types.NamespacedName]string
}

// news reports whether there is an event of the VMI other than the last. Empty is no event, and
// forgets the last.
func (n *lastEvents) news(key types.NamespacedName, what string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if what == "" {
		delete(n.recorded, key)
		return false
	}
	if n.recorded[key] == what {
		return false
	}
	if n.recorded == nil {
		n.recorded = map[types.NamespacedName]string{}
	}
	n.recorded[key] = what
	return true
}

// silences remembers since when the hypervisor has been unresponsive about a domain. The zero value
// is ready; safe for concurrent use.
type silences struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// note returns since when the domain has been unresponsive: since, unless an earlier call has set
// it.
func (s *silences) note(name string, since time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if was, silent := s.since[name]; silent {
		return was
	}
	if s.since == nil {
		s.since = map[string]time.Time{}
	}
	s.since[name] = since
	return since
}

// over notes that the hypervisor has answered about the domain.
func (s *silences) over(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.since, name)
}
