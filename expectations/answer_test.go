// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/virtloom/virtloom/expectations"
)

func TestAnswer(t *testing.T) {
	create := func(b *bench) { b.ExpectCreate(owner, ref) }
	created := func(b *bench) { b.Confirm(b.ExpectCreate(owner, ref), object("u2", "9")) }
	taken := func(b *bench) { b.Exists(b.ExpectCreate(owner, ref)) }
	remove := func(seen string) func(*bench) {
		return func(b *bench) { b.ExpectDelete(owner, ref, "u2", seen) }
	}
	update := func(to string) func(*bench) { return func(b *bench) { b.ExpectUpdate(owner, ref, "4", to) } }
	updated := func(to string) func(*bench) {
		return func(b *bench) { b.Confirm(b.ExpectUpdate(owner, ref, "4", ""), object("u2", to)) }
	}
	seen := func(b *bench) {
		b.ExpectUpdate(owner, ref, "4", "")
		b.Observe(pods, object("u2", "7"), expectations.Updated)
	}
	for name, tc := range map[string]struct {
		expect func(*bench)
		live   metav1.Object
		want   expectations.Finding
	}{
		"unknown creation found, not shown yet": {create, object("u1", "5"), expectations.CacheBehind},
		"unknown creation not found":            {create, nil, expectations.Disproved},
		"creation found":                        {created, object("u2", "9"), expectations.Shown},
		"creation found at an older version":    {created, object("u2", "8"), expectations.Shown},
		"creation gone":                         {created, nil, expectations.Disproved},
		"creation gone, its name another's":     {created, object("u3", "12"), expectations.Disproved},
		"creation gone, names have no order":    {created, object("u3", "x12"), expectations.Disproved},
		"creation: its predecessor is read":     {created, object("u1", "3"), expectations.ServerBehind},
		"creation refused, the name taken":      {taken, object("u3", "3"), expectations.Shown},
		"creation refused, the name free":       {taken, nil, expectations.Disproved},

		"deletion done":                           {remove(""), nil, expectations.Shown},
		"deletion under way":                      {remove("7"), terminating("u2", "7"), expectations.Shown},
		"deletion not made":                       {remove("7"), object("u2", "7"), expectations.Disproved},
		"deletion not made, nothing known":        {remove(""), object("u2", "7"), expectations.Disproved},
		"deletion done, the name another's":       {remove("7"), object("u3", "9"), expectations.Shown},
		"deletion: a state of before it is read":  {remove("7"), object("u2", "6"), expectations.ServerBehind},
		"deletion: its predecessor is read":       {remove("7"), object("u1", "3"), expectations.ServerBehind},
		"deletion done, versions without order":   {remove("x7"), object("u3", "x3"), expectations.Shown},
		"deletion unmade, versions without order": {remove("x7"), object("u2", "x3"), expectations.Disproved},

		"update reached":                              {update("6"), object("u2", "6"), expectations.Shown},
		"update reached beyond 128 bits":              {update("340282366920938463463374607431768211455"), object("u2", "340282366920938463463374607431768211456"), expectations.Shown},
		"update not reached":                          {update("6"), object("u2", "5"), expectations.ServerBehind},
		"update not reached, of another object":       {updated("6"), object("u1", "5"), expectations.ServerBehind},
		"update not comparable":                       {update("6"), object("u2", "x"), expectations.Unordered},
		"update not comparable, of the object":        {updated("x6"), object("u2", "x7"), expectations.Unordered},
		"update not comparable, of another object":    {updated("x6"), object("u3", "x7"), expectations.Disproved},
		"update of an object now gone":                {update("6"), nil, expectations.Disproved},
		"unknown update that was not made":            {update(""), object("u2", "4"), expectations.Disproved},
		"unknown update that was made, not shown yet": {update(""), object("u2", "6"), expectations.CacheBehind},
		"unknown update that was made and is shown":   {seen, object("u2", "7"), expectations.Shown},
		"unknown update: a state of before it":        {update(""), object("u2", "3"), expectations.ServerBehind},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			tc.expect(b)
			b.now = b.now.Add(2 * time.Minute)
			v := b.Check(owner)
			if v.State != expectations.Expired || v.Pending[0].Problem != expectations.Overdue {
				t.Fatalf("got %s %v before the answer", v.State, v.Pending)
			}
			got := b.Answer(v.Pending[0], tc.live)
			if got != tc.want {
				t.Errorf("found %s, want %s", got, tc.want)
			}
			state := map[expectations.Finding]expectations.State{
				expectations.CacheBehind: expectations.Waiting, expectations.ServerBehind: expectations.Waiting,
				expectations.Unordered: expectations.Expired,
			}[tc.want]
			if v := b.Check(owner); v.State != state || got.Settled() != (state == expectations.Satisfied) {
				t.Errorf("the owner is %s after %s (settled: %v), want %s", v.State, got, got.Settled(), state)
			}
			if len(b.woken) != 0 {
				t.Errorf("woken %v by its own reading", b.woken)
			}
		})
	}
}

