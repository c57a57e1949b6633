// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// classic is the classical form of expectations, for scale: a number of additions and removals for each owner's key, and
// the UIDs of the objects being deleted, each behind one lock for all owners. It knows neither names nor versions, keeps one
// expectation per key, and opens after its TTL.
type classic struct {
	now func() time.Time
	ttl time.Duration

	mu     sync.RWMutex
	counts map[string]*counts

	uidMu sync.Mutex
	uids  map[string]sets.Set[string]
}

type counts struct {
	add, del atomic.Int64
	since    time.Time
}

func newClassic() *classic {
	start := time.Unix(0, 0)
	return &classic{
		now: func() time.Time { return start }, ttl: 5 * time.Minute,
		counts: map[string]*counts{}, uids: map[string]sets.Set[string]{},
	}
}

func classicKey(k types.NamespacedName) string { return k.Namespace + "/" + k.Name }

func (c *classic) expect(key string, add, del int64) {
	n := &counts{since: c.now()}
	n.add.Store(add)
	n.del.Store(del)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[key] = n
}

func (c *classic) get(key string) *counts {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.counts[key]
}

func (c *classic) created(key string) {
	if n := c.get(key); n != nil {
		n.add.Add(-1)
	}
}

func (c *classic) expectDeletions(key string, uids ...string) {
	c.uidMu.Lock()
	defer c.uidMu.Unlock()
	c.uids[key] = sets.New(uids...)
	c.expect(key, 0, int64(len(uids)))
}

func (c *classic) deleted(key, uid string) {
	c.uidMu.Lock()
	defer c.uidMu.Unlock()
	if left := c.uids[key]; left.Has(uid) {
		left.Delete(uid)
		if n := c.get(key); n != nil {
			n.del.Add(-1)
		}
	}
}

func (c *classic) satisfied(key string) bool {
	n := c.get(key)
	return n == nil || (n.add.Load() <= 0 && n.del.Load() <= 0) || c.now().Sub(n.since) > c.ttl
}

// Creations are merely counted.
func BenchmarkPeerCountingCycle(b *testing.B) {
	c, w := newClassic(), newWorker(subjects(), 0, 1)
	b.ReportAllocs()
	for b.Loop() {
		w.countingCycle(b, c)
	}
}

// Deletions are distinguished by UID.
func BenchmarkPeerUIDTrackingCycle(b *testing.B) {
	c, w := newClassic(), newWorker(subjects(), 0, 1)
	b.ReportAllocs()
	for b.Loop() {
		w.uidTrackingCycle(b, c)
	}
}

func BenchmarkPeerUIDTrackingCycleParallel(b *testing.B) {
	c := newClassic()
	parallel(b, func(w *worker) { w.uidTrackingCycle(b, c) })
}

func (w *worker) countingCycle(b *testing.B, c *classic) {
	key := classicKey(w.next().owner.Key)
	c.expect(key, 1, 0)
	c.created(key)
	if !c.satisfied(key) {
		b.Error("not satisfied")
	}
}

func (w *worker) uidTrackingCycle(b *testing.B, c *classic) {
	s := w.next()
	key := classicKey(s.owner.Key)
	c.expectDeletions(key, string(s.uid))
	c.deleted(key, string(s.uid))
	if !c.satisfied(key) {
		b.Error("not satisfied")
	}
}

// consistency is how controllers of Kubernetes 1.37 await their writes (pkg/controller/util/consistency), for scale: the newest
// version written for each owner, which the version that the whole informer has reached must not be older than. It knows no
// objects, and a write counts from its answer on.
type consistency struct {
	read atomic.Uint64 // the version of the informer

	mu     sync.RWMutex
	writes map[types.NamespacedName]*written
}

type written struct {
	uid types.UID

	mu      sync.Mutex
	version map[string]string // by resource
}

func newConsistency() *consistency {
	return &consistency{writes: map[types.NamespacedName]*written{}}
}

func (c *consistency) wroteAt(key types.NamespacedName, uid types.UID, version string) {
	c.mu.RLock()
	w := c.writes[key]
	c.mu.RUnlock()
	if w == nil || w.uid != uid {
		w = &written{uid: uid, version: map[string]string{}}
		c.mu.Lock()
		c.writes[key] = w
		c.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.version["pods"] = version
}

func (c *consistency) ready(key types.NamespacedName) bool {
	c.mu.RLock()
	w := c.writes[key]
	c.mu.RUnlock()
	if w == nil {
		return true
	}
	w.mu.Lock()
	version, err := strconv.ParseUint(w.version["pods"], 10, 64)
	w.mu.Unlock()
	if err == nil && version > c.read.Load() {
		return false
	}
	c.mu.Lock()
	delete(c.writes, key)
	c.mu.Unlock()
	return true
}

// Writes are distinguished by version.
func BenchmarkPeerConsistencyStoreCycle(b *testing.B) {
	c, w := newConsistency(), newWorker(subjects(), 0, 1)
	b.ReportAllocs()
	for b.Loop() {
		w.consistencyCycle(b, c)
	}
}

func BenchmarkPeerConsistencyStoreCycleParallel(b *testing.B) {
	c := newConsistency()
	parallel(b, func(w *worker) { w.consistencyCycle(b, c) })
}

func (w *worker) consistencyCycle(b *testing.B, c *consistency) {
	s := w.next()
	c.wroteAt(s.owner.Key, s.owner.UID, "5")
	c.read.Store(5)
	if !c.ready(s.owner.Key) {
		b.Error("not ready")
	}
}
