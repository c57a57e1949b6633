// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/plan"
)

// serve serves a user's request as a pass that is counted.
func (c *crew) serve(ctx context.Context, name string, f func(context.Context) error) error {
	return c.keyedWorkers.serve(ctx, request(name), func(ctx context.Context) error {
		c.count(request(name), 1)
		defer c.count(request(name), -1)
		return f(ctx)
	})
}

func TestKeyedWorkers_Requests(t *testing.T) {
	quick := func(context.Context, string) (reconcile.Result, error) { return reconcile.Result{}, nil }
	slow := func(context.Context, string) (reconcile.Result, error) {
		time.Sleep(10 * time.Second)
		return reconcile.Result{}, nil
	}
	sleeps := func(context.Context) error { time.Sleep(5 * time.Second); return nil }
	for name, test := range map[string]func(*crew){
		"a request is followed by a pass, whatever came of it": func(c *crew) {
			c.do = quick
			for n, want := range []error{nil, domain.ErrInvalidState} {
				if err := c.serve(c.Context(), "a", func(context.Context) error { return want }); !errors.Is(err, want) {
					c.Errorf("error %v, want %v", err, want)
				}
				c.wants("a", 2*n+2)
			}
		},
		"a request waits for the pass under way, and goes before the next": func(c *crew) {
			c.do = slow
			c.ask("a")
			synctest.Wait()
			var served time.Duration
			began := time.Now()
			var all sync.WaitGroup
			all.Go(func() {
				err := c.serve(c.Context(), "a", func(ctx context.Context) error {
					served = time.Since(began)
					return sleeps(ctx) // the workers receive the pass requested meanwhile
				})
				if err != nil {
					c.Error(err)
				}
			})
			time.Sleep(2 * time.Second)
			c.ask("a")
			all.Wait()
			if served != 10*time.Second {
				c.Errorf("served after %s, want right after the pass", served)
			}
			c.wants("a", 3)
			time.Sleep(time.Minute)
			c.wants("a", 3)
		},
		"many requests are served one after another, passes after them": func(c *crew) {
			c.do = quick
			began := time.Now()
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					if err := c.serve(c.Context(), "a", sleeps); err != nil {
						c.Error(err)
					}
				})
			}
			synctest.Wait()
			c.ask("a")
			all.Wait()
			if took := time.Since(began); took != 20*time.Second {
				c.Errorf("took %s", took)
			}
			c.wants("a", 5)
		},
		"who waits no longer holds up no pass": func(c *crew) {
			c.do = slow
			c.ask("a")
			synctest.Wait()
			ctx, cancel := context.WithTimeout(c.Context(), time.Second)
			defer cancel()
			err := c.serve(ctx, "a", func(context.Context) error { c.Error("it was begun"); return nil })
			if !errors.Is(err, context.DeadlineExceeded) {
				c.Error(err)
			}
			time.Sleep(time.Minute)
			c.wants("a", 2)
			if n := len(c.keyedWorkers.waits); n > 0 {
				c.Errorf("%d guests are still waited for", n)
			}
		},
		"what was begun goes on without who has asked": func(c *crew) {
			c.do = quick
			ctx, cancel := context.WithTimeout(c.Context(), time.Second)
			defer cancel()
			var done atomic.Bool
			err := c.serve(ctx, "a", func(ctx context.Context) error {
				time.Sleep(10 * time.Second)
				done.Store(ctx.Err() == nil)
				return nil
			})
			if !errors.Is(err, context.DeadlineExceeded) || done.Load() {
				c.Errorf("error %v, done %t", err, done.Load())
			}
			time.Sleep(time.Minute)
			c.wants("a", 2)
			if !done.Load() {
				c.Error("it was cut short")
			}
		},
		"failures before it are not forgotten": func(c *crew) {
			var mu sync.Mutex
			var at []time.Duration
			began := time.Now()
			c.do = func(context.Context, string) (reconcile.Result, error) {
				mu.Lock()
				at = append(at, time.Since(began))
				mu.Unlock()
				time.Sleep(2 * time.Second)
				return reconcile.Result{}, errors.New("not now")
			}
			c.ask("a")
			time.Sleep(8 * time.Second) // 0s and 3s have failed
			if err := c.serve(c.Context(), "a", func(context.Context) error { return nil }); err != nil {
				c.Error(err)
			}
			time.Sleep(20 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			if got, want := fmt.Sprint(at), "[0s 3s 7s 9s 13s]"; got != want {
				c.Errorf("passes at %s, want %s", got, want)
			}
		},
		"the end ends requests, and those that wait": func(c *crew) {
			c.do = quick
			var all sync.WaitGroup
			for range 2 {
				all.Go(func() {
					err := c.serve(c.Context(), "a", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
					if !errors.Is(err, context.Canceled) {
						c.Error(err)
					}
				})
			}
			synctest.Wait()
			c.stop()
			all.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) { withCrew(t, test) })
	}
}

func TestRequest_BeforeControllerRuns(t *testing.T) {
	for _, r := range []*Reconciler{{}, {keyedWorkers: newKeyedWorkers()}} {
		err := r.Request(t.Context(), request("a").NamespacedName, plan.Request{Verb: plan.RequestPause})
		if !errors.Is(err, domain.ErrInvalidState) {
			t.Errorf("error %v", err)
		}
	}
}
