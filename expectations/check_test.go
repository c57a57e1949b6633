// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/virtloom/virtloom/expectations"
)

// TestPending_ProblemIsThatOfCheck: Pending reports the same problem of each write as the Check of its owner.
func TestPending_ProblemIsThatOfCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		event []expectations.EventKind
		after time.Duration
		want  expectations.Problem
	}{
		"there is time":            {nil, time.Minute - 1, expectations.NoProblem},
		"the time has ended":       {nil, time.Minute, expectations.Overdue},
		"lost by a relist":         {[]expectations.EventKind{expectations.DeletedUnknown}, 0, expectations.Tombstone},
		"lost, the time has ended": {[]expectations.EventKind{expectations.DeletedUnknown}, time.Minute, expectations.Tombstone},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.ExpectDelete(owner, ref, "u1", "5")
			for _, kind := range tt.event {
				b.Observe(pods, object("u1", "5"), kind)
			}
			b.now = b.now.Add(tt.after)
			for _, pending := range [][]expectations.Pending{b.Pending(owner.Key), b.Check(owner).Pending} {
				if len(pending) != 1 || pending[0].Problem != tt.want {
					t.Errorf("pending is %v, want problem %q", pending, tt.want)
				}
			}
		})
	}
}

// TestCheck_OldestFirst: a creation that is outstanding again is as old as it was, whatever was noted meanwhile.
func TestCheck_OldestFirst(t *testing.T) {
	b := newBench(t)
	created := b.ExpectCreate(owner, ref)
	b.Observe(pods, object("u1", "5"), expectations.Updated)
	b.now = b.now.Add(time.Second)
	b.ExpectUpdate(owner, ref, "5", "99")
	b.Confirm(created, object("u2", "9")) // the object seen was its predecessor
	for name, pending := range map[string][]expectations.Pending{"Check": b.Check(owner).Pending, "Pending": b.Pending(owner.Key)} {
		var verbs []expectations.Verb
		for _, p := range pending {
			verbs = append(verbs, p.Verb)
		}
		if diff := cmp.Diff([]expectations.Verb{expectations.Create, expectations.Update}, verbs); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestCheck_DeadlineIsTheNearest: an old write that was given more time may be due after a new one.
func TestCheck_DeadlineIsTheNearest(t *testing.T) {
	b := newBench(t)
	b.ExpectUpdate(owner, ref, "900", "1000")
	b.now = b.now.Add(time.Minute)
	other := ref
	other.Name = "b"
	b.ExpectCreate(owner, other)
	b.now = b.now.Add(time.Second)
	b.answer(t, b.Check(owner).Pending[0], object("u1", "50"), expectations.ServerBehind)
	v := b.Check(owner)
	if v.State != expectations.Waiting || v.RequeueAfter != 59*time.Second || !v.Deadline.Equal(time.Unix(1120, 0)) {
		t.Errorf("%s until %s, again after %s; want to wait for the creation", v.State, v.Deadline, v.RequeueAfter)
	}
}

// TestCheck_ExpiredHasNoDeadline: there is nothing to wait for, even where another write has time.
func TestCheck_ExpiredHasNoDeadline(t *testing.T) {
	b := newBench(t)
	b.ExpectCreate(owner, ref)
	b.now = b.now.Add(time.Minute)
	b.ExpectUpdate(owner, ref, "5", "9")
	if v := b.Check(owner); v.State != expectations.Expired || !v.Deadline.IsZero() || v.RequeueAfter != 0 || len(v.Pending) != 2 {
		t.Errorf("%s until %s, again after %s, pending %v", v.State, v.Deadline, v.RequeueAfter, v.Pending)
	}
}

// onTrouble is an observer that does something when a write is in trouble.
type onTrouble struct {
	recorder
	do func()
}

func (o *onTrouble) Troubled(expectations.Write, expectations.Problem) { o.do() }

// TestCheck_WriteThatEndsMeanwhile: Check lists the writes of an owner before it inspects each of them; one that has
// ended in between is not awaited, and no lock is left held.
func TestCheck_WriteThatEndsMeanwhile(t *testing.T) {
	reported := &onTrouble{}
	b := newBenchFor(t, reported)
	first := b.ExpectCreate(owner, ref)
	second := b.ExpectUpdate(owner, ref, "5", "9")
	reported.do = func() { b.Cancel(second) }
	b.now = b.now.Add(time.Minute)
	if v := b.Check(owner); v.State != expectations.Expired || len(v.Pending) != 1 || v.Pending[0].Verb != expectations.Create {
		t.Errorf("%s, pending %v; want the creation alone", v.State, v.Pending)
	}
	b.Cancel(first)
	if v := b.Check(owner); !v.Satisfied() {
		t.Errorf("%s, pending %v", v.State, v.Pending)
	}
}
