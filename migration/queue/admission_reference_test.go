// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// referenceAdmission is [Admission] written down from its documentation; each
// question is answered by looking at every claim.
type referenceAdmission struct {
	limits Limits
	queue  *reference
	claims map[types.NamespacedName]*referenceClaim
	woken  []types.NamespacedName
}

type referenceClaim struct {
	Claim
	held, lent, inbound, owed bool
}

func newReferenceAdmission(l Limits, o Options) *referenceAdmission {
	return &referenceAdmission{limits: l, queue: newReference(o), claims: map[types.NamespacedName]*referenceClaim{}}
}

func (c *referenceClaim) stuck() bool {
	return c.Acting && !c.inbound && (c.Stuck || c.TargetNode != "")
}

func (c *referenceClaim) wants() bool { return c.lent && (c.owed || !c.stuck()) }

func (r *referenceAdmission) rate(c *referenceClaim) int64 {
	switch b := r.limits.Bandwidth; {
	case b <= 0:
		return 0
	case c.Bandwidth <= 0 || c.Bandwidth > b:
		return b
	}
	return c.Bandwidth
}

// sum counts claims and adds up their rates.
func (r *referenceAdmission) sum(match func(*referenceClaim) bool) (n int, rate int64) {
	for _, c := range r.claims {
		if match(c) {
			n++
			rate += r.rate(c)
		}
	}
	return n, rate
}

func (r *referenceAdmission) fits(used int64, c *referenceClaim) bool {
	return r.limits.Bandwidth <= 0 || used+r.rate(c) <= r.limits.Bandwidth
}

// sorted returns the claims that match, the most urgent first.
func (r *referenceAdmission) sorted(match func(*referenceClaim) bool) []*referenceClaim {
	var out []*referenceClaim
	for _, c := range r.claims {
		if match(c) {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(x, y *referenceClaim) int {
		if x.Priority != y.Priority {
			return y.Priority - x.Priority
		}
		return older(&Item{Key: x.Key, Since: x.Since}, &Item{Key: y.Key, Since: y.Since})
	})
	return out
}

func (r *referenceAdmission) ask(c Claim, now time.Time) {
	r.queue.age(now)
	r.take(c, now)
	r.dispatch()
}

func (r *referenceAdmission) take(c Claim, now time.Time) {
	have := r.claims[c.Key]
	if have == nil {
		have = &referenceClaim{Claim: c}
		r.claims[c.Key] = have
	}
	_, queued := r.queue.items[c.Key]
	switch {
	case c.Acting && queued:
		r.queue.leave(c.Key)
		have.held = true
	case c.Acting && !have.lent:
		have.held = true
	case !have.held && !have.lent:
		r.queue.put(c.item(), now)
	}
	if have.TargetNode != c.TargetNode {
		have.inbound, have.owed = false, false
	}
	have.Claim = c
	if c.Arriving {
		have.held, have.lent, have.owed, have.inbound = true, false, false, c.TargetNode != ""
	}
}

func (r *referenceAdmission) restore(claims []Claim, now time.Time) {
	r.queue.age(now)
	claims = slices.Clone(claims)
	slices.SortFunc(claims, func(x, y Claim) int {
		i, j := x.item(), y.item()
		return older(&i, &j)
	})
	for _, c := range claims {
		r.take(c, now)
	}
	for _, c := range claims {
		if c.Acting {
			r.queue.charge(c.item(), now)
		}
	}
	r.dispatch()
}

func (r *referenceAdmission) release(k types.NamespacedName, now time.Time) {
	if r.woken = nil; r.claims[k] == nil {
		return
	}
	r.queue.age(now)
	if _, queued := r.queue.items[k]; queued {
		r.queue.leave(k)
	}
	delete(r.claims, k)
	r.dispatch()
}

func (r *referenceAdmission) dispatch() {
	r.woken = nil
	for {
		called := r.arrive()
		back := r.takeBack()
		if called || back || r.lend() {
			continue
		}
		if !r.admit() {
			return
		}
	}
}

// arrive admits migrations to the node; a lender first has its slots requested.
func (r *referenceAdmission) arrive() (called bool) {
	targets := map[string]bool{}
	for _, c := range r.claims {
		targets[c.TargetNode] = c.TargetNode != ""
	}
	for node, is := range targets {
		if is {
			called = r.arriveAt(node) || called
		}
	}
	return called
}

func (r *referenceAdmission) arriveAt(node string) bool {
	for _, c := range r.sorted(func(c *referenceClaim) bool {
		return (c.held || c.lent) && c.TargetNode == node && !c.inbound
	}) {
		n, rate := r.sum(func(o *referenceClaim) bool { return o.inbound && o.TargetNode == node })
		switch {
		case n >= r.limits.Inbound || !r.fits(rate, c):
			return false
		case c.lent && !c.owed:
			c.owed = true
			return true
		case c.held:
			c.inbound, c.owed = true, false
			r.woken = append(r.woken, c.Key)
		}
	}
	return false
}

func (r *referenceAdmission) takeBack() (got bool) {
	var ahead []*referenceClaim
	for _, c := range r.sorted((*referenceClaim).wants) {
		held, _ := r.sum(func(o *referenceClaim) bool { return o.held })
		out, rate := r.sum(func(o *referenceClaim) bool {
			return o.SourceNode == c.SourceNode && (o.held || slices.Contains(ahead, o))
		})
		if held+len(ahead) >= r.limits.Cluster || out >= r.limits.Outbound || !r.fits(rate, c) {
			ahead = append(ahead, c)
			continue
		}
		c.held, c.lent, got = true, false, true
		if c.TargetNode == "" {
			r.woken = append(r.woken, c.Key)
		}
	}
	return got
}

func (r *referenceAdmission) lend() bool {
	may := r.sorted(func(c *referenceClaim) bool { return c.held && c.stuck() && !c.owed })
	if lent, _ := r.sum(func(c *referenceClaim) bool { return c.lent }); len(may) == 0 || lent >= r.limits.Lent {
		return false
	}
	c := may[len(may)-1]
	c.held, c.lent = false, true
	return true
}

func (r *referenceAdmission) admit() (got bool) {
	tight := map[string]bool{}
	for {
		if n, _ := r.sum(func(c *referenceClaim) bool { return c.held || c.wants() }); n >= r.limits.Cluster {
			return got
		}
		it, found := r.queue.next(func(lane string) bool {
			n, _ := r.leaving(lane)
			return tight[lane] || n >= r.limits.Outbound
		})
		if !found {
			return got
		}
		c := r.claims[it.Key]
		if _, rate := r.leaving(it.Lane); !r.fits(rate, c) {
			tight[it.Lane] = true
			continue
		}
		r.queue.take(it.Key)
		c.held, got = true, true
		clear(tight)
		r.woken = append(r.woken, it.Key)
	}
}

// leaving counts the migrations that leave the node, or will when they have their slots back.
func (r *referenceAdmission) leaving(node string) (int, int64) {
	return r.sum(func(c *referenceClaim) bool { return c.SourceNode == node && (c.held || c.wants()) })
}
