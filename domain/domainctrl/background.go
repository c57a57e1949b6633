// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// background is the life of what goes on beside the workers of the controller.
type background struct {
	mu    sync.Mutex
	ctx   context.Context // nil until the controller starts; ends with the manager
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	all   sync.WaitGroup
}

// source takes the controller's queue and the manager's context.
func (b *background) source() source.Source {
	return source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.ctx, b.queue = ctx, q
		return nil
	})
}

// Start makes the end of a manager wait for all that goes on.
func (b *background) Start(ctx context.Context) error {
	<-ctx.Done()
	b.mu.Lock()
	b.ctx = ctx // none begins from now on
	b.mu.Unlock()
	b.all.Wait()
	return nil
}

// NeedLeaderElection is false: every node serves its own VMIs.
func (b *background) NeedLeaderElection() bool { return false }
