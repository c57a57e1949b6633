// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Limit names one of the [Limits].
type Limit string

// The limits of parallel migrations.
const (
	LimitCluster  Limit = "parallelMigrationsPerCluster"
	LimitOutbound Limit = "parallelOutboundMigrationsPerNode"
	LimitInbound  Limit = "parallelInboundMigrationsPerNode"
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
	// Acting says that the migration acts already: it owns a target Pod. It is
	// counted even beyond a limit, for it never waits behind others.
	Acting bool
	// Arriving says that the target node was told already, so that its inbound
	// slot is counted even beyond the limit.
	Arriving bool
}

// Blocker is a limit that is reached.
type Blocker struct {
	// Limit is the limit.
	Limit Limit
	// Node is the node of a limit per node.
	Node string
	// Used and Max are the slots in use and the limit.
	Used, Max int
	// Holders are the migrations in the slots, by name.
	Holders []types.NamespacedName
}

// Verdict is the answer to a claim.
type Verdict struct {
	// Asked is false in the zero value: nobody asked.
	Asked bool
	// Held says that the migration has its cluster and outbound slots.
	Held bool
	// Inbound says that it has a slot at its target node too.
	Inbound bool
	// Position is its place in the queue, from 1; 0 when it does not wait there.
	Position int
	// Waiting is the length of the queue.
	Waiting int
	// Blockers are the limits in its way; none when it only waits its turn.
	Blockers []Blocker
}

// Usage counts the slots in use.
type Usage struct {
	// Cluster is the number of migrations that hold slots.
	Cluster int
	// Outbound and Inbound count them per node.
	Outbound, Inbound map[string]int
	// Limits are the limits in force.
	Limits Limits
}

// slot is what a migration holds.
type slot struct {
	claim Claim
	// inbound says that the slot at claim.TargetNode is held.
	inbound bool
}

// Admission hands out the slots and keeps the queue before them. A slot is
// reserved before anything is written and held until it is released; who gets a
// freed one is decided at once, in the order of the queue, skipping migrations
// that another limit holds back. Nothing polls: every method that may let others
// proceed returns their keys, to be reconciled at once.
//
// All state can be rebuilt from the API with [Admission.Restore]. It is safe for
// concurrent use; no lock is held while anything outside is called.
type Admission struct {
	mu sync.Mutex
	// Guarded by mu, as are the methods that begin with locked.
	limits   Limits
	queue    *Queue
	slots    map[types.NamespacedName]*slot
	waiting  map[types.NamespacedName]Claim
	outbound map[string]int
	inbound  map[string]int
	// told is what each waiting migration was last told, so that only those
	// whose answer changed are woken.
	told map[types.NamespacedName]answer
}

// NewAdmission returns an admission without claims. The queue belongs to it from
// then on; nil means one with default options.
func NewAdmission(l Limits, q *Queue) *Admission {
	if q == nil {
		q = NewQueue(QueueOptions{})
	}
	return &Admission{
		limits: l, queue: q,
		slots: map[types.NamespacedName]*slot{}, waiting: map[types.NamespacedName]Claim{},
		outbound: map[string]int{}, inbound: map[string]int{}, told: map[types.NamespacedName]answer{},
	}
}

// Restore takes in all claims of a fresh start at once, before any of them is
// admitted, so that those who act keep their slots and the others stand in the
// right order whoever is reconciled first. It returns the migrations admitted.
func (a *Admission) Restore(claims []Claim, now time.Time) []types.NamespacedName {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range claims {
		a.lockedTake(c)
	}
	return a.lockedDispatch(now)
}

// Ask claims capacity, or renews a claim with what has become known since. The
// answer is a verdict for this migration and the keys of others whose answer
// changed.
func (a *Admission) Ask(c Claim, now time.Time) (Verdict, []types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lockedTake(c)
	woken := a.lockedDispatch(now)
	v := a.lockedVerdict(c.Key, now)
	a.lockedTell(c.Key, v)
	return v, slices.DeleteFunc(woken, func(k types.NamespacedName) bool { return k == c.Key })
}

