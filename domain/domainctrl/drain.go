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

// DefaultDrainWithin is how long an agent that shall end goes on carrying the migrations
// that have begun, as KubeVirt's node agent does.
const DefaultDrainWithin = 300 * time.Second

// drainEvery is how often a guest is looked at meanwhile.
const drainEvery = 250 * time.Millisecond

// draining lets a manager wait for the migrations when it ends. None begins from then
// on. Those that have begun, from here or to here, are carried on with for
// [Reconciler.DrainWithin], for their streams pass through this process; what users and
// controllers ask of these guests is still heard. What is not done by then is aborted, so
// that the guest stays where it is, and that is stored. The transport has to carry on by
// itself for as long.
type draining struct{ *Reconciler }

// Start waits for the end of ctx and then for that of the migrations.
func (r draining) Start(ctx context.Context) error {
	defer close(r.drained)
	<-ctx.Done()
	r.moves.close()
	<-r.lanes.ended // their passes would be in the way
	ctx = context.WithoutCancel(ctx)
	if r.DrainWithin > 0 {
		limit, cancel := context.WithTimeout(ctx, r.DrainWithin)
		r.drain(limit)
		cancel()
	}
	left := r.moves.keys()
	r.moves.end()
	last, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	for _, key := range left {
		if err := r.lookAgain(last, key); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot store the end of a migration", "guest", key.String())
		}
	}
	return nil
}

// Drained is closed when the migrations have ended with the manager, or nobody waits for
// them any more: what else tells that the node is alive may end then. It is made by
// SetupWithManager.
func (r *Reconciler) Drained() <-chan struct{} { return r.drained }

// NeedLeaderElection is false: every node moves its own guests.
func (draining) NeedLeaderElection() bool { return false }

// drain goes on with the guests that are under way until they are not, or ctx ends. One
// that has just left may wait to be told of.
func (r *Reconciler) drain(ctx context.Context) {
	under := map[types.NamespacedName]bool{}
	for _, keys := range [][]types.NamespacedName{r.moves.keys(), r.moves.recent(), r.passages.coming()} {
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

// escort makes passes over a guest until its migration is over and that is stored.
func (r *Reconciler) escort(ctx context.Context, key types.NamespacedName) {
	log := ctrl.LoggerFrom(ctx).WithValues("guest", key.String())
	log.Info("Going on with a migration before the agent ends")
	t := clock.RealClock{}.NewTicker(drainEvery)
	defer t.Stop()
	for {
		ended := r.moves.ended(key)
		err := r.lookAgain(ctx, key)
		if err == nil && ended == nil && !r.passages.carries(key) {
			return
		}
		if err != nil {
			log.Error(err, "Cannot look after a migration")
		}
		select {
		case <-ctx.Done():
			return
		case <-ended:
		case <-t.C():
		}
	}
}

// lookAgain makes a pass by what the API server says now.
func (r *Reconciler) lookAgain(ctx context.Context, key types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	w, err := r.live(ctx, key)
	if err == nil {
		_, err = r.pass(ctx, key, w)
	}
	return err
}
