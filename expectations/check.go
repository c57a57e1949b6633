// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Check tells whether the cache shows every write of the owner. It costs a few nanoseconds when nothing is outstanding.
func (t *Tracker) Check(o Owner) Verdict {
	if t.outstanding.Load() == 0 {
		return Verdict{}
	}
	entries := t.entriesOf(o.Key)
	if len(entries) == 0 {
		return Verdict{}
	}
	return t.verdict(o, entries, t.now())
}

func (t *Tracker) verdict(o Owner, entries []*entry, now time.Time) Verdict {
	var v Verdict
	for _, e := range entries {
		if e.owner.UID != o.UID {
			if now.Sub(e.since) >= t.ttl {
				t.drop(e, Succeeded)
			}
			continue
		}
		p, due, open := t.pending(e, now)
		if !open {
			continue
		}
		v.Pending = append(v.Pending, p)
		if p.Problem != NoProblem {
			v.State = Expired
		}
		if v.Deadline.IsZero() || due.Before(v.Deadline) {
			v.Deadline = due
		}
	}
	switch {
	case len(v.Pending) == 0:
		return Verdict{}
	case v.State == Expired:
		v.Deadline = time.Time{}
	default:
		v.State, v.RequeueAfter = Waiting, v.Deadline.Sub(now)
	}
	slices.SortStableFunc(v.Pending, func(a, b Pending) int { return a.Since.Compare(b.Since) })
	return v
}

func (t *Tracker) pending(e *entry, now time.Time) (p Pending, due time.Time, open bool) {
	ob := t.objectShard(e.ref)
	ob.mu.Lock()
	if !e.open {
		ob.mu.Unlock()
		return Pending{}, time.Time{}, false
	}
	p = Pending{
		Ref: e.ref, Verb: e.verb, Since: e.since,
		Needs: e.needs, Seen: e.seen, Problem: e.problem, entry: e,
	}
	due = e.since.Add(e.due)
	first := false
	if p.Problem == NoProblem && !now.Before(due) {
		p.Problem, first, e.told = Overdue, !e.told, true
	}
	ob.mu.Unlock()
	if e.verb == Delete {
		p.Needs = string(e.uid)
	}
	if first {
		t.tellTroubled(e, Overdue)
	}
	return p, due, true
}

// Answer feeds back the live read of one pending write, made after the Check that reported it and answered by the
// server's current state: a read without resourceVersion. live is nil when the server says that the object does not
// exist. The finding tells what became of the write; if it is not settled, the next Check tells how long to wait. A
// reading that nobody asked for is taken as well. Answer does not wake the owner: its own pass is what reads.
func (t *Tracker) Answer(p Pending, live metav1.Object) Finding {
	e := p.entry
	if e == nil {
		return Shown
	}
	now := at{age: t.now().Sub(e.since), ttl: t.ttl}
	ob := t.objectShard(e.ref)
	ob.mu.Lock()
	if !e.open {
		ob.mu.Unlock()
		return Shown
	}
	before := e.problem
	found := e.answer(live, now)
	if found.Settled() {
		t.close(ob, e)
	}
	alarm := e.problem != before && e.problem != NoProblem
	ob.mu.Unlock()
	switch {
	case found == Shown:
		t.tellSettled(e, ByLiveRead)
	case found == Disproved:
		t.tellSettled(e, ByDisproof)
	case alarm:
		t.tellTroubled(e, Incomparable)
	}
	return found
}
