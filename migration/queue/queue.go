// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilclock "k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
)

// Priorities of waiting migrations, as KubeVirt orders them.
const (
	// PriorityCritical is spec.priority system-critical.
	PriorityCritical = 100
	// PriorityUser is spec.priority user-triggered.
	PriorityUser = 50
	// PriorityMaintenance is spec.priority system-maintenance.
	PriorityMaintenance = 20
	// PriorityUnset is an absent or unknown spec.priority.
	PriorityUnset = 0
)

// PriorityOf returns the number for a migration's spec.priority.
func PriorityOf(p *v1.MigrationPriority) int {
	if p == nil {
		return PriorityUnset
	}
	switch *p {
	case v1.PrioritySystemCritical:
		return PriorityCritical
	case v1.PriorityUserTriggered:
		return PriorityUser
	case v1.PrioritySystemMaintenance:
		return PriorityMaintenance
	}
	return PriorityUnset
}

// Options define the order in which a [Queue] or an [Admission] serves.
type Options struct {
	// AgeAfter is the time after which an item counts as of the next higher
	// level; after three times AgeAfter every item is of the highest. Zero means
	// 10 minutes, negative disables ageing.
	AgeAfter time.Duration
	// Weights are the shares of namespaces among items of one level. A namespace
	// that is absent, or has no positive weight, has 1; weights are limited to 1/1000
	// to 1000 and kept to at least three digits.
	Weights map[string]float64
	// Unfair disables fairness between namespaces: among items of one level,
	// age alone decides, or Order.
	Unfair bool
	// Order replaces age within a namespace, say by the size of the VMI, and
	// between namespaces with equal accounts. It is negative if a goes before
	// b, positive if after, zero to leave it to age and name. It must be a pure
	// function of the two items, consistent as for sorting; it is called
	// under the queue's lock. Ageing still raises levels, but whether an item
	// that newer ones keep overtaking is served depends on Order: the bound of
	// [Queue] counts the items before it.
	Order func(a, b Item) int
	// Clock is the clock of a [Queue]. Defaults to the real one. [Admission] gets
	// the time as an argument.
	Clock utilclock.PassiveClock
}

// Item is an entry of a [Queue].
type Item struct {
	// Key names the item; its namespace is the unit of fairness.
	Key types.NamespacedName
	// Priority selects one of four levels: from 100 on, from 50, from 20, and
	// below. Numbers of one level count the same.
	Priority int
	// Since is when it began to wait. Zero means when it is added.
	Since time.Time
	// Lane groups items that can be blocked together, say by the node a VMI
	// leaves.
	Lane string
	// Size is for the caller's Options.Order.
	Size int64
}

// ErrClosed means that the queue was closed.
var ErrClosed = errors.New("migration: the queue is closed")

// Queue is a work queue for any number of workers, of migrations or of anything
// else that has a name in a namespace. A key is in it once, and no two workers
// have the same key at a time.
//
// The order is: by level, which is the priority raised by waiting; in a level, by
// turns between namespaces according to their weights; in a namespace, by age,
// then name, or by the caller's order. Items of a blocked lane are passed over.
//
// Turns are start-time fair queuing. A namespace has an account per level. An
// item taken costs one over the weight, and the namespace with the lowest account
// is next; of equal ones, that whose item is older, or first by the caller's order.
// The virtual time of the level is the account with which the last item was taken.
// A namespace that comes to a level starts at the virtual time, or at its old
// account if that is higher, and one whose account has fallen behind because its
// lanes were blocked is charged from the virtual time on. So absence earns nothing,
// and being blocked no more than one turn. When a level is empty, all accounts are
// even again.
//
// # Bound on waiting
//
// After three times AgeAfter an item is of the highest level. From then on, while
// its lane is open, no more than
//
//	k + Σ (1 + ⌊(k+1) · wₘ/w⌋)
//
// items are taken before it: k are those that stand before it in its own
// namespace, of weight w, and the sum is over the other namespaces m, of weight
// wₘ, that have items in the highest level meanwhile. With equal weights, and
// nothing older in the namespace, that is two per other namespace, however many
// wait in those and whatever their priority. Weights count as they are kept.
//
// # Cost
//
// Adding, removing and getting an item takes O(log n) comparisons, and no allocation
// once there were as many items before; blocking a lane O(m · log n) for m
// namespaces in it; a position O(m + n/256) steps for m namespaces in the level, as lists are
// counted in parts.
type Queue struct {
	clock utilclock.PassiveClock
	// ready holds a token while there may be something to get;the worker that takes the
	// token and leaves something puts it back.
	ready chan struct{}
	done  chan struct{}

	mu sync.Mutex
	// Guarded by mu.
	line   *line
	jobs   map[types.NamespacedName]*job
	spare  []*job
	closed bool
}

