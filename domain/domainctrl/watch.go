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
	"github.com/virtloom/virtloom/domain/migrate"
	"github.com/virtloom/virtloom/domain/plan"
)

const (
	// progressDeadline bounds one query of a migration's progress, as KubeVirt bounds short calls.
	progressDeadline = 5 * time.Second
	// abortRetry is the pause before a migration that continues is aborted again.
	abortRetry = 5 * time.Second
	// helpTries is the number of failures in a row before the monitor's next best advice is tried.
	helpTries = 10
)

// abortedText is KubeVirt's text for a migration that it has aborted.
const abortedText = "Live migration has been aborted"

// watch monitors a migration under way: it queries its progress, and carries out the monitor's
// advice. It is not safe for concurrent use except where a field or method says so.
type watch struct {
	r       *Reconciler
	key     types.NamespacedName
	name    string
	m       domain.Migrator
	monitor migrate.Monitor

	tuning  tuning
	seen    bool                            // at the hypervisor
	adopted bool                            // begun by another process
	last    atomic.Pointer[domain.Progress] // nil before that
	failed  int                             // failures of the same action in a row
	aborted time.Time                       // time of the last abort
	why     atomic.Pointer[string]          // reason of the abort
}

// watch makes a watch over a migration of the VMI.
func (r *Reconciler) watch(key types.NamespacedName, m domain.Migrator, v pass) *watch {
	w := &watch{r: r, key: key, name: domain.Name(key.Namespace, key.Name), m: m}
	w.monitor = migrate.Monitor{
		Settings: migrate.MigrationSettingsOf(v.vmi, v.snapshot.Migrations),
		Bytes:    migrate.MovingBytes(v.vmi, v.snapshot.CopyBytes),
	}
	w.tuning = tuning{asked: w.monitor.Tuning(), sent: w.monitor.Tuning(), known: true}
	if v.snapshot.State != nil {
		w.monitor.Passthrough = migrate.HasPassthrough(v.snapshot.State.Domain)
	}
	return w
}

// takeUp continues from the state that an earlier process has reported: a guest that it has paused
// to complete the migration is not taken for one that was paused otherwise.
func (w *watch) takeUp(reported *v1.VirtualMachineInstanceMigrationState) {
	w.monitor.Disrupted = reported != nil && reported.Mode == v1.MigrationPaused
}

// beside runs the watch until the returned function is called, which waits for its end.
func (w *watch) beside(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { w.run(ctx) })
	return func() {
		cancel()
		beside.Wait()
	}
}

// run queries the migration every [migrate.MonitorEvery] until ctx ends, or the observed migration.
func (w *watch) run(ctx context.Context) {
	clk, ticks := w.r.Clock.(clock.WithTicker)
	if !ticks {
		clk = clock.RealClock{}
	}
	t := clk.NewTicker(migrate.MonitorEvery)
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

// finish monitors a migration that no call of this process started, or waits for any more, until it
// is over.
func (w *watch) finish(ctx context.Context) {
	if !w.seen {
		w.tuning.known = false // another process may have begun it with other settings
	}
	w.seen, w.adopted = true, true
	w.run(ctx)
}

// result returns the final progress of the migration, as the hypervisor still knows it, or as last
// observed.
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
		logger(ctx).V(4).Info("Reading the progress of a migration failed", "cause", err.Error())
		return false
	case !p.Active:
		return w.seen
	}
	if w.last.Swap(&p) == nil {
		w.seen = true
		actor{w.r}.step(ctx, w.key, plan.SourceMoving)
	}
	st, _ := w.r.Informer.Get(w.name)
	if w.adopted && hasSplitMemory(&st) {
		return true
	}
	w.follow(ctx, p)
	a := w.monitor.Observe(p, st.Status == domain.StatusPaused, w.r.Clock.Now())
	w.r.migrations.report(w.key, p, a.Mode)
	w.help(ctx, a)
	return false
}

// help carries out the monitor's advice, and reports failures back to it.
func (w *watch) help(ctx context.Context, a migrate.Advice) {
	if a.Action == migrate.Carry || a.Action == migrate.AbortMove && !w.mayAbort(a) {
		return
	}
	log := logger(ctx).WithValues("guest", w.key.String(), "action", a.Action, "why", a.Why)
	helped, cancel := context.WithTimeout(ctx, w.r.CallTimeout)
	err := w.give(helped, a)
	cancel()
	if err == nil {
		w.failed = 0
		log.V(1).Info("Adjusting live migration")
		if a.Action == migrate.SwitchToPostCopy || a.Action == migrate.PauseGuest {
			actor{w.r}.step(ctx, w.key, plan.SourceDisrupting)
		}
		return
	}
	if w.failed++; errors.Is(err, domain.ErrUnsupported) || w.failed >= helpTries {
		w.failed = 0
		w.monitor.Refuse(a.Action)
	}
	log.Error(err, "Failed to adjust a live migration")
}

// mayAbort records the abort of the migration and its reason, unless it was aborted a moment ago.
func (w *watch) mayAbort(a migrate.Advice) bool {
	now := w.r.Clock.Now()
	if !w.aborted.IsZero() && now.Sub(w.aborted) < abortRetry {
		return false
	}
	w.aborted = now
	w.why.CompareAndSwap(nil, &a.Why)
	return true
}

// give carries out an advice.
func (w *watch) give(ctx context.Context, a migrate.Advice) error {
	switch a.Action {
	case migrate.AbortMove:
		return w.m.AbortMigration(ctx, w.name)
	case migrate.SwitchToPostCopy:
		if c, able := w.r.Hypervisor.(domain.PostCopier); able {
			return c.SwitchToPostCopy(ctx, w.name)
		}
	case migrate.PauseGuest:
		return w.r.Hypervisor.Apply(ctx, domain.Operation{Verb: domain.Suspend, Domain: w.name})
	case migrate.RaiseDowntime:
		if t, able := w.r.Hypervisor.(domain.MigrationTuner); able {
			return t.SetMaxDowntime(ctx, w.name, a.MaxDowntime)
		}
	}
	return fmt.Errorf("domainctrl: %s the migration of %s: %w", a.Action, w.name, domain.ErrUnsupported)
}

// failure returns why the guest did not migrate: err, unless the migration was aborted from here.
// Empty if there is no reason.
func (w *watch) failure(ctx context.Context, err error) string {
	switch why := w.why.Load(); {
	case why != nil:
		return abortedText + ": " + *why
	case ctx.Err() != nil:
		return abortedText + ": the node agent of " + w.r.NodeName + " is shutting down"
	case err != nil:
		return err.Error()
	}
	return ""
}
