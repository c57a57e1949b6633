// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Check reports whether the cache shows every write of the owner. It costs a few nanoseconds when no write is outstanding.
//
// It also drops the overdue writes of previous owners of the key: they are deleted, and no caller will check for them.
func (t *Tracker) Check(o Owner) Verdict {
	if t.idle(t.ownerHash(&o.Key)) {
		return Verdict{}
	}
	now := t.now()
	for _, tok := range t.writesOf(o.Key, func(e *entry) bool { return e.owner.UID != o.UID && now.Sub(e.since) >= t.ttl }) {
		t.drop(&tok, Succeeded)
	}
	return t.verdict(t.writesOf(o.Key, func(e *entry) bool { return e.owner.UID == o.UID }), now)
}

// Pending returns the outstanding writes of all owners of a key, oldest first, for diagnosis: it drops no write and does
// not call the Observer.
func (t *Tracker) Pending(key types.NamespacedName) []Pending {
	if t.idle(t.ownerHash(&key)) {
		return nil
	}
	now := t.now()
	var all []Pending
	for _, tok := range t.writesOf(key, func(*entry) bool { return true }) {
		ob, e := t.lock(&tok)
		if e != nil {
			p := e.pending()
			if p.Problem == NoProblem && !now.Before(e.since.Add(e.due)) {
				p.Problem = Overdue
			}
			all = append(all, p)
		}
		ob.mu.Unlock()
	}
	slices.SortStableFunc(all, func(a, b Pending) int { return a.Since.Compare(b.Since) })
	return all
}

func (t *Tracker) verdict(writes []Token, now time.Time) Verdict {
	var v Verdict
	for i := range writes {
		p, due, open := t.pending(&writes[i], now)
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

// pending returns the description of a write; open reports whether it is outstanding.
func (t *Tracker) pending(tok *Token, now time.Time) (p Pending, due time.Time, open bool) {
	ob, e := t.lock(tok)
	if e == nil {
		ob.mu.Unlock()
		return p, due, false
	}
	p = e.pending()
	due = e.since.Add(e.due)
	first := false
	if p.Problem == NoProblem && !now.Before(due) {
		p.Problem, first, e.told = Overdue, !e.told, true
	}
	ob.mu.Unlock()
	if first {
		t.reportTroubled(p.token.write(p.Verb), Overdue)
	}
	return p, due, true
}

func (e *entry) pending() Pending {
	p := Pending{
		Ref: e.ref, Verb: e.verb, Since: e.since, Needs: e.needs, Seen: e.seen, Problem: e.problem,
		token: e.token(),
	}
	if e.verb == Delete {
		p.Needs = string(e.uid)
	}
	return p
}

// Answer evaluates the live read of one pending write. The read must follow the Check that reported the write and return
// the server's current state: a read without resourceVersion. live is nil when the server reports that the object does
// not exist. The finding is the result for the write; if it is not settled, the next Check returns how long to wait. A
// live read that was not requested is accepted too. Answer does not wake the owner, because the owner's own pass reads.
func (t *Tracker) Answer(p Pending, live metav1.Object) Finding {
	if p.token.handle == nil {
		return Shown
	}
	now := at{age: t.now().Sub(p.Since), ttl: t.ttl}
	ob, e := t.lock(&p.token)
	if e == nil {
		ob.mu.Unlock()
		return Shown
	}
	before := e.problem
	found := e.answer(live, now)
	if found.Settled() {
		t.unlink(ob, e)
	}
	alarm := found == Unordered && before != Incomparable
	ob.mu.Unlock()
	switch {
	case found.Settled():
		by := ByLiveRead
		if found == Disproved {
			by = ByDisproof
		}
		t.reportSettled(e, by)
		t.spare.Put(e)
	case alarm:
		t.reportTroubled(p.token.write(p.Verb), Incomparable)
	}
	return found
}