// Explain answers like Ask without claiming anything.
func (a *Admission) Explain(key types.NamespacedName, now time.Time) Verdict {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lockedVerdict(key, now)
}

// Release gives up the claim of the migration, held or waiting, and returns the
// keys of the migrations that may proceed because of it. Releasing what is not
// claimed is no error.
func (a *Admission) Release(key types.NamespacedName, now time.Time) []types.NamespacedName {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.lockedForget(key) {
		return nil
	}
	return a.lockedDispatch(now)
}

// SetLimits changes the limits and returns the keys of the migrations that may
// proceed because of it. Lower limits take no slot away.
func (a *Admission) SetLimits(l Limits, now time.Time) []types.NamespacedName {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.limits == l {
		return nil
	}
	a.limits = l
	return a.lockedDispatch(now)
}

// Usage returns the slots in use.
func (a *Admission) Usage() Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := Usage{Cluster: len(a.slots), Outbound: map[string]int{}, Inbound: map[string]int{}, Limits: a.limits}
	for n, c := range a.outbound {
		u.Outbound[n] = c
	}
	for n, c := range a.inbound {
		u.Inbound[n] = c
	}
	return u
}

// Queued returns the waiting migrations, the next one first.
func (a *Admission) Queued(now time.Time) []Item {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.queue.Order(now)
}

// lockedTake stores a claim: in its slots when it acts or holds them already,
// else in the queue.
func (a *Admission) lockedTake(c Claim) {
	s, held := a.slots[c.Key]
	switch {
	case held:
		a.lockedMove(s, c)
	case c.Acting:
		a.lockedUnqueue(c.Key)
		a.lockedGrant(c)
	default:
		a.waiting[c.Key] = c
		a.queue.Put(Item{Key: c.Key, Priority: c.Priority, Since: c.Since})
	}
}

// lockedMove renews the claim of a holder, whose nodes may have changed.
func (a *Admission) lockedMove(s *slot, c Claim) {
	if s.claim.SourceNode != c.SourceNode {
		add(a.outbound, s.claim.SourceNode, -1)
		add(a.outbound, c.SourceNode, 1)
	}
	if s.inbound && s.claim.TargetNode != c.TargetNode {
		add(a.inbound, s.claim.TargetNode, -1)
		s.inbound = false
	}
	s.claim = c
	if c.Arriving && !s.inbound && c.TargetNode != "" {
		a.lockedEnter(s)
	}
}

// lockedGrant gives the claim its cluster and outbound slots.
func (a *Admission) lockedGrant(c Claim) {
	s := &slot{claim: c}
	a.slots[c.Key] = s
	add(a.outbound, c.SourceNode, 1)
	if c.Arriving && c.TargetNode != "" {
		a.lockedEnter(s)
	}
}

// lockedEnter gives a holder its slot at the target node.
func (a *Admission) lockedEnter(s *slot) {
	s.inbound = true
	add(a.inbound, s.claim.TargetNode, 1)
	delete(a.told, s.claim.Key)
}

func (a *Admission) lockedUnqueue(key types.NamespacedName) {
	a.queue.Remove(key)
	delete(a.waiting, key)
	delete(a.told, key)
}

// lockedForget drops a claim and reports whether there was one.
func (a *Admission) lockedForget(key types.NamespacedName) bool {
	s, held := a.slots[key]
	if held {
		delete(a.slots, key)
		add(a.outbound, s.claim.SourceNode, -1)
		if s.inbound {
			add(a.inbound, s.claim.TargetNode, -1)
		}
	}
	queued := a.queue.Contains(key)
	a.lockedUnqueue(key)
	return held || queued
}

// add counts and keeps the map free of zeros.
func add(m map[string]int, node string, n int) {
	if m[node] += n; m[node] == 0 {
		delete(m, node)
	}
}
