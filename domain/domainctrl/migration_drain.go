// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
)

// DefaultDrainWithin is the time limit for migrations under way when the agent ends, that of
// KubeVirt's node agent.
const DefaultDrainWithin = 300 * time.Second

// drainEvery is the interval of passes over a migrating VMI meanwhile.
const drainEvery = 250 * time.Millisecond

// migrationDrain makes a manager that ends wait for the migrations. No migration begins from then on.
// Those under way, from or to this node, continue for [Reconciler.DrainWithin], because their
// streams pass through this process; requests of users and controllers for these VMIs are still
// served. Migrations that take longer are aborted, so that the guest stays where it is, and the
// abort is stored. The transport has to keep running for as long.
type migrationDrain struct{ *Reconciler }

// Start waits for the end of ctx and then for that of the migrations.
func (r migrationDrain) Start(ctx context.Context) error {
	defer close(r.drained)
	<-ctx.Done()
	r.migrations.close()
	<-r.keyedWorkers.ended // their passes would interfere
	ctx = context.WithoutCancel(ctx)
	if r.DrainWithin > 0 {
		limit, cancel := context.WithTimeout(ctx, r.DrainWithin)
		r.drain(limit)
		cancel()
	}
	left := r.migrations.keys()
	r.migrations.end()
	last, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	for _, key := range left {
		r.escort(last, key) // another node may write the object as well
	}
	return nil
}

// Drained returns a channel that is closed when the migrations have ended with the manager, or
// are no longer waited for: whatever else reports the node as alive may end then.
// SetupWithManager creates the channel.
func (r *Reconciler) Drained() <-chan struct{} { return r.drained }

// NeedLeaderElection is false: every node migrates its own guests.
func (migrationDrain) NeedLeaderElection() bool { return false }

// drain serves the migrations under way until they have ended, or ctx ends, and those that have
// just ended until their outcome is stored.
func (r migrationDrain) drain(ctx context.Context) {
	under := map[types.NamespacedName]bool{}
	for _, keys := range [][]types.NamespacedName{r.migrations.keys(), r.migrations.recent(), r.tunnels.coming()} {
		for _, key := range keys {
			under[key] = true
		}
	}
	var all sync.WaitGroup
	for key := range under {
		all.Go(func() { r.escort(ctx, key) })
	}
	all.Wait()
}

// escort makes passes over a VMI until its migration is over and that is stored.
func (r migrationDrain) escort(ctx context.Context, key types.NamespacedName) {
	log := ctrl.LoggerFrom(ctx).WithValues("guest", key.String())
	log.Info("Waiting for a migration before the agent stops")
	t := clock.RealClock{}.NewTicker(drainEvery)
	defer t.Stop()
	for {
		ended := r.migrations.ended(key)
		err := r.lookAgain(ctx, key)
		if err == nil && ended == nil && !r.tunnels.carries(key) {
			return
		}
		if err != nil {
			log.Error(err, "Failed to monitor a migration")
		}
		select {
		case <-ctx.Done():
			return
		case <-ended:
		case <-t.C():
		}
	}
}

// lookAgain makes a pass over the object read live.
func (r migrationDrain) lookAgain(ctx context.Context, key types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	w, err := r.live(ctx, key)
	if err == nil {
		_, err = r.pass(ctx, key, w)
	}
	return err
}
