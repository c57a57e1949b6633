// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Confirm records that the server accepted the write and replied with obj. The evidence needed becomes exact: the UID of a
// created object, the version of an updated one. Evidence seen in the meantime counts; evidence about another object of
// the same name, which had settled the creation, is discarded. obj may be nil when the reply carries no object, as for
// deletions. Confirm reports whether the write is settled. It wakes the owner only if a version seen in the meantime
// cannot be compared with the reply, which takes a live read.
//
// An object whose event came while the creation counted as settled by another one is known to the cache alone: passing the
// cached object to Seen after a Confirm that returns false spares the owner the wait for the TTL in this rare case.
func (t *Tracker) Confirm(tok Token, obj metav1.Object) (settled bool) {
	if tok.handle == nil {
		return true
	}
	ob, e := t.lock(&tok)
	if e == nil {
		refuted := obj != nil && tok.handle.refuted(obj)
		ob.mu.Unlock()
		if refuted {
			t.reopen(tok, obj)
		}
		return !refuted
	}
	is := e.confirm(obj)
	if is == settledNow {
		t.unlink(ob, e)
	}
	ob.mu.Unlock()
	switch is {
	case settledNow:
		t.reportSettled(e, ByReply)
		t.spare.Put(e)
	case alarming:
		t.reportTroubled(tok.write(Update), Incomparable)
		t.wake(tok.owner)
	}
	return is == settledNow
}

// reopen notes a creation again that was settled by a different object than the one created.
func (t *Tracker) reopen(tok Token, answer metav1.Object) {
	e := t.entry(&tok.owner, &tok.ref)
	e.verb, e.since = Create, tok.since
	e.uid, e.needs = answer.GetUID(), answer.GetResourceVersion()
	e.handle = tok.handle
	t.reportNoted(e)
	ob, _ := t.lock(&tok)
	tok.handle.entry = e
	t.link(ob, e)
	ob.mu.Unlock()
}

// Exists records that the server refused the creation because an object of that name exists. If names are intents, it
// is the intended object, made by an earlier attempt. The creation then waits until the cache shows the object, or its
// removal, which leaves the name free for another attempt. Exists reports whether the write is settled, because a
// removal was seen since the write was noted. It never wakes the owner.
//
// The object may have been in the cache all along, with no further event to come: pass the cached object to Seen next.
func (t *Tracker) Exists(tok Token) (settled bool) {
	return t.settle(tok, (*entry).taken, ByReply)
}

// Seen applies a reading of the cache, which is evidence for this write like an event, but does not wake the owner, whose
// own pass reads. Use it after a write that may have caused no event: a creation that found the object existing, an
// update that changed nothing, a deletion of an object that was terminating. A nil reading, a cache miss, proves nothing
// and changes nothing. Seen reports whether the write is settled.
func (t *Tracker) Seen(tok Token, cached metav1.Object) (settled bool) {
	return t.settle(tok, func(e *entry) bool {
		shown := cached != nil && e.read(cached)
		if shown {
			// The caller may change the object; its UID and version are copied.
			e.keepEarly(&metav1.ObjectMeta{UID: cached.GetUID(), ResourceVersion: cached.GetResourceVersion()})
		}
		return shown
	}, ByCache)
}

// settle ends the write, without waking its owner, if the given evidence is sufficient.
func (t *Tracker) settle(tok Token, evidence func(*entry) bool, by Evidence) (settled bool) {
	if tok.handle == nil {
		return true
	}
	ob, e := t.lock(&tok)
	if e == nil {
		ob.mu.Unlock()
		return true
	}
	settled = evidence(e)
	if settled {
		t.unlink(ob, e)
	}
	ob.mu.Unlock()
	if settled {
		t.reportSettled(e, by)
		t.spare.Put(e)
	}
	return settled
}

// Cancel takes a noted write back, because the server definitely refused it or, with the Token of a Pending, because the
// caller abandons it. Canceling twice, or after evidence came, does nothing. Never cancel on an error for which
// Classify returns Ambiguous: a live read, passed to Answer, settles it.
func (t *Tracker) Cancel(tok Token) {
	if tok.handle != nil {
		t.drop(&tok, Cancelled)
	}
}

// Forget drops every outstanding write of an owner.
func (t *Tracker) Forget(o Owner) {
	for _, tok := range t.writesOf(o.Key, func(e *entry) bool { return e.owner.UID == o.UID }) {
		t.drop(&tok, Forgotten)
	}
}

// ForgetKey drops the outstanding writes of every owner that had this key. Call it when the owner is not found.
func (t *Tracker) ForgetKey(key types.NamespacedName) {
	for _, tok := range t.writesOf(key, func(*entry) bool { return true }) {
		t.drop(&tok, Forgotten)
	}
}

// drop ends a write for which there is no evidence, if it is outstanding.
func (t *Tracker) drop(tok *Token, why DropReason) {
	ob, e := t.lock(tok)
	if e == nil {
		ob.mu.Unlock()
		return
	}
	t.unlink(ob, e)
	ob.mu.Unlock()
	t.reportDropped(e, why)
	t.spare.Put(e)
}
