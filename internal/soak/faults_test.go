// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/memapi"
)

// Odds of what goes wrong with a request and with an event of a watch, out of a thousand.
const (
	oddsRefused    = 6
	oddsLost       = 5
	oddsLate       = 3
	oddsAnswerLost = 8
	oddsSlow       = 30
	oddsEventLate  = 60
	oddsEventLost  = 2
	thousand       = 1000
)

// fates decide what becomes of requests and events, from the seed.
type fates struct {
	mu  sync.Mutex
	rnd *rand.Rand
	// wild says that requests go wrong.
	wild bool
}

// random is a number below n.
func (f *fates) random(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rnd.IntN(n)
}

func (f *fates) setWild(wild bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wild = wild
}

// request decides what becomes of a request of a daemon.
func (f *fates) request(verb, _ string) memapi.Fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.wild {
		return memapi.Fate{}
	}
	n := f.rnd.IntN(thousand)
	below := func(odds int) bool { n -= odds; return n < 0 }
	switch {
	case below(oddsRefused):
		return memapi.Fate{Refuse: []int{http.StatusInternalServerError, http.StatusTooManyRequests, http.StatusGatewayTimeout}[f.rnd.IntN(3)]}
	case below(oddsLost):
		return memapi.Fate{Lose: true}
	case verb == "watch":
		return memapi.Fate{}
	case below(oddsLate):
		return memapi.Fate{Lose: true, Late: time.Duration(f.rnd.IntN(20_000)) * time.Millisecond}
	case below(oddsAnswerLost):
		return memapi.Fate{LoseAnswer: true}
	case below(oddsSlow):
		return memapi.Fate{After: time.Duration(f.rnd.IntN(3000)) * time.Millisecond}
	}
	return memapi.Fate{}
}

// event decides the delay of a watch event, or breaks the watch.
func (f *fates) event() (late time.Duration, lost bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.wild {
		return 0, false
	}
	switch n := f.rnd.IntN(thousand); {
	case n < oddsEventLost:
		return 0, true
	case n < oddsEventLost+oddsEventLate:
		return time.Duration(f.rnd.IntN(8000)) * time.Millisecond, false
	}
	return 0, false
}

// trouble is something that goes wrong, for some time, and is undone then.
type trouble struct {
	name   string
	weight int
	do     func(mishaps, context.Context) incident
}

var troubles = []trouble{
	{"kill the controller", 14, mishaps.killController},
	{"kill an agent", 14, mishaps.killAgent},
	{"power off a node", 8, mishaps.powerOff},
	{"cut an agent off", 12, mishaps.cutAgent},
	{"break watches", 14, mishaps.breakWatches},
	{"disconnect a hypervisor", 10, func(w mishaps, _ context.Context) incident { return w.disconnect(w.live(), time.Minute) }},
	{"let calls fail", 14, func(w mishaps, _ context.Context) incident { return w.failCalls(w.live(), 2*time.Minute) }},
	{"lose hypervisor events", 8, mishaps.loseEvents},
	{"break a migration's link", 12, func(w mishaps, _ context.Context) incident { return w.breakLink(w.live(), w.live(), 3*time.Minute) }},
	{"end a guest", 6, func(w mishaps, ctx context.Context) incident { return w.endGuest(ctx, w.live()) }},
}

// mishaps are what goes wrong in a world.
type mishaps struct{ *World }

// misfortune lets one thing go wrong.
func (w mishaps) misfortune(ctx context.Context) (after time.Duration, undo func(context.Context) error) {
	t := pick(troubles, func(t trouble) int { return t.weight }, w.choose)
	i := t.do(w, ctx)
	if i.what == "" {
		return 0, nil
	}
	w.faulted[t.name]++
	w.note("fault: %s: %s", t.name, i.what)
	return i.after, i.undo
}

// live is a node with power, whose agent is not down for another reason; nil if there is none.
func (w mishaps) live() *node {
	up := slices.DeleteFunc(slices.Clone(w.nodes), func(n *node) bool { return !n.up || n.agent == nil || !n.agent.started() })
	if len(up) == 0 {
		return nil
	}
	return up[w.choose(len(up))]
}

func (w mishaps) killController(context.Context) incident {
	if w.ctl == nil || !w.ctl.started() {
		return incident{}
	}
	w.ctl.kill()
	w.others = append(w.others, w.ctl.process)
	w.ctl = nil
	return incident{"it", w.around(10 * time.Second), func(context.Context) error { return w.startController() }}
}

func (w mishaps) killAgent(context.Context) incident {
	n := w.live()
	if n == nil {
		return incident{}
	}
	n.agent.kill()
	w.others = append(w.others, n.agent)
	ended := n.agent
	n.agent = nil
	return incident{n.name, w.around(20 * time.Second), func(context.Context) error {
		if !n.up {
			return nil
		}
		w.await(ended)
		return w.startAgent(n)
	}}
}

// await waits for the end of a process: the next one of a node takes its lock.
func (w mishaps) await(p *process) {
	if i := slices.Index(w.others, p); i >= 0 {
		<-p.ended
		w.others = slices.Delete(w.others, i, i+1)
	}
}

func (w mishaps) powerOff(ctx context.Context) incident {
	n := w.live()
	if n == nil {
		return incident{}
	}
	ended := n.agent
	if err := n.die(ctx); err != nil {
		w.fail(fmt.Errorf("power off %s: %w", n.name, err))
		return incident{}
	}
	w.others = append(w.others, ended)
	n.agent = nil
	what, forgotten := n.name, w.choose(2) == 0
	if forgotten {
		what += ", whose Node is deleted"
		err := w.admin.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}})
		if client.IgnoreNotFound(err) != nil {
			w.fail(err)
		}
	}
	return incident{what, time.Minute + w.around(6*time.Minute), func(ctx context.Context) error {
		w.await(ended)
		n.up, n.booted = true, time.Now()
		n.reachable(true)
		w.note("%s boots", n.name)
		return errors.Join(w.rest.register(ctx, n), w.rest.boot(ctx, n), w.startAgent(n))
	}}
}

func (w mishaps) cutAgent(context.Context) incident {
	n := w.live()
	if n == nil {
		return incident{}
	}
	p := n.agent
	p.access.Cut(true)
	after := w.around(5 * time.Minute)
	return incident{fmt.Sprintf("%s for %s", n.name, after.Round(time.Second)), after, func(context.Context) error {
		if n.agent == p { // a killed one stays cut off
			p.access.Cut(false)
		}
		return nil
	}}
}

func (w mishaps) breakWatches(context.Context) incident {
	if n := w.live(); n != nil && w.choose(2) == 0 {
		n.agent.access.BreakWatches()
		return incident{what: n.name}
	}
	if w.ctl == nil {
		return incident{}
	}
	w.ctl.access.BreakWatches()
	return incident{what: "the controller"}
}

func (w mishaps) loseEvents(context.Context) incident {
	n := w.live()
	if n == nil {
		return incident{}
	}
	n.hypervisor.LoseEvents(true)
	return incident{n.name, w.around(2 * time.Minute), func(context.Context) error {
		n.hypervisor.LoseEvents(false)
		return nil
	}}
}