// expired returns the one write that needs a live read.
func (b *bench) expired(t *testing.T, want expectations.Problem) expectations.Pending {
	t.Helper()
	v := b.Check(owner)
	if v.State != expectations.Expired || len(v.Pending) != 1 || v.Pending[0].Problem != want {
		t.Fatalf("got %s %v, want one write that is %s", v.State, v.Pending, want)
	}
	return v.Pending[0]
}

func (b *bench) answer(t *testing.T, p expectations.Pending, live metav1.Object, want expectations.Finding) {
	t.Helper()
	if got := b.Answer(p, live); got != want {
		t.Fatalf("found %s, want %s", got, want)
	}
}

// The server's store was reset: its versions restart lower and the one written is never reached.
func TestAnswer_ServerStoreReset(t *testing.T) {
	b := newBench(t)
	b.ExpectUpdate(owner, ref, "900", "1000")
	b.now = b.now.Add(time.Minute)
	b.answer(t, b.expired(t, expectations.Overdue), object("u1", "50"), expectations.ServerBehind)

	v := b.Check(owner)
	if v.State != expectations.Waiting || v.RequeueAfter != time.Minute {
		t.Fatalf("got %s for %s, want to wait for a further TTL", v.State, v.RequeueAfter)
	}
	b.now = b.now.Add(time.Minute - 1)
	b.answer(t, v.Pending[0], object("u1", "51"), expectations.ServerBehind) // too soon to be the second
	b.now = b.now.Add(1)
	b.answer(t, b.expired(t, expectations.Overdue), object("u1", "52"), expectations.Disproved)
	if v := b.Check(owner); !v.Satisfied() {
		t.Errorf("still waits for %v", v.Pending)
	}
}

func TestAnswer_StaleReadingThenLaterOne(t *testing.T) {
	for name, evidence := range map[string]func(*testing.T, *bench){
		"an event": func(_ *testing.T, b *bench) { b.Observe(pods, object("u1", "1001"), expectations.Updated) },
		"a reading": func(t *testing.T, b *bench) {
			b.now = b.now.Add(time.Minute)
			b.answer(t, b.expired(t, expectations.Overdue), object("u1", "1001"), expectations.Shown)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.ExpectUpdate(owner, ref, "900", "1000")
			b.now = b.now.Add(time.Minute)
			b.answer(t, b.expired(t, expectations.Overdue), object("u1", "950"), expectations.ServerBehind)
			evidence(t, b)
			if v := b.Check(owner); !v.Satisfied() {
				t.Errorf("still waits for %v", v.Pending)
			}
		})
	}
}

// A write whose versions cannot be compared stays expired indefinitely, and its text names the remedy.
func TestAnswer_UnorderedVersions(t *testing.T) {
	for name, out := range map[string]func(*bench, expectations.Pending){
		"cancel the write":       func(b *bench, p expectations.Pending) { b.Cancel(p.Token()) },
		"forget the owner":       func(b *bench, _ expectations.Pending) { b.Forget(owner) },
		"the very version comes": func(b *bench, _ expectations.Pending) { b.Observe(pods, object("u1", "x7"), expectations.Updated) },
		"the cache has it": func(b *bench, p expectations.Pending) {
			if !b.Seen(p.Token(), object("u1", "x7")) {
				t.Error("the very version in the cache proves nothing")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.ExpectUpdate(owner, ref, "x6", "x7")
			b.Observe(pods, object("u1", "x8"), expectations.Updated)
			for range 5 {
				b.answer(t, b.expired(t, expectations.Incomparable), object("u1", "x9"), expectations.Unordered)
				b.now = b.now.Add(time.Hour)
			}
			p := b.expired(t, expectations.Incomparable)
			if text := p.String(); !strings.Contains(text, "incomparable") || !strings.Contains(text, "cancel") {
				t.Errorf("%q does not name problem and remedy", text)
			}
			out(b, p)
			if v := b.Check(owner); !v.Satisfied() {
				t.Errorf("still waits for %v", v.Pending)
			}
		})
	}
}

