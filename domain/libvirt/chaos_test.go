// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/informer"
	"github.com/virtloom/virtloom/domain/libvirt"
	"github.com/virtloom/virtloom/internal/rig"
)

// chaosEnv enables many more rounds: make nightly ONLY=chaos.
const chaosEnv = "VIRTLOOM_CHAOS"

// rounds of a test that kills daemons and guests.
func rounds(few, many int) int {
	if os.Getenv(chaosEnv) != "" {
		return many
	}
	return few
}

// informed runs an informer over the driver; stop ends it and checks that its events about each
// domain have no gap.
func informed(t *testing.T, d domain.Hypervisor) (i *informer.Informer, stop func()) {
	t.Helper()
	i = &informer.Informer{Hypervisor: d}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if err := i.Run(ctx); err != nil {
			t.Errorf("informer: %v", err)
		}
	})
	changes := i.Watch(t.Context())
	all.Go(func() {
		seen := map[string]*domain.State{}
		for c := range changes {
			if !reflect.DeepEqual(c.Old, seen[c.Name]) {
				t.Errorf("a change of %s does not begin where the last one ended: %+v, %+v", c.Name, c.Old, seen[c.Name])
			}
			seen[c.Name] = c.New
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	t.Cleanup(stop)
	return i, stop
}

// gist is the part of a state that does not change by itself.
type gist struct {
	UUID   string
	Status domain.Status
	Reason domain.Reason
	Stale  bool
	Epoch  uint64
}

func gistOf(s *domain.State) gist {
	return gist{s.UUID, s.Status, s.Reason, !s.Stale.IsZero(), s.Metadata.Epoch}
}

// truthOf returns the states of all domains by a new connection; false if it fails.
func truthOf(t *testing.T, uri string) (map[string]gist, bool) {
	t.Helper()
	d, err := libvirt.Open(t.Context(), uri, libvirt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	all, err := d.List(t.Context())
	out := map[string]gist{}
	for n := range all {
		st, getErr := d.Get(t.Context(), all[n].Name)
		if err != nil || getErr != nil {
			return nil, false
		}
		out[st.Name] = gistOf(&st)
	}
	return out, err == nil
}

func knownTo(i *informer.Informer) map[string]gist {
	out := map[string]gist{}
	for _, st := range i.List() {
		out[st.Name] = gistOf(&st)
	}
	return out
}

// torment applies random operations until ctx ends. Any of them may fail: the final state at the
// hypervisor counts.
func torment(ctx context.Context, ns *nodes, t *testing.T, d *libvirt.Driver, name string) {
	rnd := rand.New(rand.NewPCG(1, uint64(name[len(name)-1])))
	verbs := []domain.Verb{domain.Start, domain.Suspend, domain.Resume, domain.SetMetadata, domain.Resume, domain.Suspend, domain.Destroy, domain.Undefine}
	def := ns.definition(t, name)
	for ctx.Err() == nil {
		op := domain.Operation{Verb: verbs[rnd.IntN(len(verbs))], Domain: name, Definition: def, Paused: true}
		op.Metadata = domain.Metadata{Namespace: "test", Name: name, UID: "u", Epoch: rnd.Uint64N(1000)}
		_ = d.Apply(ctx, op)
	}
}

// testChaos kills the daemon and guests again and again while operations run. Every time the
// informer reconnects by itself; in the end it has the states that a new connection sees, its
// events have no gap, and nothing of it is left.
func testChaos(t *testing.T, ns *nodes) {
	node := ns.n[0]
	names := []string{"chaos-a", "chaos-b", "chaos-c"}
	cleaner := open(t, node.URI(), libvirt.Options{})
	t.Cleanup(func() { clearAway(t, node, cleaner, names) })
	before := runtime.NumGoroutine()
	d, err := libvirt.Open(t.Context(), node.URI(), libvirt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	i, stop := informed(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var workers sync.WaitGroup
	for _, name := range names {
		workers.Go(func() { torment(ctx, ns, t, d, name) })
	}
	var took []time.Duration
	guests := rounds(5, 20)
	for n := range rounds(5, 50) {
		if n < guests {
			killAny(t, ns)
		}
		lost := i.Connection()
		if err := node.KillLibvirtd(t.Context()); err != nil {
			t.Fatal(err)
		}
		if lost.Up {
			<-lost.Changed
		}
		// The port of the killed one may be in use for a moment.
		await(t, "libvirtd to start", func() bool { return node.StartLibvirtd(t.Context()) == nil })
		began := time.Now()
		await(t, "informer connected again", i.Connected)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("recovery after %d kills of the daemon and %d of guests: p50 %v, max %v", len(took), guests, took[len(took)/2], took[len(took)-1])
	cancel()
	workers.Wait()

	agrees := func() bool {
		want, ok := truthOf(t, node.URI())
		return ok && cmp.Equal(want, knownTo(i))
	}
	defer func() {
		if t.Failed() {
			want, _ := truthOf(t, node.URI())
			t.Logf("what is known (-truth +known):\n%s", cmp.Diff(want, knownTo(i)))
		}
	}()
	await(t, "informer knows the truth", agrees)
	stop()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	await(t, "end of the goroutines", func() bool { return runtime.NumGoroutine() <= before })
}

// clearAway destroys guests. One whose process or daemon was killed during an operation may be
// locked: for a while, or, if it was being started, for as long as its process exists (libvirt 9.0
// never ends that job, not even when it is restarted).
func clearAway(t *testing.T, node *rig.HypervisorNode, d *libvirt.Driver, names []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(contextWithoutEnd(t), 3*time.Minute)
	defer cancel()
	for _, name := range names {
		for _, verb := range []domain.Verb{domain.Destroy, domain.Undefine} {
			err := d.Apply(ctx, domain.Operation{Verb: verb, Domain: name})
			for err != nil && ctx.Err() == nil {
				if errors.Is(err, domain.ErrTimeout) {
					killAll(ctx, t, node)
				}
				err = d.Apply(ctx, domain.Operation{Verb: verb, Domain: name})
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// killAny kills the process of one guest of the node, if one runs.
func killAny(t *testing.T, ns *nodes) {
	t.Helper()
	pids, err := ns.n[0].QEMUs()
	if err != nil {
		t.Fatal(err)
	}
	if len(pids) > 0 {
		_ = syscall.Kill(pids[0], syscall.SIGKILL) // it may have ended since
	}
}

// testHungLatency reports how an unresponsive guest delays the operations of others. It hangs and
// continues by turns, so that the machine's other load affects both alike.
func testHungLatency(t *testing.T, ns *nodes) {
	d := open(t, ns.n[0].URI(), libvirt.Options{})
	i, _ := informed(t, d)
	startGuests(t, ns, d, "slow-stuck", "slow-fine")
	await(t, "informer has synced", i.HasSynced)
	pid := findQEMU(t, ns.n[0], "slow-stuck")
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	var quiet, beside []time.Duration
	for range rounds(4, 40) {
		quiet = append(quiet, latencies(t, d, "slow-fine")...)
		beside = append(beside, besideHung(t, d, pid)...)
		await(t, "informer knows of the other guest", func() bool {
			st, known := i.Get("slow-fine")
			return known && st.Stale.IsZero()
		})
	}
	slices.Sort(quiet)
	slices.Sort(beside)
	p := func(l []time.Duration, q int) time.Duration { return l[min(len(l)*q/100, len(l)-1)] }
	t.Logf("%d operations of another guest: p50 %v, p99 %v; beside one that hangs: p50 %v, p99 %v; ratio of p99 %.2f",
		len(quiet), p(quiet, 50), p(quiet, 99), p(beside, 50), p(beside, 99), float64(p(beside, 99))/float64(p(quiet, 99)))
}

// besideHung measures while the process hangs and operations on its guest wait.
func besideHung(t *testing.T, d *libvirt.Driver, pid int) []time.Duration {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var stuck sync.WaitGroup
	for range 3 {
		stuck.Go(func() { _ = d.Apply(ctx, domain.Operation{Verb: domain.Resume, Domain: "slow-stuck"}) })
	}
	out := latencies(t, d, "slow-fine")
	cancel()
	stuck.Wait()
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	return out
}

// latencies measures operations on a guest.
func latencies(t *testing.T, d *libvirt.Driver, name string) []time.Duration {
	t.Helper()
	var out []time.Duration
	for n := range 50 {
		verb := domain.Resume
		if n%2 == 1 {
			verb = domain.Suspend
		}
		began := time.Now()
		if err := d.Apply(t.Context(), domain.Operation{Verb: verb, Domain: name}); err != nil {
			t.Errorf("%s %s: %v", verb, name, err)
		}
		out = append(out, time.Since(began))
	}
	return out
}

// counted counts calls.
type counted struct {
	domain.Hypervisor
	lists, gets atomic.Int64
}

func (c *counted) List(ctx context.Context) ([]domain.State, error) {
	c.lists.Add(1)
	return c.Hypervisor.List(ctx)
}

func (c *counted) Get(ctx context.Context, name string) (domain.State, error) {
	c.gets.Add(1)
	return c.Hypervisor.Get(ctx, name)
}

// A tick over 500 unchanged domains is one bulk query.
func TestKeeper_TickListsOnce(t *testing.T) {
	const domains = 500
	d := open(t, "test:///default", libvirt.Options{})
	for n := range domains {
		name := fmt.Sprintf("tick-%d", n)
		t.Cleanup(func() { destroy(t, name, d) })
		op := domain.Operation{Verb: domain.Start, Domain: name, Definition: testDefinition(t, name)}
		if err := d.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	c := &counted{Hypervisor: d}
	i := &informer.Informer{Hypervisor: c, Resync: 100 * time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- i.Run(ctx) }()
	await(t, "informer knows all", func() bool { return i.HasSynced() && len(i.List()) >= domains })
	lists, gets := c.lists.Load(), c.gets.Load()
	await(t, "a few ticks", func() bool { return c.lists.Load() >= lists+5 })
	if more := c.gets.Load() - gets; more > 0 {
		t.Errorf("%d questions about single domains", more)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// killAll kills all guests of a node while its libvirtd is down, and removes its record of them:
// libvirt 9.0 that was killed while it started a guest may wait for that start forever, even for a
// guest that is gone.
func killAll(ctx context.Context, t *testing.T, node *rig.HypervisorNode) {
	t.Helper()
	err := node.KillLibvirtd(ctx)
	pids, unknown := node.QEMUs()
	for _, pid := range pids {
		if e := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(e, syscall.ESRCH) {
			err = errors.Join(err, e)
		}
	}
	noted, wrong := filepath.Glob(fmt.Sprintf("/proc/%d/root/run/libvirt/qemu/*.xml", node.Pid()))
	for _, file := range noted {
		err = errors.Join(err, os.Remove(file))
	}
	if err = errors.Join(err, unknown, wrong, node.StartLibvirtd(ctx)); err != nil {
		t.Error(err)
	}
}
