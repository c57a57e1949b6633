// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/virtloom/virtloom/domain"
)

// moves holds the live migrations this process is carrying out. It is a hint
// only: what a restart needs is in the lease and at the hypervisor.
type moves struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	ctx     context.Context // set by the source's start; ends with the manager
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
	running map[types.NamespacedName]bool
	all     sync.WaitGroup // of those
	over    map[types.NamespacedName]outcome
}

// outcome is how a move ended.
type outcome struct {
	at      time.Time
	failure string
}

func newMoves(c clock.PassiveClock) *moves {
	return &moves{clock: c, running: map[types.NamespacedName]bool{}, over: map[types.NamespacedName]outcome{}}
}

// source gives the moves the controller's queue and the manager's context.
func (m *moves) source() source.Source {
	return source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.ctx, m.queue = ctx, q
		return nil
	})
}

// Start lets a manager wait for the moves when it ends: each call at the hypervisor
// ends with it.
func (m *moves) Start(ctx context.Context) error {
	<-ctx.Done()
	m.mu.Lock()
	m.ctx = ctx // none begins from now on
	m.mu.Unlock()
	m.all.Wait()
	return nil
}

// NeedLeaderElection is false: every node moves its own guests.
func (m *moves) NeedLeaderElection() bool { return false }

// state tells whether a move of the guest is running here, and why and when the
// last one ended.
func (m *moves) state(key types.NamespacedName) (moving bool, failure string, ended time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.over[key]
	return m.running[key], last.failure, last.at
}

// forget drops what is remembered of a guest that is nothing to this node.
func (m *moves) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.over, key)
}

// begin runs move beside the workers, at most one for a guest, and looks at
// the guest again when it ends.
func (m *moves) begin(key types.NamespacedName, move func(context.Context) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queue == nil {
		return fmt.Errorf("domainctrl: migrate %s: the controller has not started", key)
	}
	if m.running[key] {
		return nil
	}
	if err := m.ctx.Err(); err != nil {
		return fmt.Errorf("domainctrl: migrate %s: the controller ends: %w", key, err)
	}
	m.running[key] = true
	delete(m.over, key)
	ctx, queue := m.ctx, m.queue
	m.all.Go(func() {
		err := move(ctx)
		m.mu.Lock()
		delete(m.running, key)
		end := outcome{at: m.clock.Now()}
		if err != nil {
			end.failure = err.Error()
		}
		m.over[key] = end
		m.mu.Unlock()
		queue.Add(reconcile.Request{NamespacedName: key})
	})
	return nil
}

// migrate begins the migration of a guest. Once it is under way the hypervisors
// finish it, whatever becomes of the way to the API server.
func (r *Reconciler) migrate(ctx context.Context, v view, t domain.Task) error {
	m, able := r.Hypervisor.(domain.Migrator)
	if !able {
		return fmt.Errorf("domainctrl: migrate %s: %w", t.Request.Domain, domain.ErrUnsupported)
	}
	log := ctrl.LoggerFrom(ctx)
	log.Info("Beginning a live migration", "destination", t.Request.DestinationURI, "disks", t.Request.CopyDisks)
	return r.moves.begin(types.NamespacedName{Namespace: v.vmi.Namespace, Name: v.vmi.Name}, func(ctx context.Context) error {
		ctx, span := tracer.Start(ctx, "node.LiveMigration")
		defer span.End()
		if _, err := r.within(v, t); err != nil {
			return err
		}
		began := r.Clock.Now()
		err := m.Migrate(ctx, t.Request)
		log.Info("A live migration ended", "seconds", r.Clock.Since(began).Seconds(), "error", err)
		return err
	})
}
