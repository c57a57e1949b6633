// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Claim is a migration's claim for capacity.
type Claim struct {
	// Key names the migration.
	Key types.NamespacedName
	// Priority is a number of [PriorityOf].
	Priority int
	// Since is when the migration began to wait: its creation.
	Since time.Time
	// SourceNode is the node the VMI leaves.
	SourceNode string
	// TargetNode is the node the VMI enters; empty until it is known.
	TargetNode string
	// Bandwidth is the most the migration may send, in bytes per second; zero means no
	// limit.
	Bandwidth int64
	// Size is the memory to transfer, in bytes. Only an Options.Order uses it.
	Size int64
	// Acting says that the migration owns a target Pod already. It is counted even beyond
	// a limit, as it never waits behind others.
	Acting bool
	// Stuck says that the target Pod is unschedulable, so that the migration cannot use
	// its slots for now.
	Stuck bool
	// Arriving says that the target node was notified already, so that all its
	// slots are counted even beyond the limits.
	Arriving bool
}

// item returns the claim as an item of the queue.
func (c *Claim) item() Item {
	return Item{Key: c.Key, Priority: c.Priority, Since: c.Since, Lane: c.SourceNode, Size: c.Size}
}

// Usage counts the slots in use.
type Usage struct {
	// Cluster is the number of migrations that hold slots.
	Cluster int
	// Lent is the number of migrations that have lent theirs.
	Lent int
	// Outbound and Inbound count the slots in use per node.
	Outbound, Inbound map[string]int
	// Limits are the limits in force.
	Limits Limits
}

// stake is what a claim has.
type stake int

const (
	// waits: it is in the queue.
	waits stake = iota
	// holds: it has its cluster and outbound slots.
	holds
	// lends: it acts, and others have its slots.
	lends
)

// slot is a claim and its stake.
type slot struct {
	node
	claim Claim
	state stake
	// inbound says that it has a slot at claim.TargetNode, as only a holder can.
	inbound bool
	// owed says that a lender could have entered its target but had no slots then. It gets
	// them back, and lends no more before it has entered.
	owed bool
	// rate is its share of a node's bandwidth.
	rate int64
}

// stuck reports whether the slots are unusable for now.
func (s *slot) stuck() bool {
	return s.claim.Acting && !s.inbound && (s.claim.Stuck || s.claim.TargetNode != "")
}

// wants reports whether it is a lender that waits for its slots.
func (s *slot) wants() bool { return s.state == lends && (s.owed || !s.stuck()) }

// entering reports whether it waits for, or has, a slot at a target.
func (s *slot) entering() bool { return s.state != waits && s.claim.TargetNode != "" }

// usage is the usage of one node.
type usage struct {
	out, in         []*slot
	outRate, inRate int64
	// wants and wantRate are the slots and bandwidth that lenders wait to get back.
	wants    int
	wantRate int64
	// arrivals are waiting to enter.
	arrivals []*slot
}

// Admission hands out the slots and keeps the queue for them. A slot is reserved before
// anything is written and held until it is released. A freed slot is assigned at once, in
// the order of [Queue], skipping VMIs of nodes whose slots are taken. Nothing polls: every
// method that may let others proceed returns their keys, and no others, to be reconciled at
// once.
//
// Acting migrations go before queued ones. A migration that cannot use its slots, because its
// target Pod is unschedulable or its target node has no free slot, lends them to the next in
// the queue; Limits.Lent bounds the number of lenders. It gets them back before the queue gets
// any. A slot at the target is given only together with the others, by priority and age.
//
// With a bandwidth budget, a migration that exceeds the rest of a node's budget is not
// overtaken by others of that node.
//
// All state can be rebuilt from the API with [Admission.Restore]. It is safe for
// concurrent use; no lock is held during calls to outside code.
type Admission struct {
	mu sync.Mutex
	// Guarded by mu; methods that begin with locked require it.
	limits Limits
	line   *line
	claims map[types.NamespacedName]*slot
	nodes  map[string]*usage
	// holders and lenders are sorted by key; wanting, the lenders that wait for
	// their slots, and idle, the holders that may lend, by urgency.
	holders, lenders, wanting, idle []*slot
	// sources and targets are the nodes with changes since the last dispatch, woken the
	// migrations that these let proceed.
	sources, targets []string
	woken            []types.NamespacedName
}

