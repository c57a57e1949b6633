// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/domain/libvirt"
	"github.com/virtloom/virtloom/domain/memory"
)

const (
	// Connecting to a daemon that was just started is retried every connectRetry, for
	// connectPatience.
	connectRetry, connectPatience = 200 * time.Millisecond, time.Minute
	// shutdownRetry is the interval at which a shutdown request is repeated.
	shutdownRetry = 5 * time.Second
	// destroyPatience is the time for a domain to be destroyed. Whatever is left dies with the
	// Pod's first process.
	destroyPatience = 15 * time.Second
	// reportPatience is the time for the agent to report the end of a domain.
	reportPatience = 10 * time.Second
)

// supervised runs the launcher, and stays for who wants to look at a failure.
func (o *launcherOptions) supervised(ctx context.Context) error {
	var err error
	if o.simulateCrash {
		err = errors.New("launcher: a crash is simulated: --simulate-crash is set")
	} else {
		err = o.run(ctx)
	}
	if err != nil && o.keepAfterFailure && ctx.Err() == nil {
		o.log.Error(err, "Failed, waiting for SIGTERM because of --keep-after-failure")
		<-ctx.Done()
	}
	return err
}

// run serves the VMI until its domain is undefined, or ctx has ended and the domain is shut off.
func (o *launcherOptions) run(ctx context.Context) error {
	if err := os.MkdirAll(o.socketDir(), 0o755); err != nil {
		return err
	}
	l, err := launcher.Listen(ctx, o.socketDir())
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	// What the guest needs continues after the Pod's SIGTERM, until the domain is shut off.
	alive, end := context.WithCancel(context.WithoutCancel(ctx))
	var beside sync.WaitGroup
	defer beside.Wait()
	defer end()
	if err := o.surroundings(alive, &beside); err != nil {
		return err
	}
	hv, err := o.open(ctx)
	if err != nil {
		if ctx.Err() != nil { // SIGTERM, and there is no domain yet
			return nil
		}
		return err
	}
	return o.serve(ctx, alive, hv, l)
}

// surroundings starts what the guest needs beside its hypervisor.
func (o *launcherOptions) surroundings(alive context.Context, beside *sync.WaitGroup) error {
	if o.inMemory() {
		return nil
	}
	if o.connect == "" {
		if err := o.home(); err != nil {
			return err
		}
		logs := o.logs()
		beside.Go(func() { logs.follow(alive) })
		out, err := logs.pipe("libvirtd")
		if err != nil {
			return err
		}
		d := &libvirtDaemon{program: o.libvirtd, dir: filepath.Dir(o.daemonSocket()), out: out, log: o.log, filters: o.logFilters}
		if err := d.prepare(o.config); err != nil {
			return errors.Join(err, out.Close())
		}
		beside.Go(func() {
			d.run(alive)
			_ = out.Close() // the reader ends when the last daemon has
		})
	}
	beside.Go(func() { serveDHCP(alive, o.log) })
	return nil
}

// serve answers the agent until the launcher has nothing more to do.
func (o *launcherOptions) serve(ctx, alive context.Context, hv domain.Hypervisor, l *launcher.Listener) error {
	undefined := make(chan struct{}, 1)
	s := &launcher.Server{
		Hypervisor: hv, Guest: o.guest, Version: version(), Shared: o.socketDir(),
		Undefined: func() {
			select {
			case undefined <- struct{}{}:
			default:
			}
		},
	}
	serving, stop := context.WithCancel(alive)
	served := make(chan error, 1)
	calls := &counted{Listener: l.Listener, changed: make(chan struct{}, 1)}
	go func() { served <- s.Serve(serving, calls) }()
	err := l.Ready()
	if err == nil {
		o.log.Info("Serving VMI", "virtualMachineInstance", o.guest.Namespace+"/"+o.guest.Name, "uid", o.guest.UID)
		err = o.wait(ctx, alive, hv, calls, undefined)
	}
	stop()
	return errors.Join(err, <-served)
}

