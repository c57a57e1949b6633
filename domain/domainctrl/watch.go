// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

const (
	// progressDeadline bounds one question of how far a migration has come, as KubeVirt
	// bounds short questions.
	progressDeadline = 5 * time.Second
	// abortRetry is when a migration that goes on is aborted again.
	abortRetry = 5 * time.Second
	// helpTries is how often help for a migration may fail in a row before the next best
	// is tried.
	helpTries = 10
)

// abortedText is what KubeVirt says of a migration that it has aborted.
const abortedText = "Live migration has been aborted"

// watch looks after a migration that is going on: it asks how far it has come, and
// carries out what the monitor advises. It is not safe for concurrent use but for what
// says so.
type watch struct {
	r       *Reconciler
	key     types.NamespacedName
	name    string
	m       domain.Migrator
	monitor domain.Monitor

	tuning  tuning
	seen    bool                            // at the hypervisor
	adopted bool                            // another process has begun it
	last    atomic.Pointer[domain.Progress] // nil before that
	failed  int                             // tries of the same help in a row
	aborted time.Time                       // when that was asked for last
	why     atomic.Pointer[string]          // it was aborted
}

// watch makes a watch over a migration of the guest.
func (r *Reconciler) watch(key types.NamespacedName, m domain.Migrator, v view) *watch {
	w := &watch{r: r, key: key, name: domain.Name(key.Namespace, key.Name), m: m}
	w.monitor = domain.Monitor{
		Settings: domain.MigrationSettingsOf(v.vmi, v.sight.Migrations),
		Bytes:    domain.MovingBytes(v.vmi, v.sight.CopyBytes),
	}
	w.tuning = tuning{asked: w.monitor.Tuning(), told: w.monitor.Tuning(), known: true}
	if v.sight.State != nil {
		w.monitor.Passthrough = domain.HasPassthrough(v.sight.State.Domain)
	}
	return w
}

// takeUp goes on with what an earlier process has told of the migration: a guest that it
// has made pay for the end is not taken for one that stands still by itself.
func (w *watch) takeUp(told *v1.VirtualMachineInstanceMigrationState) {
	w.monitor.Disrupted = told != nil && told.Mode == v1.MigrationPaused
}

// beside runs the watch until the returned function is called, which waits for it.
func (w *watch) beside(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { w.run(ctx) })
	return func() {
		cancel()
		beside.Wait()
	}
}

// run looks at the migration every [domain.MonitorEvery] until ctx ends, or the migration
// that was seen.
func (w *watch) run(ctx context.Context) {
	clk, ticks := w.r.Clock.(clock.WithTicker)
	if !ticks {
		clk = clock.RealClock{}
	}
	t := clk.NewTicker(domain.MonitorEvery)
	defer t.Stop()
	for {
		if over := w.look(ctx); over {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C():
		}
	}
}

// finish looks after a migration that nobody here has asked for, or waits for any more,
// until it is over.
func (w *watch) finish(ctx context.Context) {
	if !w.seen {
		w.tuning.known = false // who has begun it may have gone by other settings
	}
	w.seen, w.adopted = true, true
	w.run(ctx)
}

// result is how the migration has gone, as far as the hypervisor still knows, or was
// seen.
func (w *watch) result(ctx context.Context) domain.Progress {
	ctx, cancel := context.WithTimeout(ctx, progressDeadline)
	defer cancel()
	p, err := w.m.MigrationProgress(ctx, w.name)
	if last := w.last.Load(); last != nil && (err != nil || p.Total == 0) {
		p = *last
	}
	return p
}

// look reports whether the migration is over.
func (w *watch) look(ctx context.Context) (over bool) {
	asked, cancel := context.WithTimeout(ctx, min(progressDeadline, w.r.CallTimeout))
	p, err := w.m.MigrationProgress(asked, w.name)
	cancel()
	switch {
	case errors.Is(err, domain.ErrNotFound):
		return w.seen
	case err != nil:
		logger(ctx).V(1).Info("Cannot tell how far a migration has come", "cause", err.Error())
		return false
	case !p.Active:
		return w.seen
	}
	if w.last.Swap(&p) == nil {
		w.seen = true
		w.r.step(ctx, w.key, domain.SourceMoving)
	}
	st, _ := w.r.Informer.Get(w.name)
	if w.adopted && torn(&st) {
		return true
	}
	w.follow(ctx, p)
	a := w.monitor.Observe(p, st.Status == domain.StatusPaused, w.r.Clock.Now())
	w.r.moves.report(w.key, p, a.Mode)
	w.help(ctx, a)
	return false
}

// help carries out what the monitor advises. What cannot be done is told to it.
func (w *watch) help(ctx context.Context, a domain.Advice) {
	if a.Action == domain.Carry || a.Action == domain.AbortMove && !w.mayAbort(a) {
		return
	}
	log := logger(ctx).WithValues("guest", w.key.String(), "action", a.Action, "why", a.Why)
	helped, cancel := context.WithTimeout(ctx, w.r.CallTimeout)
	err := w.give(helped, a)
	cancel()
	if err == nil {
		w.failed = 0
		log.Info("Helping a live migration")
		if a.Action == domain.SwitchToPostCopy || a.Action == domain.PauseGuest {
			w.r.step(ctx, w.key, domain.SourceDisrupting)
		}
		return
	}
	if w.failed++; errors.Is(err, domain.ErrUnsupported) || w.failed >= helpTries {
		w.failed = 0
		w.monitor.Refuse(a.Action)
	}
	log.Error(err, "Cannot help a live migration")
}

// mayAbort notes that and why the migration is aborted, unless that was asked for a
// moment ago.
func (w *watch) mayAbort(a domain.Advice) bool {
	now := w.r.Clock.Now()
	if !w.aborted.IsZero() && now.Sub(w.aborted) < abortRetry {
		return false
	}
	w.aborted = now
	w.why.CompareAndSwap(nil, &a.Why)
	return true
}

// give does what is advised.
func (w *watch) give(ctx context.Context, a domain.Advice) error {
	switch a.Action {
	case domain.AbortMove:
		return w.m.AbortMigration(ctx, w.name)
	case domain.SwitchToPostCopy:
		if c, able := w.r.Hypervisor.(domain.PostCopier); able {
			return c.SwitchToPostCopy(ctx, w.name)
		}
	case domain.PauseGuest:
		return w.r.Hypervisor.Apply(ctx, domain.Operation{Verb: domain.Suspend, Domain: w.name})
	case domain.RaiseDowntime:
		if t, able := w.r.Hypervisor.(domain.MigrationTuner); able {
			return t.SetMaxDowntime(ctx, w.name, a.MaxDowntime)
		}
	}
	return fmt.Errorf("domainctrl: %s the migration of %s: %w", a.Action, w.name, domain.ErrUnsupported)
}

// failure says why the migration did not move the guest: err, unless it was aborted from
// here. Empty if there is nothing to say.
func (w *watch) failure(ctx context.Context, err error) string {
	switch why := w.why.Load(); {
	case why != nil:
		return abortedText + ": " + *why
	case ctx.Err() != nil:
		return abortedText + ": the agent of node " + w.r.NodeName + " ends"
	case err != nil:
		return err.Error()
	}
	return ""
}
