// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/memory"
)

// realTrouble is something that goes wrong with real programs.
type realTrouble struct {
	name   string
	weight int
	do     func(*Real, context.Context) (after time.Duration, undo func(context.Context) error, err error)
}

var realTroubles = []realTrouble{
	{"kill the controller", 12, (*Real).killDaemon},
	{"stop the controller for a while", 8, (*Real).pauseDaemon},
	{"stop the API server for a while", 6, (*Real).pauseServer},
	{"restart an agent", 14, (*Real).restartAgent},
	{"silence a node", 8, (*Real).silence},
	{"disconnect a hypervisor", 10, (*Real).disconnect},
	{"let calls fail", 14, (*Real).failCalls},
	{"break a migration's link", 12, (*Real).breakLink},
	{"end a guest", 8, (*Real).endGuest},
}

// misfortune lets one thing go wrong.
func (r *Real) misfortune(ctx context.Context) error {
	t := pick(realTroubles, func(t realTrouble) int { return t.weight }, r.rnd.IntN)
	after, undo, err := t.do(r, ctx)
	if undo == nil || err != nil {
		return err
	}
	r.faulted[t.name]++
	r.note("fault: %s, for %s", t.name, after.Round(time.Second/10))
	r.undo = append(r.undo, later{time.Now().Add(after), undo})
	return nil
}

func nothing(context.Context) error { return nil }

// killDaemon kills the controller, early in the soak, and starts another at once.
func (r *Real) killDaemon(ctx context.Context) (time.Duration, func(context.Context) error, error) {
	if time.Since(r.begun) > time.Duration(killing*float64(r.o.Duration)) {
		return 0, nil, nil
	}
	if err := r.daemon.Kill(); err != nil {
		return 0, nil, err
	}
	return 0, nothing, r.startDaemon(ctx)
}

func (r *Real) pauseDaemon(context.Context) (time.Duration, func(context.Context) error, error) {
	d := r.daemon
	return r.around(8 * time.Second), func(context.Context) error { return d.wake() }, d.signal(syscall.SIGSTOP)
}

func (r *Real) pauseServer(context.Context) (time.Duration, func(context.Context) error, error) {
	pid := r.rig.ProcessID("kube-apiserver")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return 0, nil, err
	}
	// No other step happens meanwhile: a client would only wait.
	time.Sleep(min(r.around(3*time.Second), 10*time.Second))
	return 0, nothing, syscall.Kill(pid, syscall.SIGCONT)
}

// agent is a node whose agent runs; nil if the one that was chosen has none.
func (r *Real) agent() *node {
	if n := r.nodes[r.rnd.IntN(len(r.nodes))]; n.agent != nil {
		return n
	}
	return nil
}

func (r *Real) restartAgent(context.Context) (time.Duration, func(context.Context) error, error) {
	return r.without(r.around(3 * time.Second))
}

func (r *Real) silence(context.Context) (time.Duration, func(context.Context) error, error) {
	return r.without(r.around(2 * realSilent))
}

// without ends an agent for a while.
func (r *Real) without(after time.Duration) (time.Duration, func(context.Context) error, error) {
	n := r.agent()
	if n == nil {
		return 0, nil, nil
	}
	n.agent.kill()
	<-n.agent.ended
	n.agent = nil
	return after, func(context.Context) error { return r.startAgent(n) }, nil
}

func (r *Real) disconnect(context.Context) (time.Duration, func(context.Context) error, error) {
	n := r.nodes[r.rnd.IntN(len(r.nodes))]
	n.hypervisor.Disconnect()
	return r.around(8 * time.Second), func(context.Context) error {
		n.hypervisor.Reconnect()
		return nil
	}, nil
}

func (r *Real) failCalls(context.Context) (time.Duration, func(context.Context) error, error) {
	verbs := []domain.Verb{domain.Start, domain.Destroy, domain.Undefine, domain.AttachDevice, domain.DetachDevice, domain.SetVCPUs, "Migrate"}
	remove := r.nodes[r.rnd.IntN(len(r.nodes))].hypervisor.Inject(memory.Fault{
		Call: string(verbs[r.rnd.IntN(len(verbs))]), Times: 1 + r.rnd.IntN(3), Err: errByChance, AfterEffect: r.rnd.IntN(2) == 0,
	})
	return 20 * time.Second, func(context.Context) error {
		remove()
		return nil
	}, nil
}

func (r *Real) breakLink(context.Context) (time.Duration, func(context.Context) error, error) {
	from, to := r.nodes[r.rnd.IntN(len(r.nodes))], r.nodes[r.rnd.IntN(len(r.nodes))]
	if from == to {
		return 0, nil, nil
	}
	l := from.hypervisor.Link(to.uri())
	switch r.rnd.IntN(3) {
	case 0:
		l.Cut()
	case 1:
		l.CutAtSwitch(r.rnd.IntN(2) == 0)
	default:
		l.LoseAnswer()
	}
	return r.around(15 * time.Second), func(context.Context) error {
		l.Restore()
		return nil
	}, nil
}

func (r *Real) endGuest(ctx context.Context) (time.Duration, func(context.Context) error, error) {
	n := r.nodes[r.rnd.IntN(len(r.nodes))]
	all, err := n.hypervisor.List(ctx)
	if errors.Is(err, domain.ErrDisconnected) || len(all) == 0 {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, err
	}
	err = n.hypervisor.Apply(ctx, domain.Operation{Verb: domain.Shutdown, Domain: all[r.rnd.IntN(len(all))].Name})
	if err != nil {
		r.note("no guest ended: %v", fmt.Errorf("on %s: %w", n.name, err))
		return 0, nil, nil
	}
	return 0, nothing, nil
}
