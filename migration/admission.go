// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Claim is what a migration needs capacity for.
type Claim struct {
	// Key names the migration.
	Key types.NamespacedName
	// Priority is a number of [PriorityOf].
	Priority int
	// Since is when the migration began to wait: its creation.
	Since time.Time
	// SourceNode is the node the guest leaves.
	SourceNode string
	// TargetNode is the node the guest enters; empty until it is known.
	TargetNode string
	// Bandwidth is the most the migration may send, in bytes per second; zero
	// when nothing limits it.
	Bandwidth int64
	// Size is the memory to move, in bytes. It decides nothing but what a
	// QueueOptions.Order makes of it.
	Size int64
	// Acting says that the migration acts already: it owns a target Pod. It is
	// counted even beyond a limit, for it never waits behind others.
	Acting bool
	// Stuck says that no node takes the target Pod, so that the migration
	// cannot use its slots for now.
	Stuck bool
	// Arriving says that the target node was told already, so that all its
	// slots are counted even beyond the limits.
	Arriving bool
}

// item is the claim as it stands in the queue.
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

// stake says what a claim has.
type stake int

const (
	// waits: it stands in the queue.
	waits stake = iota
	// holds: it has its cluster and outbound slots.
	holds
	// lends: it acts, and its slots are given to others.
	lends
)

// slot is a claim and what it has.
type slot struct {
	node
	claim Claim
	state stake
	// inbound says that it has a slot at claim.TargetNode, which only a holder
	// has.
	inbound bool
	// owed says that a lender could have entered its target and had no slots
	// then. It gets them back, and lends no more before it has entered.
	owed bool
	// rate is the share of a node's bandwidth.
	rate int64
}

// stuck reports whether the slots are of no use for now.
func (s *slot) stuck() bool {
	return s.claim.Acting && !s.inbound && (s.claim.Stuck || s.claim.TargetNode != "")
}

// wants reports whether a lender waits for its slots.
func (s *slot) wants() bool { return s.state == lends && (s.owed || !s.stuck()) }

// entering reports whether it waits for, or has, a slot at a target.
func (s *slot) entering() bool { return s.state != waits && s.claim.TargetNode != "" }

// usage is what is in use at a node.
type usage struct {
	out, in         []*slot
	outRate, inRate int64
	// wants and wantRate are what lenders wait for to get back.
	wants    int
	wantRate int64
	// arrivals wait to enter.
	arrivals []*slot
}

// Admission hands out the slots and keeps the queue before them. A slot is
// reserved before anything is written and held until it is released; who gets a
// freed one is decided at once, in the order of [Queue], passing over the guests
// of nodes whose slots are taken. Nothing polls: every method that may let others
// proceed returns their keys, to be reconciled at once. Nobody else is woken.
//
// Who acts already goes before who waits in the queue. A migration that cannot use
// its slots, because no node takes its target Pod, or because its target node has no
// free slot, lends them to the next in the queue; Limits.Lent bounds how many may do
// so at a time. It gets them back before the queue gets any. A slot at the target is
// given only together with the others, by priority and age.
//
// With a bandwidth budget, who does not fit into what is left of a node's is not
// passed by others of that node.
//
// All state can be rebuilt from the API with [Admission.Restore]. It is safe for
// concurrent use; no lock is held while anything outside is called.
type Admission struct {
	mu sync.Mutex
	// Guarded by mu, as are the methods that begin with locked.
	limits Limits
	line   *line
	claims map[types.NamespacedName]*slot
	nodes  map[string]*usage
	// holders and lenders are sorted by key; wanting, the lenders that wait for
	// their slots, and idle, the holders that may lend, by urgency.
	holders, lenders, wanting, idle []*slot
	// sources and targets are the nodes at which anything changed since the last
	// dispatch, woken is whom that let proceed.
	sources, targets []string
	woken            []types.NamespacedName
}

// NewAdmission returns an admission without claims. The options say in which
// order those are served that wait; a lane is a source node.
func NewAdmission(l Limits, o QueueOptions) *Admission {
	return &Admission{
		limits: l, line: newLine(o), claims: map[types.NamespacedName]*slot{}, nodes: map[string]*usage{},
	}
}

// Restore takes in all claims of a fresh start at once, before any of them is
// admitted, so that those who act keep their slots and the others stand in the
// right order whoever is reconciled first. Namespaces are charged for those of
// theirs that act, so that turns go on where they were. It returns the keys of the
// migrations that may proceed.
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

// Ask claims capacity, or renews a claim with what has become known since. The
// answer is a verdict for this migration, without what only [Admission.Explain]
// tells, and the keys of others that may proceed.
func (a *Admission) Ask(c Claim, now time.Time) (Verdict, []types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.line.age(now)
	a.lockedTake(c, now)
	woken := a.lockedDispatch(c.Key)
	return a.lockedVerdict(a.claims[c.Key]), woken
}

// Explain answers like Ask without claiming anything, and tells the place in the
// queue and what is in the way.
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
// keys of the migrations that may proceed because of it. Releasing what is not
// claimed is no error.
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
// proceed, or wait for something else, because of it. Lower limits take no slot
// away.
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

// lockedUnable returns the claims that are booked, and those that cannot go on:
// to whom limits matter.
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

// Queued returns the waiting migrations, the next one first, as if no node's slots
// were taken.
func (a *Admission) Queued(now time.Time) []Item {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.line.age(now)
	return a.line.order()
}
