// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

func TestWatch_Migrations(t *testing.T) {
	c := newCluster(t)
	for name, test := range map[string]func(*testing.T, *pair){
		"M7: one that takes longer than it may is aborted":               overBudget,
		"one is helped by a pause of the guest":                          helpedByPause,
		"M8: one is helped by post-copy, and not aborted":                helpedByPostCopy,
		"one gets through conflicts at each write":                       conflicts,
		"a stale cache begins none again":                                lagging,
		"a guest that was paused for it goes on when it fails":           pausedInVain,
		"one that an earlier agent has begun is watched":                 adopted,
		"one that hangs keeps none from being watched":                   hangs,
		"its progress is reported at intervals":                          reportedNowAndThen,
		"one whose target cannot listen waits":                           cannotListen,
		"one whose target cannot be reached ends before it begins":       cannotDial,
		"one goes on without the API server":                             withoutServer,
		"one that is held waits for it":                                  heldWithoutServer,
		"one goes by options that have changed":                          changed,
		"one that an earlier agent has begun goes by the options of now": changedMeanwhile,
		"an agent that ends carries on with those from it":               drained("source"),
		"an agent that ends carries on with those to it":                 drained("target"),
		"an agent that ends aborts what is not done in time":             drainedInVain,
		"the way to the target is closed after a while":                  closedLater,
		"the way to the target is closed when the guest stays away":      closedAtOnce,
	} {
		t.Run(name, func(t *testing.T) { test(t, newPair(t, c)) })
	}
}

// leaving is a VMI that runs on a and is to migrate to b, which takes that long. The agents run.
func (p *pair) leaving(t *testing.T, takes time.Duration, edit func(*v1.VMIMConfigurationOptions)) *v1.VirtualMachineInstance {
	t.Helper()
	p.a.MigrationTakes(takes)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	p.migrate(t, vmi, edit)
	return vmi
}

func (p *pair) start(t *testing.T) {
	t.Helper()
	p.a.start(t)
	p.b.start(t)
}

func briefly(o *v1.VMIMConfigurationOptions) {
	second := int64(1)
	o.CompletionTimeoutPerGiB = &second
}

func asItLikes(*v1.VMIMConfigurationOptions) {}

const tookTooLong = "Live migration has been aborted: migration has exceeded its completion timeout"

func overBudget(t *testing.T, p *pair) {
	p.start(t)
	vmi := p.leaving(t, time.Hour, briefly)
	p.staysOn(t, vmi, tookTooLong)
}

func helpedByPause(t *testing.T, p *pair) {
	p.start(t)
	vmi := p.leaving(t, longerThanSoon, pausedSoon)
	p.runsOn(t, vmi, p.b)
	if m := vmi.Status.MigrationState; m.Mode != v1.MigrationPaused || p.a.Calls("Suspend") == 0 {
		t.Errorf("mode %s; it was paused %d times", m.Mode, p.a.Calls("Suspend"))
	}
}

func pausedInVain(t *testing.T, p *pair) {
	p.a.edit = func(r *domainctrl.Reconciler) {
		r.OnStep = func(_ context.Context, _ types.NamespacedName, s plan.MigrationStep) {
			if s == plan.SourceDisrupting {
				p.a.Link(p.b.uri()).Cut()
			}
		}
	}
	p.start(t)
	vmi := p.leaving(t, time.Hour, pausedSoon)
	p.staysOn(t, vmi, "broke")
}

func adopted(t *testing.T, p *pair) {
	died := p.a.startDoomed(t, plan.SourceMoving)
	p.b.start(t)
	vmi := p.leaving(t, time.Hour, func(o *v1.VMIMConfigurationOptions) {
		tenSeconds := int64(10)
		o.CompletionTimeoutPerGiB = &tenSeconds
	})
	<-died
	p.until(t, "the progress to be reported again", vmi, func(handoff.Lease) bool {
		_, reported := status.ProgressOf(vmi)
		return reported
	})
	p.staysOn(t, vmi, tookTooLong)
	if n := p.a.Calls("Migrate"); n != 1 {
		t.Errorf("it began to move %d times", n)
	}
}

