// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/memory"
)

// crew is a controller of two workers over keyed workers, in a bubble.
type crew struct {
	testing.TB
	keyedWorkers *keyedWorkers
	queue        workqueue.TypedRateLimitingInterface[reconcile.Request]
	stop         func()

	mu     sync.Mutex
	under  map[reconcile.Request]int
	passes map[reconcile.Request]int
	// do is the result of a pass; set before the first request.
	do func(ctx context.Context, name string) (reconcile.Result, error)
}

func withCrew(t *testing.T, test func(*crew)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &crew{TB: t, keyedWorkers: newKeyedWorkers(), under: map[reconcile.Request]int{}, passes: map[reconcile.Request]int{}}
		c.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		ctx, cancel := context.WithCancel(t.Context())
		if err := c.keyedWorkers.source().Start(ctx, c.queue); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- c.keyedWorkers.Start(ctx) }()
		var workers sync.WaitGroup
		for range 2 {
			workers.Go(func() { c.work(ctx) })
		}
		c.stop = sync.OnceFunc(func() {
			cancel()
			c.queue.ShutDown()
			workers.Wait()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		test(c)
		c.stop()
	})
}

// work handles a result as a controller does.
func (c *crew) work(ctx context.Context) {
	for {
		req, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		result, err := c.keyedWorkers.do(ctx, req, time.Second, func(ctx context.Context) (reconcile.Result, error) { return c.pass(ctx, req) })
		switch {
		case err != nil:
			c.queue.AddRateLimited(req)
		case result.RequeueAfter > 0:
			c.queue.Forget(req)
			c.queue.AddAfter(req, result.RequeueAfter)
		default:
			c.queue.Forget(req)
		}
		c.queue.Done(req)
	}
}

func (c *crew) pass(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	c.count(req, 1)
	defer c.count(req, -1)
	return c.do(ctx, req.Name)
}

func (c *crew) count(req reconcile.Request, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.under[req] += n
	if n > 0 {
		c.passes[req]++
	}
	if c.under[req] > 1 {
		c.Errorf("%d passes over %s at once", c.under[req], req)
	}
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: name}}
}

func (c *crew) ask(name string) { c.queue.Add(request(name)) }

// wants checks the number of passes begun over a VMI by now.
func (c *crew) wants(name string, n int) {
	c.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := c.passes[request(name)]; got != n {
		c.Errorf("%d passes over %s, want %d", got, name, n)
	}
}

func TestKeyedWorkers(t *testing.T) {
	for name, test := range map[string]func(*crew){
		"guests that hang hold up no other": func(c *crew) {
			hv := memory.New("node")
			c.do = func(ctx context.Context, name string) (reconcile.Result, error) {
				_, err := hv.Get(ctx, domain.Name("ns", name))
				return reconcile.Result{}, err
			}
			for n := range 20 {
				name := fmt.Sprintf("hung-%d", n)
				hv.Inject(memory.Fault{Call: "Get", Domain: domain.Name("ns", name), Hang: true})
				c.ask(name)
			}
			time.Sleep(10*time.Second + time.Millisecond) // a moment for each pair
			for n := range 20 {
				c.wants(fmt.Sprintf("hung-%d", n), 1)
			}
			c.ask("fine")
			c.wants("fine", 1)
		},
		"a pass in time is the worker's": func(c *crew) {
			c.do = func(context.Context, string) (reconcile.Result, error) {
				return reconcile.Result{RequeueAfter: time.Minute}, nil
			}
			c.ask("a")
			c.wants("a", 1)
			time.Sleep(time.Minute)
			c.wants("a", 2)
		},
		"what is asked for while a pass runs is served after it": func(c *crew) {
			c.do = func(context.Context, string) (reconcile.Result, error) {
				time.Sleep(10 * time.Second)
				return reconcile.Result{}, nil
			}
			c.ask("a")
			time.Sleep(2 * time.Second)
			for range 3 {
				c.ask("a")
				synctest.Wait()
			}
			c.wants("a", 1)
			time.Sleep(9 * time.Second)
			c.wants("a", 2)
			time.Sleep(time.Hour)
			c.wants("a", 2)
		},
		"a slow pass looks again when it wants to": func(c *crew) {
			c.do = func(context.Context, string) (reconcile.Result, error) {
				time.Sleep(10 * time.Second)
				return reconcile.Result{RequeueAfter: time.Minute}, nil
			}
			c.ask("a")
			time.Sleep(time.Minute)
			c.wants("a", 1)
			time.Sleep(11 * time.Second)
			c.wants("a", 2)
		},
		"a slow pass that fails is repeated later and later": func(c *crew) {
			var at []time.Duration
			began := time.Now()
			c.do = func(context.Context, string) (reconcile.Result, error) {
				at = append(at, time.Since(began))
				time.Sleep(2 * time.Second)
				if len(at) == 4 {
					return reconcile.Result{}, reconcile.TerminalError(errors.New("never"))
				}
				return reconcile.Result{}, errors.New("not now")
			}
			c.ask("a")
			time.Sleep(time.Hour)
			c.wants("a", 4)
			if got, want := fmt.Sprint(at), "[0s 3s 7s 13s]"; got != want {
				c.Errorf("passes at %s, want %s", got, want)
			}
		},
		"a panic is an error": func(c *crew) {
			first := true
			c.do = func(context.Context, string) (reconcile.Result, error) {
				defer func() { first = false }()
				if first {
					panic("broken")
				}
				return reconcile.Result{}, nil
			}
			c.ask("a")
			time.Sleep(time.Minute)
			c.wants("a", 2)
		},
		"the end ends what hangs": func(c *crew) {
			var why error
			c.do = func(ctx context.Context, _ string) (reconcile.Result, error) {
				<-ctx.Done()
				why = ctx.Err()
				return reconcile.Result{}, why
			}
			c.ask("a")
			time.Sleep(time.Minute)
			c.stop()
			if !errors.Is(why, context.Canceled) {
				c.Errorf("the pass ended by %v", why)
			}
			_, err := c.keyedWorkers.do(c.Context(), request("b"), time.Second, func(ctx context.Context) (reconcile.Result, error) { return c.pass(ctx, request("b")) })
			if !errors.Is(err, context.Canceled) {
				c.Errorf("a pass after the end: %v", err)
			}
			c.wants("b", 0)
		},
	} {
		t.Run(name, func(t *testing.T) { withCrew(t, test) })
	}
}

func TestKeyedWorkers_PanicNamesVMI(t *testing.T) {
	_, err := guarded(t.Context(), request("a"), func(context.Context) (reconcile.Result, error) { panic("broken") })
	if err == nil || !strings.Contains(err.Error(), "ns/a") || !strings.Contains(err.Error(), "broken") {
		t.Errorf("error: %v", err)
	}
}
