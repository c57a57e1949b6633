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
	"github.com/virtloom/virtloom/domain/migrate"
	"github.com/virtloom/virtloom/domain/plan"
)

// migrations holds the live migrations this process carries out, and those it has found under way
// and monitors. It is a hint only: a restart recovers from the lease and the hypervisor.
type migrations struct {
	clock clock.PassiveClock
	every time.Duration // between two reported progresses

	mu      sync.Mutex
	ctx     context.Context // of the migrations: ends when the remaining ones are aborted
	abandon context.CancelFunc
	closed  bool // no migration begins any more
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
	running map[types.NamespacedName]*migration
	all     sync.WaitGroup // of the migrations
	over    map[types.NamespacedName]outcome
}

// migration is a migration under way.
type migration struct {
	progress domain.Progress // as last observed
	shown    *domain.Progress
	shownAt  time.Time
	mode     v1.MigrationMode
	settings *migrate.MigrationSettings // settings to apply; nil until stored
	over     chan struct{}              // closed when it is over
}

// outcome is the end of a migration.
type outcome struct {
	at      time.Time
	failure string
}

func newMigrations(c clock.PassiveClock, every time.Duration) *migrations {
	return &migrations{clock: c, every: every, running: map[types.NamespacedName]*migration{}, over: map[types.NamespacedName]outcome{}}
}

// source takes the controller's queue. Migrations outlive the manager that ends, for a while; see
// [Reconciler.drain].
func (m *migrations) source() source.Source {
	return source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.ctx, m.abandon = context.WithCancel(context.WithoutCancel(ctx))
		m.queue = q
		return nil
	})
}

// close lets no migration begin from now on.
func (m *migrations) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
}

// end aborts the migrations under way and waits until the hypervisor has reported the outcome of
// each.
func (m *migrations) end() {
	m.mu.Lock()
	m.closed = true
	abandon := m.abandon
	m.mu.Unlock()
	if abandon != nil {
		abandon()
	}
	m.all.Wait()
}

// see fills in whether a migration of the domain runs here with its progress to report, and the
// reason and time of the last one's end.
func (m *migrations) see(key types.NamespacedName, s *plan.Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.over[key]
	s.MigrationFailure, s.MigrationEnded = last.failure, last.at
	if mv := m.running[key]; mv != nil {
		s.Migrating, s.Shown, s.MigrationMode = true, mv.shown, mv.mode
	}
}

// ended returns a channel that is closed when the VMI's migration on this node ends; nil if there
// is none.
func (m *migrations) ended(key types.NamespacedName) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mv := m.running[key]; mv != nil {
		return mv.over
	}
	return nil
}

// recent returns the VMIs that were migrated, whose outcome may have to be reported.
func (m *migrations) recent() []types.NamespacedName {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.over))
}

// keys returns the VMIs that are being migrated.
func (m *migrations) keys() []types.NamespacedName {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []types.NamespacedName
	for key := range m.running {
		out = append(out, key)
	}
	return out
}

// progresses returns the progress of the migrations that have been observed at the hypervisor.
func (m *migrations) progresses() map[types.NamespacedName]domain.Progress {
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

// forget drops everything about a VMI that this node no longer serves.
func (m *migrations) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.over, key)
}

// report records the progress of the VMI's migration, and requests a pass when it is to be
// reported: a new mode at once, other changes at intervals.
func (m *migrations) report(key types.NamespacedName, p domain.Progress, mode v1.MigrationMode) {
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

// follow passes settings to the VMI's migration.
func (m *migrations) follow(key types.NamespacedName, s migrate.MigrationSettings) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mv := m.running[key]; mv != nil {
		mv.settings = &s
	}
}

// settings returns the stored settings of the VMI's migration; nil if there are none.
func (m *migrations) settings(key types.NamespacedName) *migrate.MigrationSettings {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mv := m.running[key]; mv != nil {
		return mv.settings
	}
	return nil
}

// begin runs carry beside the workers, at most once for a VMI, and requests a pass when it ends;
// carry returns why the guest has not migrated, empty if it has, and the cleanup, for which the VMI
// does not wait; may be nil.
func (m *migrations) begin(key types.NamespacedName, carry func(context.Context) (failure string, tidy func())) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.queue == nil:
		return fmt.Errorf("domainctrl: migrate %s: the controller has not started", key)
	case m.running[key] != nil:
		return nil
	case m.closed:
		return fmt.Errorf("domainctrl: migrate %s: the controller is shutting down: %w", key, context.Canceled)
	}
	mv := &migration{over: make(chan struct{})}
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