func hangs(t *testing.T, p *pair) {
	p.start(t)
	first := p.leaving(t, time.Hour, briefly)
	free := p.a.Inject(memory.Fault{Call: "MigrationProgress", Domain: domain.Name(first.Namespace, first.Name), Hang: true})
	t.Cleanup(free)
	second := p.create(t, "second")
	p.offer(t, second, p.a)
	p.runsOn(t, second, p.a)
	p.migrate(t, second, briefly)
	p.until(t, "the second to be given up", second, func(l handoff.Lease) bool { return l.State == handoff.Owned && reverted(l, "job") })
	domainfixture.Says(t, errors.New(second.Status.MigrationState.FailureReason), tookTooLong)
	free()
	p.until(t, "the first to be given up", first, func(l handoff.Lease) bool { return l.State == handoff.Owned && reverted(l, "job") })
}

// reports counts the writes of an object that reports a migration's progress.
type reports struct {
	client.Client
	n *atomic.Int64
}

func (c reports) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	err := c.Client.Patch(ctx, o, p, opts...)
	if _, has := status.ProgressOf(o.(*v1.VirtualMachineInstance)); has && err == nil {
		c.n.Add(1)
	}
	return err
}

func reportedNowAndThen(t *testing.T, p *pair) {
	var n atomic.Int64
	p.a.edit = func(r *domainctrl.Reconciler) {
		r.ProgressEvery = time.Hour
		r.Client = reports{r.Client, &n}
	}
	p.start(t)
	vmi := p.leaving(t, time.Hour, asItLikes)
	p.until(t, "the progress to be reported", vmi, func(handoff.Lease) bool {
		_, reported := status.ProgressOf(vmi)
		return reported
	})
	before := p.a.Calls("MigrationProgress")
	eventually(t, "many looks", func() bool { return p.a.Calls("MigrationProgress") > before+20 })
	if got := n.Load(); got != 1 {
		t.Errorf("the object was written %d times with progress, want once", got)
	}
	p.step(t, vmi, handoff.Event{Kind: handoff.Abort, Tag: "job"}, func(*v1.VirtualMachineInstance) {})
	p.staysOn(t, vmi, "aborted")
	if _, reported := status.ProgressOf(vmi); reported {
		t.Errorf("it is still reported: %+v", vmi.Status.Conditions)
	}
}

func cannotListen(t *testing.T, p *pair) {
	w := &way{}
	w.listenFails.Store(1 << 20) // until it was seen
	p.b.by(w)
	p.start(t)
	vmi := p.leaving(t, 0, asItLikes)
	p.until(t, "the obstacle to be reported", vmi, func(l handoff.Lease) bool {
		m := vmi.Status.MigrationState
		return l.State == handoff.Preparing && m.FailureReason != "" && !m.Failed
	})
	domainfixture.Says(t, errors.New(vmi.Status.MigrationState.FailureReason), "no port is free", p.a.name)
	w.listenFails.Store(0)
	p.runsOn(t, vmi, p.b)
}

func cannotDial(t *testing.T, p *pair) {
	w := &way{}
	w.dialFails.Store(1)
	p.a.by(w)
	p.start(t)
	vmi := p.leaving(t, 0, asItLikes)
	p.until(t, "the migration to end", vmi, func(l handoff.Lease) bool { return l.State == handoff.Owned && reverted(l, "job") })
	domainfixture.Says(t, errors.New(vmi.Status.MigrationState.FailureReason), "no route to host", p.b.name)
	if n := p.a.Calls("Migrate"); n != 0 {
		t.Errorf("the hypervisor was asked %d times to move it", n)
	}
	p.move(t, vmi, p.b, "another")
	p.runsOn(t, vmi, p.b)
}

// cutOff is the connection to an API server that is unresponsive while away is set.
type cutOff struct {
	client.Client
	away *atomic.Bool
}

var errAway = errors.New("connection refused")

func (c cutOff) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if c.away.Load() {
		return errAway
	}
	return c.Client.Patch(ctx, o, p, opts...)
}

type cutOffReader struct {
	client.Reader
	away *atomic.Bool
}

func (c cutOffReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if c.away.Load() {
		return errAway
	}
	return c.Reader.Get(ctx, key, o, opts...)
}

// leavingCutOff is leaving for a source that loses the API server when it has begun.
func (p *pair) leavingCutOff(t *testing.T, edit func(*v1.VMIMConfigurationOptions)) (vmi *v1.VirtualMachineInstance, away *atomic.Bool) {
	t.Helper()
	away = &atomic.Bool{}
	p.a.edit = func(r *domainctrl.Reconciler) {
		r.Client, r.APIReader = cutOff{r.Client, away}, cutOffReader{r.APIReader, away}
		r.OnStep = func(_ context.Context, _ types.NamespacedName, s plan.MigrationStep) {
			if s == plan.SourceDialled {
				away.Store(true)
			}
		}
	}
	p.start(t)
	return p.leaving(t, time.Second, edit), away
}

