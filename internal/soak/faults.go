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

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/memory"
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
	// do lets it go wrong and returns what undoes it, after how long; nil if nothing is left to undo. An empty word
	// says that it could not.
	do func(mishaps, context.Context) (what string, after time.Duration, undo func(context.Context) error)
}

var troubles = []trouble{
	{"kill the controller", 14, mishaps.killController},
	{"kill an agent", 14, mishaps.killAgent},
	{"power off a node", 8, mishaps.powerOff},
	{"cut an agent off", 12, mishaps.cutAgent},
	{"break watches", 14, mishaps.breakWatches},
	{"disconnect a hypervisor", 10, mishaps.disconnect},
	{"let calls fail", 14, mishaps.failCalls},
	{"lose hypervisor events", 8, mishaps.loseEvents},
	{"break a migration's link", 12, mishaps.breakLink},
	{"end a guest", 6, mishaps.endGuest},
}

// mishaps are what goes wrong in a world.
type mishaps struct{ *World }

// misfortune lets one thing go wrong.
func (w mishaps) misfortune(ctx context.Context) (after time.Duration, undo func(context.Context) error) {
	t := pick(troubles, func(t trouble) int { return t.weight }, w.choose)
	what, after, undo := t.do(w, ctx)
	if what == "" {
		return 0, nil
	}
	w.faulted[t.name]++
	w.note("fault: %s: %s", t.name, what)
	return after, undo
}

// pick chooses one of all by their weights; choose is a number below its argument.
func pick[T any](all []T, weight func(T) int, choose func(int) int) (one T) {
	sum := 0
	for _, one = range all {
		sum += weight(one)
	}
	n := choose(sum)
	for _, one = range all {
		if n -= weight(one); n < 0 {
			break
		}
	}
	return one
}

// live is a node with power, whose agent is not down for another reason; nil if there is none.
func (w mishaps) live() *node {
	up := slices.DeleteFunc(slices.Clone(w.nodes), func(n *node) bool { return !n.up || n.agent == nil || !n.agent.started() })
	if len(up) == 0 {
		return nil
	}
	return up[w.choose(len(up))]
}

func (w mishaps) killController(context.Context) (string, time.Duration, func(context.Context) error) {
	if w.ctl == nil || !w.ctl.started() {
		return "", 0, nil
	}
	w.ctl.kill()
	w.others = append(w.others, w.ctl.process)
	w.ctl = nil
	return "it", w.around(10 * time.Second), func(context.Context) error { return w.startController() }
}

func (w mishaps) killAgent(context.Context) (string, time.Duration, func(context.Context) error) {
	n := w.live()
	if n == nil {
		return "", 0, nil
	}
	n.agent.kill()
	w.others = append(w.others, n.agent)
	ended := n.agent
	n.agent = nil
	return n.name, w.around(20 * time.Second), func(context.Context) error {
		if !n.up {
			return nil
		}
		w.await(ended)
		return w.startAgent(n)
	}
}

// await waits for the end of a process: the next one of a node takes its lock.
func (w mishaps) await(p *process) {
	if i := slices.Index(w.others, p); i >= 0 {
		<-p.ended
		w.others = slices.Delete(w.others, i, i+1)
	}
}

