// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"syscall"
	"time"
)

// realTrouble is something that goes wrong with real programs.
type realTrouble struct {
	name   string
	weight int
	do     func(*Real, context.Context) (incident, error)
}

var realTroubles = []realTrouble{
	{"kill the controller", 12, (*Real).killDaemon},
	{"stop the controller for a while", 8, (*Real).pauseDaemon},
	{"stop the API server for a while", 6, (*Real).pauseServer},
	{"restart an agent", 14, (*Real).restartAgent},
	{"silence a node", 8, (*Real).silence},
	{"disconnect a hypervisor", 10, func(r *Real, _ context.Context) (incident, error) { return r.disconnect(r.some(), 8*time.Second), nil }},
	{"let calls fail", 14, func(r *Real, _ context.Context) (incident, error) { return r.failCalls(r.some(), 20*time.Second), nil }},
	{"break a migration's link", 12, func(r *Real, _ context.Context) (incident, error) {
		return r.breakLink(r.some(), r.some(), 15*time.Second), nil
	}},
	{"end a guest", 8, func(r *Real, ctx context.Context) (incident, error) { return r.endGuest(ctx, r.some()), nil }},
}

// misfortune lets one thing go wrong.
func (r *Real) misfortune(ctx context.Context) error {
	t := pick(realTroubles, func(t realTrouble) int { return t.weight }, r.choose)
	i, err := t.do(r, ctx)
	if i.what == "" || err != nil {
		return err
	}
	r.faulted[t.name]++
	r.note("fault: %s: %s, for %s", t.name, i.what, i.after.Round(time.Second/10))
	if i.undo != nil {
		r.undo = append(r.undo, later{time.Now().Add(i.after), i.undo})
	}
	return nil
}

// some is a node.
func (r *Real) some() *node { return r.nodes[r.choose(len(r.nodes))] }

// killDaemon kills the controller, early in the soak, and starts another at once.
func (r *Real) killDaemon(ctx context.Context) (incident, error) {
	if time.Since(r.begun) > time.Duration(killing*float64(r.o.Duration)) {
		return incident{}, nil
	}
	if err := r.daemon.Kill(); err != nil {
		return incident{}, err
	}
	return incident{what: "it"}, r.startDaemon(ctx)
}

func (r *Real) pauseDaemon(context.Context) (incident, error) {
	d := r.daemon
	return incident{"it", r.around(8 * time.Second), func(context.Context) error { return d.wake() }}, d.signal(syscall.SIGSTOP)
}

func (r *Real) pauseServer(context.Context) (incident, error) {
	pid := r.rig.ProcessID("kube-apiserver")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return incident{}, err
	}
	// No other step happens meanwhile: a client would only wait.
	time.Sleep(min(r.around(3*time.Second), 10*time.Second))
	return incident{what: "it"}, syscall.Kill(pid, syscall.SIGCONT)
}

// agent is a node whose agent runs; nil if the one that was chosen has none.
func (r *Real) agent() *node {
	if n := r.some(); n.agent != nil {
		return n
	}
	return nil
}

func (r *Real) restartAgent(context.Context) (incident, error) {
	return r.without(r.around(3 * time.Second))
}

func (r *Real) silence(context.Context) (incident, error) {
	return r.without(r.around(2 * realSilent))
}

// without ends an agent for a while.
func (r *Real) without(after time.Duration) (incident, error) {
	n := r.agent()
	if n == nil {
		return incident{}, nil
	}
	n.agent.kill()
	<-n.agent.ended
	n.agent = nil
	return incident{n.name, after, func(context.Context) error { return r.startAgent(n) }}, nil
}