func withoutServer(t *testing.T, p *pair) {
	vmi, away := p.leavingCutOff(t, func(o *v1.VMIMConfigurationOptions) {
		yes := true
		o.AllowPostCopy = &yes // so that it is not paused
	})
	g := p.guard(t, vmi)
	p.runsOn(t, vmi, p.b)
	if !away.Load() || p.a.empty(vmi) {
		t.Error("the source has acted without a word of the API server")
	}
	away.Store(false)
	eventually(t, "the source to be tidy", func() bool { return p.a.empty(vmi) })
	g.mayEnd()
	p.finish(t, vmi)
}

func heldWithoutServer(t *testing.T, p *pair) {
	vmi, away := p.leavingCutOff(t, asItLikes)
	g := p.guard(t, vmi)
	eventually(t, "the guest to have left", func() bool {
		from, to := p.a.state(vmi), p.b.state(vmi)
		return from != nil && from.Reason == domain.ReasonMigrated && to != nil && to.Status == domain.StatusPaused
	})
	if p.get(t, vmi); vmi.Status.NodeName != p.a.name {
		t.Errorf("it is on %s before its source has said that it has left", vmi.Status.NodeName)
	}
	away.Store(false)
	p.runsOn(t, vmi, p.b)
	g.mayEnd()
	p.finish(t, vmi)
}

func helpedByPostCopy(t *testing.T, p *pair) {
	p.start(t)
	vmi := p.leaving(t, 2*longerThanSoon, func(o *v1.VMIMConfigurationOptions) {
		yes := true
		pausedSoon(o)
		o.AllowPostCopy = &yes
		// Disks go first, and there is no switch before they have arrived.
		p.a.SetLoad(domain.Name(p.ns, "guest"), memory.Load{Bytes: 64 << 30})
	})
	p.runsOn(t, vmi, p.b)
	if m := vmi.Status.MigrationState; m.Mode != v1.MigrationPostCopy || p.a.Calls("SwitchToPostCopy") == 0 || p.a.Calls("Suspend") > 0 {
		t.Errorf("mode %s; it was switched %d times and paused %d times", m.Mode, p.a.Calls("SwitchToPostCopy"), p.a.Calls("Suspend"))
	}
	p.finish(t, vmi)
}

// writesTwice lets another client write each object right before the agent does, so that
// each of its writes conflicts once.
type writesTwice struct {
	client.Client
	other client.Client
	n     *atomic.Int64
}

func (c writesTwice) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	n := c.n.Add(1)
	if n%2 == 1 {
		touched := &v1.VirtualMachineInstance{}
		touched.Namespace, touched.Name = o.GetNamespace(), o.GetName()
		by := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"example.test/touched":"%d"}}}`, n))
		if err := c.other.Patch(ctx, touched, by); err != nil {
			return err
		}
	}
	return c.Client.Patch(ctx, o, p, opts...)
}

func conflicts(t *testing.T, p *pair) {
	for _, n := range []*node{p.a, p.b} {
		var writes atomic.Int64
		n.edit = func(r *domainctrl.Reconciler) { r.Client = writesTwice{r.Client, p.Client, &writes} }
	}
	p.start(t)
	vmi := p.leaving(t, time.Second, asItLikes)
	g := p.guard(t, vmi)
	p.atRest(t, vmi)
	if vmi.Status.NodeName != p.b.name {
		t.Errorf("the guest is on %s: %+v", vmi.Status.NodeName, vmi.Status.MigrationState)
	}
	g.mayEnd()
	p.finish(t, vmi)
}

// lagging is a cache that shows the objects at the time it stopped.
func lagging(t *testing.T, p *pair) {
	stop := p.a.start(t)
	p.b.start(t)
	vmi := p.leaving(t, time.Second, asItLikes)
	p.until(t, "the guest to be on its way", vmi, func(l handoff.Lease) bool { return l.State == handoff.Moving })
	before := vmi.DeepCopy()
	p.runsOn(t, vmi, p.b)
	stop()
	p.a.passes(t, before)
	p.runsOn(t, vmi, p.b)
	if n := p.a.Calls("Migrate"); n != 1 || p.a.running(vmi) {
		t.Errorf("it was moved %d times, and runs at its source: %t", n, p.a.running(vmi))
	}
	p.a.start(t)
	eventually(t, "the source to be tidy", func() bool { return p.a.empty(vmi) })
	p.finish(t, vmi)
}