// A relist answered from stale state drops the object from the cache. The server has it, so the cache will show it again.
func TestAnswer_CacheLostObject(t *testing.T) {
	for name, tc := range map[string]struct {
		after time.Duration
		event bool
		want  expectations.State
	}{
		"not yet":            {after: 0, want: expectations.Waiting},
		"it shows it":        {event: true, want: expectations.Satisfied},
		"the time has ended": {after: time.Minute, want: expectations.Expired},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.Confirm(b.ExpectCreate(owner, ref), object("u1", "5"))
			b.Observe(pods, object("u1", "5"), expectations.DeletedUnknown)
			b.answer(t, b.expired(t, expectations.Tombstone), object("u1", "5"), expectations.CacheBehind)
			b.now = b.now.Add(tc.after)
			if tc.event {
				b.Observe(pods, object("u1", "5"), expectations.Added)
			}
			if got := b.Check(owner); got.State != tc.want {
				t.Errorf("got %s %v, want %s", got.State, got.Pending, tc.want)
			}
		})
	}
}

func TestAnswer_UnknownOutcome(t *testing.T) {
	for name, tc := range map[string]struct {
		verb  expectations.Verb
		event *metav1.PartialObjectMetadata
		want  expectations.State
	}{
		"creation, the object":        {expectations.Create, object("u1", "6"), expectations.Satisfied},
		"creation, its predecessor":   {expectations.Create, object("u0", "3"), expectations.Waiting},
		"update, the version":         {expectations.Update, object("u1", "6"), expectations.Satisfied},
		"update, an earlier version":  {expectations.Update, object("u1", "5"), expectations.Waiting},
		"neither, until the next TTL": {expectations.Update, nil, expectations.Waiting},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if tc.verb == expectations.Create {
				b.ExpectCreate(owner, ref)
			} else {
				b.ExpectUpdate(owner, ref, "4", "")
			}
			b.now = b.now.Add(time.Minute)
			b.answer(t, b.expired(t, expectations.Overdue), object("u1", "6"), expectations.CacheBehind)
			if tc.event != nil {
				b.Observe(pods, tc.event, expectations.Updated)
			}
			if got := b.Check(owner); got.State != tc.want {
				t.Fatalf("got %s %v, want %s", got.State, got.Pending, tc.want)
			}
			if tc.want == expectations.Satisfied {
				return
			}
			b.now = b.now.Add(time.Minute) // may be outside the cache's scope
			b.answer(t, b.expired(t, expectations.Overdue), object("u1", "6"), expectations.Shown)
		})
	}
}

func TestAnswer_OwnWriteOnly(t *testing.T) {
	b := newBench(t)
	b.ExpectCreate(owner, ref)
	b.now = b.now.Add(time.Minute)
	v := b.Check(owner)
	b.ExpectCreate(owner, ref) // noted after the live read was requested
	b.Answer(v.Pending[0], nil)
	if got := len(b.Check(owner).Pending); got != 1 {
		t.Errorf("%d pending, want the later write", got)
	}
	if got := b.Answer(v.Pending[0], object("u1", "5")); got != expectations.Shown || b.Outstanding() != 1 {
		t.Errorf("an answer about a settled write found %s and left %d outstanding", got, b.Outstanding())
	}
}

func TestFinding_String(t *testing.T) {
	for found, want := range map[expectations.Finding]string{
		expectations.Shown: "shown", expectations.Disproved: "disproved", expectations.CacheBehind: "cache behind",
		expectations.ServerBehind: "server behind", expectations.Unordered: "unordered", 9: "finding(9)",
	} {
		if got := found.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
