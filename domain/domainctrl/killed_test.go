// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
)

// errKilled is the result of a killed process's last deed: unknown to it.
var errKilled = errors.New("killed")

// life is a process that dies right after its nth deed, a write or an operation at the hypervisor,
// before it gets the result. Later calls do nothing.
type life struct {
	mu   sync.Mutex
	left int
	dead chan struct{}
}

func newLife(deeds int) *life { return &life{left: deeds, dead: make(chan struct{})} }

// deed calls do unless the process is dead.
func (l *life) deed(do func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left == 0 {
		return errKilled
	}
	if err := do(); err != nil {
		return err
	}
	if l.left--; l.left == 0 {
		close(l.dead)
		return errKilled
	}
	return nil
}

// kill ends the process now.
func (l *life) kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left != 0 {
		l.left = 0
		close(l.dead)
	}
}

// mortalClient is the client of a process with that life.
type mortalClient struct {
	client.Client
	life *life
}

func (c mortalClient) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	return c.life.deed(func() error { return c.Client.Patch(ctx, o, p, opts...) })
}

// mortal is the hypervisor as that process reaches it.
type mortal struct {
	domain.Hypervisor
	domain.Migrator
	life *life
}

func (m mortal) Apply(ctx context.Context, op domain.Operation) error {
	return m.life.deed(func() error { return m.Hypervisor.Apply(ctx, op) })
}

func (m mortal) AbortMigration(ctx context.Context, name string) error {
	return m.life.deed(func() error { return m.Migrator.AbortMigration(ctx, name) })
}

// Migrate continues at the hypervisor when the process has died.
func (m mortal) Migrate(ctx context.Context, req domain.MigrationRequest) error {
	ended := make(chan error, 1)
	err := m.life.deed(func() error {
		go func() { ended <- m.Migrator.Migrate(context.WithoutCancel(ctx), req) }()
		return nil
	})
	if err != nil {
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-m.life.dead:
		return errKilled
	}
}

// startMortal runs an agent that dies after so many deeds and another after it.
// died is closed when the first has.
func (n *node) startMortal(t *testing.T, deeds int) (died <-chan struct{}) {
	t.Helper()
	return n.startLife(t, newLife(deeds), func(*domainctrl.Reconciler) {})
}

// startDoomed runs an agent that dies at that step of a migration and another after it.
func (n *node) startDoomed(t *testing.T, at plan.MigrationStep) (died <-chan struct{}) {
	t.Helper()
	l := newLife(math.MaxInt)
	return n.startLife(t, l, func(r *domainctrl.Reconciler) {
		r.OnStep = func(_ context.Context, _ types.NamespacedName, s plan.MigrationStep) {
			if s == at {
				l.kill()
			}
		}
	})
}

func (n *node) startLife(t *testing.T, l *life, edit func(*domainctrl.Reconciler)) (died <-chan struct{}) {
	t.Helper()
	next := n.edit
	n.edit = func(r *domainctrl.Reconciler) {
		edit(r)
		r.Client = mortalClient{r.Client, l}
		r.Hypervisor = mortal{n.Hypervisor, n.Hypervisor, l}
		r.CallTimeout = 5 * time.Second // for which the dead process tries in vain to store an outcome
	}
	stop := n.start(t)
	n.edit = next
	over := make(chan struct{})
	ctx := t.Context()
	go func() {
		defer close(over)
		select {
		case <-l.dead:
			stop()
			n.start(t)
		case <-ctx.Done():
		}
	}()
	t.Cleanup(func() { <-over })
	return l.dead
}

// guard watches the domains of a VMI: never two running, never none once it ran.
type guard struct {
	stop func()
	mu   sync.Mutex
	err  error
	over bool // the guest may end
}

func (p *pair) guard(t *testing.T, vmi *v1.VirtualMachineInstance) *guard {
	ctx, cancel := context.WithCancel(t.Context())
	g, ended, ran := &guard{}, make(chan struct{}), false
	vmi = vmi.DeepCopy() // the test modifies its own
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			// The guest migrates from a to b: a domain running at b before it ran at a was a second
			// one, one gone from a must be at b.
			bFirst, a, bThen := p.b.running(vmi), p.a.state(vmi), p.b.state(vmi)
			alive := a != nil && a.Alive() || bThen != nil && bThen.Alive()
			ran = ran || a != nil && a.Status == domain.StatusRunning
			g.mu.Lock()
			switch {
			case bFirst && a != nil && a.Status == domain.StatusRunning:
				g.err = errors.New("the guest ran twice")
			case ran && !alive && !g.over:
				g.err = fmt.Errorf("the guest was lost: on the source %+v, on the target %+v", a, bThen)
			}
			g.mu.Unlock()
			time.Sleep(time.Millisecond)
		}
	}()
	g.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		if g.err != nil {
			t.Error(g.err)
		}
	})
	t.Cleanup(g.stop)
	return g
}

func (g *guard) mayEnd() {
	g.mu.Lock()
	g.over = true
	g.mu.Unlock()
}

// TestAgent_KilledAfterAnyDeed repeats one story, start, migration and end of a VMI, and kills one
// of the two agents after its first deed, its second, and so on, until the story is over before the
// agent is.
func TestAgent_KilledAfterAnyDeed(t *testing.T) {
	c := newCluster(t)
	for _, side := range []string{"source", "target"} {
		for deeds, killed := 1, true; killed; deeds++ {
			t.Run(fmt.Sprintf("%s after %d", side, deeds), func(t *testing.T) {
				killed = story(t, newPair(t, c), side, deeds)
			})
			if t.Failed() {
				return
			}
			if !killed && deeds < 5 {
				t.Fatalf("the %s did only %d things; the story is too short", side, deeds)
			}
		}
	}
}

// story reports whether the agent was killed.
func story(t *testing.T, p *pair, side string, deeds int) bool {
	p.a.MigrationTakes(20 * time.Millisecond)
	mortal, other := p.a, p.b
	if side == "target" {
		mortal, other = p.b, p.a
	}
	died := mortal.startMortal(t, deeds)
	other.start(t)

	vmi := p.create(t, "guest")
	g := p.guard(t, vmi)
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	for try := 1; vmi.Status.NodeName != p.b.name; try++ {
		if try > 3 {
			t.Fatal("the guest cannot be moved")
		}
		uid := types.UID(fmt.Sprintf("migration-%d", try))
		p.move(t, vmi, p.b, uid)
		p.until(t, "the migration to end", vmi, func(l handoff.Lease) bool {
			_, ended := l.MoveOutcome(uid)
			return l.State == handoff.Owned && ended
		})
	}
	p.runsOn(t, vmi, p.b)
	eventually(t, "the source to be tidy", func() bool { return p.a.empty(vmi) })
	g.mayEnd()
	p.finish(t, vmi)
	g.stop()
	for n, most := range map[*node]int{p.a: 1, p.b: 0} {
		if starts := n.Calls(string(domain.Start)); starts > most {
			t.Errorf("%s was asked %d times to start the guest", n.name, starts)
		}
	}
	select {
	case <-died:
		return true
	default:
		return false
	}
}
