// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/virtloom/virtloom/domain"
)

// moves holds the live migrations this process is carrying out, and those it has found
// going on and looks after. It is a hint only: what a restart needs is in the lease and
// at the hypervisor.
type moves struct {
	clock clock.PassiveClock
	every time.Duration // between two progresses that are told

	mu      sync.Mutex
	ctx     context.Context // of the moves: ends when those left are given up
	abandon context.CancelFunc
	closed  bool // none begins any more
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
	running map[types.NamespacedName]*move
	all     sync.WaitGroup // of those
	over    map[types.NamespacedName]outcome
}

// move is a migration under way.
type move struct {
	progress domain.Progress // as seen last
	shown    *domain.Progress
	shownAt  time.Time
	mode     v1.MigrationMode
	settings *domain.MigrationSettings // it is to go by; nil until they are told
	over     chan struct{}             // closed when it is
}

// outcome is how a move ended.
type outcome struct {
	at      time.Time
	failure string
}

func newMoves(c clock.PassiveClock, every time.Duration) *moves {
	return &moves{clock: c, every: every, running: map[types.NamespacedName]*move{}, over: map[types.NamespacedName]outcome{}}
}

// source gives the moves the controller's queue. They outlive the manager that ends, for
// a while; see [Reconciler.drain].
func (m *moves) source() source.Source {
	return source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.ctx, m.abandon = context.WithCancel(context.WithoutCancel(ctx))
		m.queue = q
		return nil
	})
}

// close lets none begin from now on.
func (m *moves) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
}

// end gives up those that are under way and waits until the hypervisor has said what has
// become of each.
func (m *moves) end() {
	m.mu.Lock()
	m.closed = true
	abandon := m.abandon
	m.mu.Unlock()
	if abandon != nil {
		abandon()
	}
	m.all.Wait()
}

// see fills in whether a move of the guest is running here and what is to be told of it,
// and why and when the last one ended.
func (m *moves) see(key types.NamespacedName, s *domain.Sight) {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.over[key]
	s.MoveFailure, s.MoveEnded = last.failure, last.at
	if mv := m.running[key]; mv != nil {
		s.Moving, s.Shown, s.MoveMode = true, mv.shown, mv.mode
	}
}

// ended returns what is closed when a move of the guest ends that is running here; nil if
// none is.
func (m *moves) ended(key types.NamespacedName) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mv := m.running[key]; mv != nil {
		return mv.over
	}
	return nil
}

// recent are the guests that were moved, of whose end somebody may have to be told.
func (m *moves) recent() []types.NamespacedName {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.over))
}

// keys are the guests that are being moved.
func (m *moves) keys() []types.NamespacedName {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []types.NamespacedName
	for key := range m.running {
		out = append(out, key)
	}
	return out
}

// progresses tell how far the moves have come that have been seen at the hypervisor.
func (m *moves) progresses() map[types.NamespacedName]domain.Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[types.NamespacedName]domain.Progress{}
	for key, mv := range m.running {
		if mv.shown != nil {
			out[key] = mv.progress
		}
	}
	return out
}

// forget drops what is remembered of a guest that is nothing to this node.
func (m *moves) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.over, key)
}

// report notes how far the guest's move has come, and asks for a pass when there is
// something to tell: a new mode at once, all else now and then.
func (m *moves) report(key types.NamespacedName, p domain.Progress, mode v1.MigrationMode) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mv := m.running[key]
	if mv == nil {
		return
	}
	mv.progress = p
	now := m.clock.Now()
	if mv.shown != nil && mv.mode == mode && now.Sub(mv.shownAt) < m.every {
		return
	}
	mv.shown, mv.shownAt, mv.mode = &p, now, mode
	m.queue.Add(reconcile.Request{NamespacedName: key})
}

// follow tells the guest's move the settings it is to go by from now on.
func (m *moves) follow(key types.NamespacedName, s domain.MigrationSettings) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mv := m.running[key]; mv != nil {
		mv.settings = &s
	}
}

// settings are those that the guest's move is to go by; nil if they were not told.
func (m *moves) settings(key types.NamespacedName) *domain.MigrationSettings {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mv := m.running[key]; mv != nil {
		return mv.settings
	}
	return nil
}

// begin runs carry beside the workers, at most one for a guest, and looks at the guest
// again when it ends; carry tells why the guest has not moved, nothing if it has, and
// what is left to do then, for which the guest does not wait; may be nil.
func (m *moves) begin(key types.NamespacedName, carry func(context.Context) (failure string, tidy func())) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.queue == nil:
		return fmt.Errorf("domainctrl: migrate %s: the controller has not started", key)
	case m.running[key] != nil:
		return nil
	case m.closed:
		return fmt.Errorf("domainctrl: migrate %s: the controller ends: %w", key, context.Canceled)
	}
	mv := &move{over: make(chan struct{})}
	m.running[key] = mv
	delete(m.over, key)
	ctx, queue := m.ctx, m.queue
	m.all.Go(func() {
		failure, tidy := carry(ctx)
		m.mu.Lock()
		delete(m.running, key)
		m.over[key] = outcome{at: m.clock.Now(), failure: failure}
		m.mu.Unlock()
		close(mv.over)
		queue.Add(reconcile.Request{NamespacedName: key})
		if tidy != nil {
			tidy()
		}
	})
	return nil
}