// NewAdmission returns an Admission without claims. The options define the order of
// waiting claims; a lane is a source node.
func NewAdmission(l Limits, o Options) *Admission {
	return &Admission{
		limits: l, line: newLine(o), claims: map[types.NamespacedName]*slot{}, nodes: map[string]*usage{},
	}
}

// Restore adds all claims at a start at once, before any of them is admitted, so that acting
// migrations keep their slots and the others are ordered correctly, whichever is reconciled
// first. Namespaces are charged for their acting migrations, so that turns continue. It
// returns the keys of the migrations that may proceed.
func (a *Admission) Restore(claims []Claim, now time.Time) []types.NamespacedName {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.line.age(now)
	claims = slices.Clone(claims)
	slices.SortFunc(claims, func(x, y Claim) int {
		i, j := x.item(), y.item()
		return older(&i, &j)
	})
	for _, c := range claims {
		a.lockedTake(c, now)
	}
	for _, c := range claims {
		if c.Acting {
			a.line.charge(c.item(), now)
		}
	}
	return a.lockedDispatch(types.NamespacedName{})
}

// Ask claims capacity, or updates a claim. It returns a verdict for this migration, without
// the fields that only [Admission.Explain] fills in, and the keys of others that may proceed.
func (a *Admission) Ask(c Claim, now time.Time) (Verdict, []types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.line.age(now)
	a.lockedTake(c, now)
	woken := a.lockedDispatch(c.Key)
	return a.lockedVerdict(a.claims[c.Key]), woken
}

// Explain returns the verdict without claiming anything, with the place in the queue and the
// limits that block.
func (a *Admission) Explain(key types.NamespacedName, now time.Time) Verdict {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.line.age(now)
	s := a.claims[key]
	if s == nil {
		return Verdict{}
	}
	v := a.lockedVerdict(s)
	v.Waiting = a.line.n
	if s.state == waits {
		v.Position = a.line.position(&s.node)
	}
	v.Blockers = a.lockedBlockers(s)
	return v
}

// Release gives up the claim of the migration, held or waiting, and returns the
// keys of the migrations that may proceed because of it. Releasing a key without a claim
// is not an error.
func (a *Admission) Release(key types.NamespacedName, now time.Time) []types.NamespacedName {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.claims[key]
	if s == nil {
		return nil
	}
	a.line.age(now)
	if s.state == waits {
		a.line.remove(&s.node)
	} else {
		a.lockedUnbook(s)
	}
	delete(a.claims, key)
	return a.lockedDispatch(key)
}

// SetLimits changes the limits and returns the keys of the migrations that may
// proceed, or wait for something else, because of it. Lower limits revoke no slot.
func (a *Admission) SetLimits(l Limits, now time.Time) []types.NamespacedName {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.limits == l {
		return nil
	}
	a.line.age(now)
	booked, asleep := a.lockedUnable()
	for _, s := range booked {
		a.lockedUnbook(s)
	}
	a.limits = l
	for _, s := range booked {
		a.lockedBook(s)
	}
	woken := a.lockedDispatch(types.NamespacedName{})
	for _, s := range asleep {
		if s.state == waits || s.entering() && !s.inbound || s.wants() {
			woken = append(woken, s.claim.Key)
		}
	}
	return woken
}

// lockedUnable returns the booked claims, and those that are blocked: the limits matter
// to them.
func (a *Admission) lockedUnable() (booked, asleep []*slot) {
	for _, s := range a.claims {
		if s.state != waits {
			booked = append(booked, s)
		}
		if s.state == waits || !s.inbound {
			asleep = append(asleep, s)
		}
	}
	slices.SortFunc(booked, byKey)
	slices.SortFunc(asleep, byKey)
	return booked, asleep
}

// Usage returns the slots in use.
func (a *Admission) Usage() Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := Usage{
		Cluster: len(a.holders), Lent: len(a.lenders), Outbound: map[string]int{}, Inbound: map[string]int{}, Limits: a.limits,
	}
	for name, n := range a.nodes {
		if len(n.out) > 0 {
			u.Outbound[name] = len(n.out)
		}
		if len(n.in) > 0 {
			u.Inbound[name] = len(n.in)
		}
	}
	return u
}

// queued returns the waiting migrations in order, as if no node's slots were taken.
func (a *Admission) queued(now time.Time) []Item {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.line.age(now)
	return a.line.order()
}