// wait returns when the launcher has nothing more to do.
func (o *launcherOptions) wait(ctx, alive context.Context, hv domain.Hypervisor, calls *counted, undefined <-chan struct{}) error {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	abandoned := make(chan error, 1)
	go func() { abandoned <- o.abandoned(waiting, hv, calls) }()
	for {
		select {
		case <-undefined:
			o.log.Info("Domain undefined")
			return nil
		case err := <-abandoned:
			if err != nil {
				return err
			}
			abandoned = nil
		case <-ctx.Done():
			o.log.Info("Shutting down domain", "grace", o.grace())
			if err := o.shutdown(alive, hv); err != nil {
				return err
			}
			o.awaitUndefined(alive, hv, calls, undefined)
			return nil
		}
	}
}

// awaitUndefined waits until the agent has undefined the domain that has ended, as no other client can report how it ended. Without an agent
// it returns at once.
func (o *launcherOptions) awaitUndefined(ctx context.Context, hv domain.Hypervisor, calls *counted, undefined <-chan struct{}) {
	late := time.NewTimer(reportPatience)
	defer late.Stop()
	for {
		if _, err := hv.Get(ctx, o.guest.Domain()); errors.Is(err, domain.ErrNotFound) || calls.none() {
			return
		}
		select {
		case <-undefined:
			return
		case <-calls.changed:
		case <-late.C:
			o.log.Info("The agent has not undefined the domain that has ended")
			return
		}
	}
}

func (o *launcherOptions) grace() time.Duration { return time.Duration(o.graceSeconds) * time.Second }

// shutdown requests a graceful shutdown, destroys the domain after the grace period, and waits for its end.
func (o *launcherOptions) shutdown(ctx context.Context, hv domain.Hypervisor) error {
	// What happens between the two contexts is bounded by the second.
	final, cancel := context.WithTimeout(ctx, o.grace()+destroyPatience)
	defer cancel()
	events, err := hv.Watch(final)
	if err != nil {
		return err
	}
	grace := time.NewTimer(o.grace())
	defer grace.Stop()
	tick := time.NewTicker(shutdownRetry)
	defer tick.Stop()
	for verb, asked := domain.Shutdown, false; ; {
		var over bool
		if over, asked = o.endDomain(final, hv, verb, asked); over {
			return nil
		}
		select {
		case _, more := <-events:
			if !more && final.Err() == nil {
				return fmt.Errorf("shut down: %w", domain.ErrDisconnected)
			}
		case <-grace.C:
			o.log.Info("Grace period is over, destroying domain")
			verb, asked = domain.Destroy, false
		case <-tick.C:
			asked = false // a guest that has not booted yet does not hear the first request
		}
		if final.Err() != nil {
			return fmt.Errorf("the domain did not end within %v, and is killed with the Pod: %w", o.grace()+destroyPatience, context.DeadlineExceeded)
		}
	}
}

// endDomain reports whether the domain has ended, and carries out the verb unless it was asked for.
func (o *launcherOptions) endDomain(ctx context.Context, hv domain.Hypervisor, verb domain.Verb, asked bool) (over, nowAsked bool) {
	st, err := hv.Get(ctx, o.guest.Domain())
	if errors.Is(err, domain.ErrNotFound) || err == nil && !st.Alive() {
		return true, asked
	}
	if err == nil && !asked {
		err = hv.Apply(ctx, domain.Operation{Verb: verb, Domain: o.guest.Domain()})
		asked = err == nil
	}
	if err != nil {
		o.log.Error(err, "Ending domain failed, retrying", "verb", verb)
	}
	return false, asked
}

// open connects to the hypervisor, and waits until it is up.
func (o *launcherOptions) open(ctx context.Context) (domain.Hypervisor, error) {
	if o.inMemory() {
		return memory.New(o.guest.Name), nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	for {
		hv, err := libvirt.Open(ctx, o.uri(), libvirt.Options{MigrationDir: filepath.Join(o.socketDir(), "migration"), Log: o.log})
		if err == nil {
			return hv, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("open hypervisor %q: %w", o.uri(), err)
		case <-time.After(connectRetry):
		}
	}
}
