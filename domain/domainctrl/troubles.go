// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
)

// Pauses before a task that has failed is tried again double from the first to the longest
// one, which is shorter for what lets a guest end or go on. What has not been tried for
// retryForget counts as new.
const (
	retryMost   = time.Minute
	retryUrgent = 5 * time.Second
	retryForget = 10 * time.Minute
)

// troubles remembers, for each guest, which of its last tasks failed, so that the
// next pass can tell, and when they may be tried again. That goes by the task, not by
// how its failure reads: a text that is another one each time must not beat the pause.
// The zero value is ready; safe for concurrent use.
type troubles struct {
	mu    sync.Mutex
	known map[types.NamespacedName]*trials
}

// trials are those of one guest.
type trials struct {
	last  []domain.Trouble
	tasks map[string]*trial
}

// trial is a task that has failed, so many times in a row.
type trial struct {
	domain.Trouble
	times int
	next  time.Time
}

// note stores which tasks of a pass failed, or had to wait after they had.
func (t *troubles) note(key types.NamespacedName, failed []domain.Trouble, now time.Time) {
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

// of returns the tasks of the guest's last pass that failed.
func (t *troubles) of(key types.NamespacedName) []domain.Trouble {
	t.mu.Lock()
	defer t.mu.Unlock()
	if all := t.known[key]; all != nil {
		return all.last
	}
	return nil
}

// waits returns the failure after which the task has to wait; nil if it may be tried.
func (t *troubles) waits(key types.NamespacedName, task domain.Task, now time.Time) *domain.Trouble {
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
	return &l.Trouble
}

// failed notes that a task was tried in vain, and returns how that is to be told: as before
// if it is the same cause. news is whether it is another one.
func (t *troubles) failed(key types.NamespacedName, f domain.Trouble, now time.Time) (told domain.Trouble, news bool) {
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
	l := all.tasks[f.Task.Key()]
	if l == nil {
		l = &trial{}
		all.tasks[f.Task.Key()] = l
	}
	news = l.times == 0 || !l.SameCause(f)
	if news {
		l.Trouble = f
	}
	most := retryMost
	if urgent(f.Task) {
		most = retryUrgent
	}
	l.next = now.Add(min(failedRetry<<min(l.times, 10), most))
	l.times++
	return l.Trouble, news
}

// urgent reports whether a guest waits for the task to end or to go on, or what it needs for
// that is noted by it.
func urgent(t domain.Task) bool {
	switch t.Operation.Verb {
	case domain.Destroy, domain.Shutdown, domain.Undefine, domain.Resume, domain.SetMetadata:
		return true
	}
	return t.Verb != domain.TaskApply
}

// done notes that a task was carried out.
func (t *troubles) done(key types.NamespacedName, task domain.Task) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if all := t.known[key]; all != nil {
		delete(all.tasks, task.Key())
	}
}

// forget drops what is remembered of a guest that is nothing to this node.
func (t *troubles) forget(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.known, key)
}

// next is when the first of the tasks that failed may be tried again; zero if none did.
func (t *troubles) next(key types.NamespacedName) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	var at time.Time
	all := t.known[key]
	if all == nil {
		return at
	}
	for _, f := range all.last {
		if l := all.tasks[f.Task.Key()]; l != nil && (at.IsZero() || l.next.Before(at)) {
			at = l.next
		}
	}
	return at
}

// notices remembers what was last told of each guest, so that it is told once. The
// zero value is ready; safe for concurrent use.
type notices struct {
	mu   sync.Mutex
	told map[types.NamespacedName]string
}

// news reports whether there is something to tell of the guest that was not what
// was told last. Empty is nothing to tell, and forgets what was.
func (n *notices) news(key types.NamespacedName, what string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if what == "" {
		delete(n.told, key)
		return false
	}
	if n.told[key] == what {
		return false
	}
	if n.told == nil {
		n.told = map[types.NamespacedName]string{}
	}
	n.told[key] = what
	return true
}

// silences remembers since when the hypervisor has not answered about a domain. The
// zero value is ready; safe for concurrent use.
type silences struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// note returns since when the domain is silent: from since on, unless that was noted
// before.
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