func (w mishaps) powerOff(ctx context.Context) (string, time.Duration, func(context.Context) error) {
	n := w.live()
	if n == nil {
		return "", 0, nil
	}
	ended := n.agent
	if err := n.die(ctx); err != nil {
		w.fail(fmt.Errorf("power off %s: %w", n.name, err))
		return "", 0, nil
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
	return what, time.Minute + w.around(6*time.Minute), func(ctx context.Context) error {
		w.await(ended)
		n.up, n.booted = true, time.Now()
		n.reachable(true)
		w.note("%s boots", n.name)
		return errors.Join(w.rest.register(ctx, n), w.rest.boot(ctx, n), w.startAgent(n))
	}
}

func (w mishaps) cutAgent(context.Context) (string, time.Duration, func(context.Context) error) {
	n := w.live()
	if n == nil {
		return "", 0, nil
	}
	p := n.agent
	p.access.Cut(true)
	after := w.around(5 * time.Minute)
	return fmt.Sprintf("%s for %s", n.name, after.Round(time.Second)), after, func(context.Context) error {
		if n.agent == p { // a killed one stays cut off
			p.access.Cut(false)
		}
		return nil
	}
}

func (w mishaps) breakWatches(context.Context) (string, time.Duration, func(context.Context) error) {
	if n := w.live(); n != nil && w.choose(2) == 0 {
		n.agent.access.BreakWatches()
		return n.name, 0, nil
	}
	if w.ctl == nil {
		return "", 0, nil
	}
	w.ctl.access.BreakWatches()
	return "the controller", 0, nil
}

func (w mishaps) disconnect(context.Context) (string, time.Duration, func(context.Context) error) {
	n := w.live()
	if n == nil {
		return "", 0, nil
	}
	n.hypervisor.Disconnect()
	return n.name, w.around(time.Minute), func(context.Context) error {
		n.hypervisor.Reconnect()
		return nil
	}
}

var errByChance = errors.New("it failed by chance")

func (w mishaps) failCalls(context.Context) (string, time.Duration, func(context.Context) error) {
	n := w.live()
	if n == nil {
		return "", 0, nil
	}
	verbs := []domain.Verb{domain.Start, domain.Destroy, domain.Undefine, domain.Shutdown, domain.AttachDevice, domain.DetachDevice, domain.SetVCPUs, "Migrate"}
	f := memory.Fault{
		Call: string(verbs[w.choose(len(verbs))]), Times: 1 + w.choose(3), Err: errByChance, AfterEffect: w.choose(2) == 0,
	}
	remove := n.hypervisor.Inject(f)
	return fmt.Sprintf("%d of %s on %s, after effect %v", f.Times, f.Call, n.name, f.AfterEffect), 2 * time.Minute, func(context.Context) error {
		remove()
		return nil
	}
}

func (w mishaps) loseEvents(context.Context) (string, time.Duration, func(context.Context) error) {
	n := w.live()
	if n == nil {
		return "", 0, nil
	}
	n.hypervisor.LoseEvents(true)
	return n.name, w.around(2 * time.Minute), func(context.Context) error {
		n.hypervisor.LoseEvents(false)
		return nil
	}
}

// breakLink lets the way between two nodes break, at once or at the worst moment of the next migration.
func (w mishaps) breakLink(context.Context) (string, time.Duration, func(context.Context) error) {
	from, to := w.live(), w.live()
	if from == nil || from == to {
		return "", 0, nil
	}
	l, how := from.hypervisor.Link(to.uri()), "now"
	switch w.choose(4) {
	case 0:
		l.Cut()
	case 1:
		how = "at the next switch, when the guest has come"
		l.CutAtSwitch(true)
	case 2:
		how = "at the next switch, before the guest has come"
		l.CutAtSwitch(false)
	default:
		how = "at the next switch, and with it the answer"
		l.LoseAnswer()
	}
	return fmt.Sprintf("from %s to %s, %s", from.name, to.name, how), w.around(3 * time.Minute), func(context.Context) error {
		if to.up {
			l.Restore()
		}
		return nil
	}
}

// endGuest lets a guest end by itself.
func (w mishaps) endGuest(ctx context.Context) (string, time.Duration, func(context.Context) error) {
	n := w.live()
	if n == nil {
		return "", 0, nil
	}
	all, err := n.hypervisor.List(ctx)
	all = slices.DeleteFunc(all, func(s domain.State) bool { return s.Status != domain.StatusRunning })
	if err != nil || len(all) == 0 {
		return "", 0, nil
	}
	name := all[w.choose(len(all))].Name
	if err := n.hypervisor.Apply(ctx, domain.Operation{Verb: domain.Shutdown, Domain: name}); err != nil {
		return "", 0, nil
	}
	return name + " on " + n.name, 0, nil
}
