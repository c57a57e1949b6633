// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

func anyLimits(pick choose) Limits {
	return Limits{
		Cluster: pick(6), Outbound: pick(4), Inbound: pick(3), Lent: pick(4),
		Bandwidth: []int64{0, 0, 100}[pick(3)],
	}
}

// twins are an admission and the reference, driven together.
type twins struct {
	t    *testing.T
	pick choose
	now  time.Time
	a    *Admission
	ref  *referenceAdmission
	was  Usage
	// forced says that the claim of this step acts whatever the limits are.
	forced bool
}

func newTwins(t *testing.T, pick choose) *twins {
	o, l := anyOptions(pick), anyLimits(pick)
	w := &twins{t: t, pick: pick, now: start, a: NewAdmission(l, o), ref: newReferenceAdmission(l, o)}
	var claims []Claim
	for range pick(8) {
		c := w.anyClaim()
		c.Acting = pick(2) == 0
		if !slices.ContainsFunc(claims, func(o Claim) bool { return o.Key == c.Key }) {
			claims = append(claims, c)
		}
	}
	w.a.Restore(claims, w.now)
	w.ref.restore(claims, w.now)
	w.was = w.a.Usage()
	return w
}

func (w *twins) anyClaim() Claim {
	it := anyItem(w.pick, w.now)
	return Claim{
		Key: it.Key, Priority: it.Priority, Since: it.Since, SourceNode: it.Lane, Size: it.Size,
		Bandwidth: []int64{0, 20, 40, 70, 500}[w.pick(5)],
	}
}

func (w *twins) step() {
	w.now = w.now.Add(time.Duration(w.pick(4)*w.pick(4)) * time.Second)
	w.forced = false
	c := w.anyClaim()
	have := w.ref.claims[c.Key]
	var woken []types.NamespacedName
	switch op := w.pick(12); {
	case op < 3:
		woken = w.a.Release(c.Key, w.now)
		w.ref.release(c.Key, w.now)
	case op == 3 && w.pick(4) == 0:
		w.limits()
		return
	case op == 4:
		c.Acting = true
		w.place(&c)
		woken = w.ask(c)
	case have != nil && (have.held || have.lent):
		c = have.Claim
		w.advance(&c)
		woken = w.ask(c)
	default:
		if have != nil {
			c.Since = have.Since
			if w.pick(2) == 0 { // it may send more, or less, than it could
				bandwidth := c.Bandwidth
				c = have.Claim
				c.Bandwidth = bandwidth
			}
		}
		woken = w.ask(c)
	}
	want := slices.DeleteFunc(w.ref.woken, func(k types.NamespacedName) bool { return k == c.Key })
	w.compare(woken, want)
}

// place says where the target Pod is.
func (w *twins) place(c *Claim) {
	switch w.pick(4) {
	case 0:
		c.Stuck = true
	case 1:
		c.TargetNode, c.Arriving = fmt.Sprintf("t%d", w.pick(3)), w.pick(4) == 0
	case 2:
		c.TargetNode = fmt.Sprintf("t%d", w.pick(3))
	}
}

// advance does what may come next to one that was admitted.
func (w *twins) advance(c *Claim) {
	c.Stuck = false
	switch {
	case w.pick(8) == 0:
		c.Acting, c.Arriving, c.TargetNode = false, false, ""
	case !c.Acting || c.TargetNode == "" || w.pick(8) == 0:
		c.Acting, c.Arriving, c.TargetNode = true, false, ""
		w.place(c)
	case w.ref.claims[c.Key].inbound:
		c.Arriving = true
	}
}

func (w *twins) ask(c Claim) []types.NamespacedName {
	have := w.ref.claims[c.Key]
	w.forced = c.Arriving || c.Acting && (have == nil || !have.held && !have.lent) || have != nil && have.SourceNode != c.SourceNode
	v, woken := w.a.Ask(c, w.now)
	w.ref.ask(c, w.now)
	r := w.ref.claims[c.Key]
	if !v.Asked || v.Held != r.held || v.Lent != r.lent || v.Inbound != r.inbound {
		w.t.Fatalf("verdict on %+v is %+v, want held %t, lent %t, inbound %t", c, v, r.held, r.lent, r.inbound)
	}
	return woken
}

// limits changes the limits: every migration that waits for one is woken, and every one that
// gets a slot.
func (w *twins) limits() {
	l := anyLimits(w.pick)
	if l == w.ref.limits {
		return
	}
	woken := w.a.SetLimits(l, w.now)
	w.ref.queue.age(w.now)
	w.ref.limits = l
	w.ref.dispatch()
	want := w.ref.woken
	for k, c := range w.ref.claims {
		if !slices.Contains(want, k) && (!c.held && !c.lent || c.TargetNode != "" && !c.inbound || c.wants()) {
			want = append(want, k)
		}
	}
	w.compare(woken, want)
}

