// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"reflect"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/informer"
	"github.com/virtloom/virtloom/domain/status"
)

// Guest agents are queried at once when one connects, then with pauses that double from the first
// to the longest, as KubeVirt does for most of what they report.
const (
	agentPauseFirst = 10 * time.Second
	agentPauseLast  = 2 * time.Minute
	agentDeadline   = 10 * time.Second
)

// agents queries the agents inside the running guests, each beside all workers and with its own
// deadline, and keeps the last answers. An unresponsive agent delays nothing. The answers are hints
// only: after a restart the agents are queried again.
type agents struct {
	asker    domain.GuestAgent // nil if the hypervisor does not support it
	informer *informer.Informer

	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request] // nil until the controller starts
	polls map[string]*poll                                        // by domain
	said  map[string]said
}

// said is the last answer of an agent.
type said struct {
	whose string // see identity
	info  guestagent.Info
}

// identity distinguishes domains that have the same name one after another; some have the same UUID
// as well, which a spec may set.
func identity(st *domain.State) string { return st.UUID + " " + string(st.Metadata.UID) }

// poll is the polling of one agent.
type poll struct {
	whose  string // see identity
	cancel context.CancelFunc
	now    chan struct{} // holds one token to query the agent at once
}

func newAgents(hv domain.Hypervisor, i *informer.Informer) *agents {
	asker, _ := hv.(domain.GuestAgent)
	return &agents{asker: asker, informer: i, polls: map[string]*poll{}, said: map[string]said{}}
}

// source gives the agents the controller's queue.
func (a *agents) source() source.Source {
	return source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.queue = q
		return nil
	})
}

// NeedLeaderElection is false: every node queries the agents of its own guests.
func (a *agents) NeedLeaderElection() bool { return false }

// Start queries agents until ctx ends; no goroutine is left then.
func (a *agents) Start(ctx context.Context) error {
	if a.asker == nil {
		<-ctx.Done()
		return nil
	}
	var all sync.WaitGroup
	defer all.Wait()
	for c := range a.informer.Watch(ctx) {
		a.follow(ctx, &all, c)
	}
	<-ctx.Done() // the informer may end before the rest of the manager
	return nil
}

// follow starts or stops polling an agent as its domain comes and goes. The agent of a paused guest
// cannot answer, and its last answer still counts.
func (a *agents) follow(ctx context.Context, all *sync.WaitGroup, c informer.Change) {
	a.mu.Lock()
	defer a.mu.Unlock()
	connected := c.New != nil && c.New.Alive() && status.AgentConnected(c.New.Domain)
	wanted := connected && c.New.Status == domain.StatusRunning
	p := a.polls[c.Name]
	if p != nil && (!wanted || p.whose != identity(c.New)) {
		p.cancel()
		delete(a.polls, c.Name)
		p = nil
	}
	if wanted && p == nil {
		ctx, cancel := context.WithCancel(ctx)
		p = &poll{whose: identity(c.New), cancel: cancel, now: make(chan struct{}, 1)}
		a.polls[c.Name] = p
		all.Go(func() {
			defer cancel()
			a.run(ctx, c.Name, p)
		})
	}
	if !connected {
		delete(a.said, c.Name)
	}
}

// run queries one agent until ctx ends.
func (a *agents) run(ctx context.Context, name string, p *poll) {
	t := time.NewTimer(0)
	defer t.Stop()
	for pause := agentPauseFirst; ; pause = min(2*pause, agentPauseLast) {
		select {
		case <-t.C:
		case <-p.now:
			pause = agentPauseFirst
		case <-ctx.Done():
			return
		}
		a.ask(ctx, name, p)
		t.Reset(pause)
	}
}

func (a *agents) ask(ctx context.Context, name string, p *poll) {
	ctx, cancel := context.WithTimeout(ctx, agentDeadline)
	defer cancel()
	info, err := a.asker.GuestInfo(ctx, name)
	if err != nil {
		// The last answer is the best available; that the agent is gone for good shows in the state
		// of its channel.
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.polls[name] != p {
		return
	}
	was := a.said[name]
	a.said[name] = said{p.whose, info}
	key, named := keyOf(name)
	if named && a.queue != nil && (was.whose != p.whose || !reflect.DeepEqual(essence(was.info), essence(info))) {
		a.queue.Add(reconcile.Request{NamespacedName: key})
	}
}

// essence is the part of an agent's answer that the VMI status reports; the rest changes all the
// time.
func essence(i guestagent.Info) guestagent.Info {
	i.Users, i.Filesystems = nil, nil
	return i
}

// of returns the last answer of the agent in that domain, nil if there is none.
func (a *agents) of(name string, st *domain.State) *guestagent.Info {
	a.mu.Lock()
	defer a.mu.Unlock()
	if last, known := a.said[name]; known && st != nil && last.whose == identity(st) {
		return &last.info
	}
	return nil
}

// again queries an agent at once, after a request to it.
func (a *agents) again(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.polls[name]; p != nil {
		select {
		case p.now <- struct{}{}:
		default:
		}
	}
}
