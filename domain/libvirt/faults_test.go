// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/libvirt"
	"github.com/virtloom/virtloom/internal/rig"
)

// startGuests starts guests of the rig's image, paused, and returns their names.
func startGuests(t *testing.T, ns *nodes, d *libvirt.Driver, names ...string) {
	t.Helper()
	for _, name := range names {
		t.Cleanup(func() { destroy(t, name, d) })
		op := domain.Operation{Verb: domain.Start, Domain: name, Definition: ns.definition(t, name), Paused: true}
		if err := d.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
}

// testHang stops the process of one guest: calls about it time out, calls about others do not, and
// when it continues so do all of them.
func testHang(t *testing.T, ns *nodes) {
	d := open(t, ns.n[0].URI(), libvirt.Options{Operations: 8})
	startGuests(t, ns, d, "hang-stuck", "hang-fine")
	pid := findQEMU(t, ns.n[0], "hang-stuck")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume := sync.OnceValue(func() error { return syscall.Kill(pid, syscall.SIGCONT) })
	t.Cleanup(func() { _ = resume() })

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var calls sync.WaitGroup
	for range 12 { // more than operations may run, and more than a daemon takes from one connection
		calls.Go(func() {
			err := d.Apply(ctx, domain.Operation{Verb: domain.Resume, Domain: "hang-stuck"})
			if !errors.Is(err, domain.ErrTimeout) {
				t.Errorf("operation on the guest that hangs: %v, want ErrTimeout", err)
			}
		})
	}
	calls.Wait()
	for _, verb := range []domain.Verb{domain.Resume, domain.Suspend, domain.Destroy} {
		if err := d.Apply(t.Context(), domain.Operation{Verb: verb, Domain: "hang-fine"}); err != nil {
			t.Errorf("%s of the other guest: %v", verb, err)
		}
	}
	if all, err := d.List(t.Context()); err != nil || len(all) < 2 {
		t.Errorf("list: %v, %v", all, err)
	}
	if err := resume(); err != nil {
		t.Fatal(err)
	}
	// The abandoned operation is carried out before this one.
	if err := d.Apply(t.Context(), domain.Operation{Verb: domain.Suspend, Domain: "hang-stuck"}); err != nil {
		t.Errorf("after the guest goes on: %v", err)
	}
	if s, err := d.Get(t.Context(), "hang-stuck"); err != nil || s.Status != domain.StatusPaused {
		t.Errorf("guest is %s, %v", s.Status, err)
	}
}

// testHangEnds ends an unresponsive guest, while another operation is blocked by it.
func testHangEnds(t *testing.T, ns *nodes) {
	d := open(t, ns.n[0].URI(), libvirt.Options{Operations: 1})
	startGuests(t, ns, d, "hang-ended")
	pid := findQEMU(t, ns.n[0], "hang-ended")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // if it still exists
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	resume := domain.Operation{Verb: domain.Resume, Domain: "hang-ended"}
	if err := d.Apply(ctx, resume); !errors.Is(err, domain.ErrTimeout) {
		t.Errorf("operation on the guest that hangs: %v, want ErrTimeout", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := d.Apply(ctx, domain.Operation{Verb: domain.Destroy, Domain: "hang-ended"}); err != nil {
		t.Errorf("destroy: %v", err)
	}
	if s, err := d.Get(ctx, "hang-ended"); err != nil || s.Status != domain.StatusShutoff {
		t.Errorf("guest is %s, %v", s.Status, err)
	}
	// The blocked operation has ended with the guest, and its turn is free again.
	if err := d.Apply(ctx, resume); !errors.Is(err, domain.ErrInvalidState) {
		t.Errorf("resume of the guest that was ended: %v, want ErrInvalidState", err)
	}
}

// onDaemon sends a signal to the node's libvirtd.
func onDaemon(t *testing.T, n *rig.HypervisorNode, signal string) {
	t.Helper()
	out, err := n.Command(contextWithoutEnd(t), "sh", "-c", "kill -"+signal+" $(cat /run/libvirt/libvirtd.pid)").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// testSilentDaemon stops the daemon: calls time out, and the connection is closed after the
// keepalive.
func testSilentDaemon(t *testing.T, ns *nodes) {
	d := open(t, ns.n[0].URI(), libvirt.Options{KeepAliveInterval: time.Second, KeepAliveCount: 1})
	ch, err := d.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	onDaemon(t, ns.n[0], "STOP")
	goOn := sync.OnceFunc(func() { onDaemon(t, ns.n[0], "CONT") })
	t.Cleanup(goOn)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := d.List(ctx); !errors.Is(err, domain.ErrTimeout) {
		t.Errorf("list: %v, want ErrTimeout", err)
	}
	for e := range ch {
		if e.Kind == domain.Lost {
			break
		}
	}
	if _, err := d.List(t.Context()); !errors.Is(err, domain.ErrDisconnected) {
		t.Errorf("list: %v, want ErrDisconnected", err)
	}
	goOn()
	for e := range ch {
		if e.Kind == domain.Resync {
			break
		}
	}
	if _, err := d.List(t.Context()); err != nil {
		t.Errorf("list after the daemon goes on: %v", err)
	}
}

// testSilentClose closes a driver that reconnects to a daemon which accepts connections and is
// unresponsive.
func testSilentClose(t *testing.T, ns *nodes) {
	d := open(t, ns.n[0].URI(), libvirt.Options{KeepAliveInterval: time.Second, KeepAliveCount: 1})
	ch, err := d.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	onDaemon(t, ns.n[0], "STOP")
	t.Cleanup(func() { onDaemon(t, ns.n[0], "CONT") })
	for e := range ch {
		if e.Kind == domain.Lost {
			break
		}
	}
	if err := d.Close(); err != nil { // would wait for ever
		t.Error(err)
	}
	for range ch { // ends
	}
}

// testKills kills the daemon again and again while operations run. Every time the driver reconnects
// by itself and notifies watchers; no operation hangs.
func testKills(t *testing.T, ns *nodes) {
	const rounds = 5
	d := open(t, ns.n[0].URI(), libvirt.Options{})
	startGuests(t, ns, d, "kills-a", "kills-b")
	ch, err := d.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var workers sync.WaitGroup
	for _, name := range []string{"kills-a", "kills-b"} {
		workers.Go(func() { switchUntil(ctx, t, d, name) })
	}
	for range rounds {
		if err := ns.n[0].KillLibvirtd(t.Context()); err != nil {
			t.Fatal(err)
		}
		for e := range ch {
			if e.Kind == domain.Lost {
				break
			}
		}
		if err := ns.n[0].StartLibvirtd(t.Context()); err != nil {
			t.Fatal(err)
		}
		for e := range ch {
			if e.Kind == domain.Resync {
				break
			}
		}
		// The current state is available as soon as the watcher is notified.
		if all, err := d.List(t.Context()); err != nil || len(all) < 2 {
			t.Fatalf("after the resync: %v, %v", all, err)
		}
	}
	cancel()
	workers.Wait()
	for _, name := range []string{"kills-a", "kills-b"} {
		if err := d.Apply(t.Context(), domain.Operation{Verb: domain.Suspend, Domain: name}); err != nil {
			t.Error(err)
		}
		if s, err := d.Get(t.Context(), name); err != nil || s.Status != domain.StatusPaused {
			t.Errorf("%s is %s, %v", name, s.Status, err)
		}
	}
}

// switchUntil suspends and resumes a guest; a lost connection is the only valid error.
func switchUntil(ctx context.Context, t *testing.T, d *libvirt.Driver, name string) {
	for i := 0; ctx.Err() == nil; i++ {
		verb := domain.Resume
		if i%2 == 1 {
			verb = domain.Suspend
		}
		err := d.Apply(ctx, domain.Operation{Verb: verb, Domain: name})
		if err != nil && !errors.Is(err, domain.ErrDisconnected) && ctx.Err() == nil {
			t.Errorf("%s %s: %v", verb, name, err)
		}
	}
}

// testLeaks opens and closes drivers with watches and calls: nothing is left.
func testLeaks(t *testing.T, ns *nodes) {
	use := func() {
		d, err := libvirt.Open(t.Context(), ns.n[0].URI(), libvirt.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		for range 3 {
			if _, err := d.Watch(ctx); err != nil {
				t.Error(err)
			}
		}
		var calls sync.WaitGroup
		for i := range 8 {
			calls.Go(func() {
				err := d.Apply(ctx, domain.Operation{Verb: domain.Destroy, Domain: fmt.Sprintf("leak-%d", i)})
				if err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		cancel()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	use() // allocations that last for the process's life are made here
	before := runtime.NumGoroutine()
	for range 10 {
		use()
	}
	await(t, "end of the goroutines", func() bool { return runtime.NumGoroutine() <= before })
}