func (w *twins) compare(woken, want []types.NamespacedName) {
	w.t.Helper()
	slices.SortFunc(woken, compareKeys)
	slices.SortFunc(want, compareKeys)
	if !slices.Equal(woken, want) {
		w.t.Fatalf("woken are %v, want %v", woken, want)
	}
	if len(w.a.claims) != len(w.ref.claims) {
		w.t.Fatalf("there are %d claims, want %d", len(w.a.claims), len(w.ref.claims))
	}
	for k, r := range w.ref.claims {
		s := w.a.claims[k]
		if s == nil || (s.state == holds) != r.held || (s.state == lends) != r.lent || s.inbound != r.inbound || s.owed != r.owed {
			w.t.Fatalf("claim %s stands at %+v, want %+v", k, s, r)
		}
	}
	w.invariants()
	if w.pick(16) == 0 {
		w.explain()
	}
}

// invariants checks what must always be true, whatever the reference says.
func (w *twins) invariants() {
	u := w.a.Usage()
	grown := func(what string, is, was, limit int) {
		if is > max(limit, was) && !w.forced {
			w.t.Fatalf("%s: %d in use, %d before, %d allowed", what, is, was, limit)
		}
	}
	grown("cluster", u.Cluster, w.was.Cluster, u.Limits.Cluster)
	grown("lent", u.Lent, w.was.Lent, u.Limits.Lent)
	for n, is := range u.Outbound {
		grown("leaving "+n, is, w.was.Outbound[n], u.Limits.Outbound)
	}
	for n, is := range u.Inbound {
		grown("entering "+n, is, w.was.Inbound[n], u.Limits.Inbound)
	}
	w.was = u
	for k, s := range w.a.claims {
		free := s.state == waits && len(w.a.holders)+len(w.a.wanting) < u.Limits.Cluster && u.Limits.Bandwidth == 0
		if n := w.a.nodes[s.claim.SourceNode]; free && (n == nil || len(n.out)+n.wants < u.Limits.Outbound) && u.Limits.Outbound > 0 {
			w.t.Fatalf("%s waits although nothing blocks it", k)
		}
		if s.inbound && s.state != holds {
			w.t.Fatalf("%s may enter and has no slots", k)
		}
	}
}

// explain compares what an observer gets.
func (w *twins) explain() {
	w.ref.queue.age(w.now)
	queued := w.a.queued(w.now)
	if want := w.ref.queue.order(); !slices.Equal(queued, want) {
		w.t.Fatalf("queued are %v, want %v", names(queued), names(want))
	}
	for k, r := range w.ref.claims {
		v := w.a.Explain(k, w.now)
		if want := w.ref.queue.position(k); v.Position != want {
			w.t.Fatalf("position of %s is %d, want %d", k, v.Position, want)
		}
		if goes := r.held && (r.TargetNode == "" || r.inbound); goes && len(v.Blockers) > 0 {
			w.t.Fatalf("%s may go on and is blocked by %+v", k, v.Blockers)
		}
		for _, b := range v.Blockers {
			if b.Limit != LimitBandwidth && (b.Used < b.Max || len(b.Holders) != b.Used) {
				w.t.Fatalf("%s is blocked by %+v", k, b)
			}
			if slices.Contains(b.Holders, k) {
				w.t.Fatalf("%s is in its own way: %+v", k, b)
			}
		}
	}
}

// drain lets every migration that may proceed finish, and fails if none can.
func (w *twins) drain() {
	w.a.SetLimits(Limits{Cluster: 2, Outbound: 1, Inbound: 1, Lent: w.pick(3), Bandwidth: w.ref.limits.Bandwidth}, w.now)
	for range 2000 {
		if len(w.a.claims) == 0 {
			if d := cmp.Diff(Usage{Outbound: map[string]int{}, Inbound: map[string]int{}, Limits: w.a.limits}, w.a.Usage()); d != "" || len(w.a.nodes) > 0 {
				w.t.Fatalf("left over: %s; %v", d, w.a.nodes)
			}
			return
		}
		k := slices.SortedFunc(maps.Keys(w.a.claims), compareKeys)[w.pick(len(w.a.claims))]
		c := w.a.claims[k].claim
		switch v := w.a.Explain(k, w.now); {
		case v.Inbound:
			w.a.Release(k, w.now)
		case v.Held && !c.Acting, c.Acting && c.TargetNode == "":
			c.Acting, c.Stuck, c.TargetNode = true, false, fmt.Sprintf("t%d", w.pick(2))
			w.a.Ask(c, w.now)
		}
	}
	w.t.Fatalf("%d claims never end; %+v", len(w.a.claims), w.a.Usage())
}

// TestAdmission_MatchesReference compares the admission with the reference after each
// of many random steps; -operations says how many. In the end all must be able to
// finish.
func TestAdmission_MatchesReference(t *testing.T) {
	const perRun = 1000
	for seed := range uint64(max(1, *operations/3/perRun)) {
		inform(t, seed, func() {
			w := newTwins(t, chance(seed))
			for range perRun {
				w.step()
			}
			w.drain()
		})
	}
}

func FuzzAdmission(f *testing.F) {
	plant(f, 4)
	f.Fuzz(func(t *testing.T, data []byte) {
		pick, more := fuzzed(data)
		for w := newTwins(t, pick); more(); {
			w.step()
		}
	})
}