// job is a key that waits, is worked on, or both.
type job struct {
	node
	// worked says that a worker has it; again, that it was added meanwhile.
	worked, again bool
}

// NewQueue returns an empty queue.
func NewQueue(o Options) *Queue {
	if o.Clock == nil {
		o.Clock = utilclock.RealClock{}
	}
	return &Queue{
		clock: o.Clock, line: newLine(o), jobs: map[types.NamespacedName]*job{},
		ready: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

// Add adds the item to the queue. If its key waits already, its priority, lane and size
// are replaced and its waiting time is kept. If the key is worked on, the item joins when
// that is done. After Close, Add does nothing.
func (q *Queue) Add(it Item) {
	now := q.clock.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if it.Since.IsZero() {
		it.Since = now
	}
	// Times with a monotonic reading would not compare with times without.
	it.Since = it.Since.Round(0)
	q.line.age(now)
	j := q.jobs[it.Key]
	switch {
	case j == nil:
		j = q.newJob()
		q.jobs[it.Key], j.Item, j.job = j, it, j
		q.line.add(&j.node, now)
	case j.worked:
		if j.again {
			it.Since = j.Since
		}
		j.Item, j.again = it, true
		return
	default:
		q.line.change(&j.node, it, now)
	}
	q.signal()
}

// Get takes the next item of a lane that is not blocked. It waits until there is
// one, and returns the context's error when that ends, or [ErrClosed]. The key is
// worked on until Done.
func (q *Queue) Get(ctx context.Context) (Item, error) {
	for {
		if err := ctx.Err(); err != nil {
			q.passOn()
			return Item{}, err
		}
		it, found, err := q.tryGet()
		if found || err != nil {
			return it, err
		}
		select {
		case <-ctx.Done():
		case <-q.ready:
		case <-q.done:
		}
	}
}

// passOn wakes another worker in place of one that leaves and may have taken the token.
func (q *Queue) passOn() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.signal()
}

func (q *Queue) tryGet() (Item, bool, error) {
	now := q.clock.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return Item{}, false, ErrClosed
	}
	q.line.age(now)
	n := q.line.next()
	if n == nil {
		return Item{}, false, nil
	}
	q.line.take(n)
	j := n.job
	j.worked = true
	q.signal()
	return j.Item, true, nil
}

// signal wakes a worker if there is something to get.
func (q *Queue) signal() {
	if q.line.next() == nil {
		return
	}
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// Done ends the work on the key. If the key was added meanwhile, it joins the queue
// now. For a key that is not worked on it does nothing.
func (q *Queue) Done(key types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[key]
	if j == nil || !j.worked {
		return
	}
	j.worked = false
	if !j.again || q.closed {
		q.drop(j)
		return
	}
	j.again = false
	now := q.clock.Now()
	q.line.age(now)
	q.line.add(&j.node, now)
	q.signal()
}

// Remove takes the key out of the queue, whether it waits or is to join after
// Done, and reports whether it was there. Work on it continues.
func (q *Queue) Remove(key types.NamespacedName) bool {
	now := q.clock.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[key]
	switch {
	case j == nil:
		return false
	case j.worked:
		was := j.again
		j.again = false
		return was
	}
	q.line.age(now)
	q.line.remove(&j.node)
	q.drop(j)
	return true
}

// Len returns the number of waiting items, including those of blocked lanes.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.line.n
}

// Contains reports whether the key waits. A key that joins after Done does not
// wait yet.
func (q *Queue) Contains(key types.NamespacedName) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[key]
	return j != nil && !j.worked
}

// Position returns the current place of the key, from 1, as if no lane were blocked;
// 0 when it does not wait.
func (q *Queue) Position(key types.NamespacedName) int {
	now := q.clock.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[key]
	if j == nil || j.worked {
		return 0
	}
	q.line.age(now)
	return q.line.position(&j.node)
}

// Snapshot returns all waiting items in the current order, as if no lane were blocked.
func (q *Queue) Snapshot() []Item {
	now := q.clock.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.line.age(now)
	return q.line.order()
}

// Block stops handing out items of the lane; they keep their places and grow older. The
// lane may be empty.
func (q *Queue) Block(lane string) { q.block(lane, true) }

// Unblock ends Block.
func (q *Queue) Unblock(lane string) { q.block(lane, false) }

func (q *Queue) block(lane string, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.line.block(lane, closed)
	q.signal()
}

// Close ends all present and future calls of Get with [ErrClosed]. It does not
// wait.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.done)
	}
}

func (q *Queue) newJob() *job {
	last := len(q.spare) - 1
	if last < 0 {
		return &job{}
	}
	j := q.spare[last]
	q.spare = q.spare[:last]
	return j
}

func (q *Queue) drop(j *job) {
	delete(q.jobs, j.Key)
	*j = job{}
	q.spare = spare(q.spare, j)
}
