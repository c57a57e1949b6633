// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/handoff"
)

func TestNode_KeepsToLease(t *testing.T) {
	c := newCluster(t)
	for name, test := range map[string]func(*testing.T, *pair){
		"stores what it does before it does it":                   storesFirst,
		"does not start a guest that it lost while it was slow":   slowAndFenced,
		"starts a guest after a pause only when it has asked":     slowAndAsked,
		"does not start a guest that the answer says is not its":  answeredOtherwise,
		"asks a guest to end when it notes that it has":           endsAtOnce,
		"does not move a guest after a pause":                     slowMove,
		"ends a guest by a recent word only":                      slowEnd,
		"lets no call outlive the word it goes by":                callsEnd,
		"does not start a guest that only its cache says is its":  fencedUnseen,
		"completes a start that was cut short at the definition":  cutShort(domain.StatusShutoff, domain.ReasonUnknown, 2),
		"does not repeat the start of a guest that ran and ended": cutShort(domain.StatusShutoff, domain.ReasonShutdown, 1),
		"does not repeat the start of a guest that crashed":       cutShort(domain.StatusCrashed, domain.ReasonPanicked, 1),
		"keeps its guest when it was silent":                      backAgain,
		"starts a guest although it was silent since":             silentBeforeTheStart,
		"gives up the guest that was fenced":                      fencedAway,
		"takes over the guest of a fenced holder":                 fencedAndArrived,
		"says that the guest of a fenced holder has not come":     fencedAndNotCome,
		"aborts a move that the lease calls off":                  abortedByTheLease,
		"aborts a move that takes too long":                       tooLong,
		"reports once that a lease cannot be read":                reportedOnce,
	} {
		t.Run(name, func(t *testing.T) { test(t, newPair(t, c)) })
	}
}

func storesFirst(t *testing.T, p *pair) {
	l := &log{lines: map[string][]string{}}
	for _, n := range []*node{p.a, p.b} {
		l.on(n)
		n.start(t)
	}
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	p.move(t, vmi, p.b, "job")
	p.runsOn(t, vmi, p.b)
	eventually(t, "the source to be tidy", func() bool { return p.a.empty(vmi) })
	p.finish(t, vmi)
	for n, want := range map[*node]string{
		p.a: `Owned Scheduled [start/1]
Start
Owned Running []
Moving Running [migrate-in/2 migrate-out/2]
Undefine`,
		p.b: `Prepared Running [migrate-in/2]
Arrived Running [finalize/3]
Resume
Owned Running []
Releasing Running [stop/3]
Shutdown
Released Succeeded []
Undefine`,
	} {
		if got := l.of(n); got != want {
			t.Errorf("%s stored and did:\n%s\nwant:\n%s", n.name, got, want)
		}
	}
}

func slowAndFenced(t *testing.T, p *pair) {
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	r := p.a.slow(t, func(r *domainctrl.Reconciler, pause func()) {
		r.Client = afterPatch{r.Client, func(stored *v1.VirtualMachineInstance) {
			pause()
			p.fence(t, stored.DeepCopy(), p.a)
		}}
	})
	pass(t, r, vmi)
	p.starts(t, p.a, 0)
	p.until(t, "nothing", vmi, func(l handoff.Lease) bool { return l.State == handoff.Fenced })
}

func slowAndAsked(t *testing.T, p *pair) {
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	var starts []int
	r := p.a.slow(t, func(r *domainctrl.Reconciler, pause func()) {
		r.Client = afterPatch{r.Client, func(*v1.VirtualMachineInstance) { pause() }}
		r.APIReader = afterGet{r.APIReader, func() { starts = append(starts, p.a.Calls(string(domain.Start))) }}
	})
	pass(t, r, vmi)
	p.starts(t, p.a, 1)
	if !slices.Equal(starts, []int{0, 0}) {
		t.Errorf("at each read the guest had been started %v times; want two reads before the start", starts)
	}
}

func slowMove(t *testing.T, p *pair) {
	stop := p.a.start(t)
	p.b.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	stop()
	p.move(t, vmi, p.b, "job")
	p.until(t, "the target to be ready", vmi, func(l handoff.Lease) bool { return l.State == handoff.Prepared })
	r := p.a.slow(t, func(r *domainctrl.Reconciler, pause func()) {
		r.Client = afterPatch{r.Client, func(*v1.VirtualMachineInstance) { pause() }}
	})
	pass(t, r, vmi)
	p.until(t, "nothing", vmi, func(l handoff.Lease) bool { return reverted(l, "job") && p.a.running(vmi) })
	if p.a.Calls("Migrate") > 0 {
		t.Error("the guest began to move")
	}
}

func answeredOtherwise(t *testing.T, p *pair) {
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	var starts []int
	r := p.a.slow(t, func(r *domainctrl.Reconciler, _ func()) {
		r.Client = afterPatch{r.Client, func(stored *v1.VirtualMachineInstance) {
			l, err := handoff.Of(stored)
			domainfixture.Must(t, err)
			l, _, err = handoff.Step(l, handoff.Event{Kind: handoff.Suspect, Node: p.a.name, Epoch: l.Epoch}, time.Now())
			domainfixture.Must(t, err)
			domainfixture.Must(t, handoff.Put(stored, l))
		}}
		r.APIReader = afterGet{r.APIReader, func() { starts = append(starts, p.a.Calls(string(domain.Start))) }}
	})
	pass(t, r, vmi)
	if !slices.Equal(starts, []int{0, 0}) {
		t.Errorf("at each read the guest had been started %v times; want two reads before the start", starts)
	}
}

func slowEnd(t *testing.T, p *pair) {
	stop := p.a.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	stop()
	p.fence(t, vmi, p.a)
	var done, read []string
	r := p.a.slow(t, func(r *domainctrl.Reconciler, pause func()) {
		r.Hypervisor = beforeApply{p.a.Hypervisor, p.a.Hypervisor, func(_ context.Context, op domain.Operation) {
			done = append(done, string(op.Verb))
			pause() // this one hangs
		}}
		r.APIReader = afterGet{r.APIReader, func() { read = append(read, strings.Join(done, " ")) }}
	})
	pass(t, r, vmi)
	pass(t, r, vmi)
	if want := []string{"", "Destroy", "Destroy Undefine"}; !slices.Equal(read, want) {
		t.Errorf("before each read it had done %q, want %q", read, want)
	}
	if !p.a.empty(vmi) {
		t.Errorf("the guest is %+v", p.a.state(vmi))
	}
}

func endsAtOnce(t *testing.T, p *pair) {
	stop := p.a.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	stop()
	p.step(t, vmi, handoff.Event{Kind: handoff.Stop}, func(*v1.VirtualMachineInstance) {})
	_, r := p.a.agent(t)
	r.Caches = &domainctrl.Caches{Owned: frozen{r.Caches.Owned, vmi.DeepCopy()}, Incoming: empty{r.Caches.Incoming}, Pods: r.Caches.Pods}
	pass(t, r, vmi)
	if p.a.running(vmi) || p.a.Calls("Shutdown") != 1 {
		t.Errorf("the guest was asked %d times and is %+v", p.a.Calls("Shutdown"), p.a.state(vmi))
	}
}

func callsEnd(t *testing.T, p *pair) {
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	bounded := false
	now := clocktesting.NewFakePassiveClock(time.Now())
	const passed = 50 * time.Second
	p.a.edit = func(r *domainctrl.Reconciler) {
		r.Clock, r.CallTimeout = now, time.Hour
		r.Client = afterPatch{r.Client, func(*v1.VirtualMachineInstance) { now.SetTime(now.Now().Add(passed)) }}
		r.Hypervisor = beforeApply{p.a.Hypervisor, p.a.Hypervisor, func(ctx context.Context, op domain.Operation) {
			until, has := ctx.Deadline()
			bounded = has && op.Verb == domain.Start && time.Until(until) <= handoff.ActWithin-passed
		}}
		r.Caches = &domainctrl.Caches{Owned: empty{r.Caches.Owned}, Incoming: empty{r.Caches.Incoming}, Pods: r.Caches.Pods}
	}
	_, r := p.a.agent(t)
	pass(t, r, vmi)
	if !bounded || !p.a.running(vmi) {
		t.Errorf("the start's deadline is bounded: %t; the guest is %+v", bounded, p.a.state(vmi))
	}
}

func fencedUnseen(t *testing.T, p *pair) {
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.step(t, vmi, handoff.Event{Kind: handoff.Accept, Node: p.a.name}, func(*v1.VirtualMachineInstance) {})
	accepted := vmi.DeepCopy()
	p.fence(t, vmi, p.a)
	p.a.passes(t, accepted)
	p.starts(t, p.a, 0)
}

// cutShort kills the agent after its request to start the domain, which the next agent finds in
// that state.
func cutShort(s domain.Status, reason domain.Reason, starts int) func(*testing.T, *pair) {
	return func(t *testing.T, p *pair) {
		l := newLife(2)
		p.a.edit = func(r *domainctrl.Reconciler) {
			r.Client, r.Hypervisor = mortalClient{r.Client, l}, mortal{p.a.Hypervisor, p.a.Hypervisor, l}
		}
		stop := p.a.start(t)
		vmi := p.create(t, "guest")
		p.offer(t, vmi, p.a)
		<-l.dead
		stop()
		p.a.edit = nil
		p.starts(t, p.a, 1)
		p.a.SetState(domain.Name(vmi.Namespace, vmi.Name), s, reason)
		p.a.start(t)
		p.until(t, "an outcome of the start", vmi, func(l handoff.Lease) bool {
			_, known := l.Outcome("start/1")
			return known
		})
		p.starts(t, p.a, starts)
	}
}

func backAgain(t *testing.T, p *pair) {
	stop := p.a.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	stop()
	p.step(t, vmi, handoff.Event{Kind: handoff.Suspect, Node: p.a.name}, func(*v1.VirtualMachineInstance) {})
	p.a.start(t)
	p.runsOn(t, vmi, p.a)
	eventually(t, "the domain to follow", func() bool { return p.a.state(vmi).Metadata.Epoch == 2 })
	p.starts(t, p.a, 1)
	p.finish(t, vmi)
}

func silentBeforeTheStart(t *testing.T, p *pair) {
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	for _, kind := range []handoff.Kind{handoff.Accept, handoff.Suspect} {
		p.step(t, vmi, handoff.Event{Kind: kind, Node: p.a.name}, func(*v1.VirtualMachineInstance) {})
	}
	p.a.start(t)
	p.runsOn(t, vmi, p.a)
	p.starts(t, p.a, 1)
}

func fencedAway(t *testing.T, p *pair) {
	stop := p.a.start(t)
	p.b.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	stop()
	p.fence(t, vmi, p.a)
	p.a.start(t)
	eventually(t, "the guest to be ended", func() bool { return p.a.empty(vmi) })
	p.offer(t, vmi, p.b)
	p.runsOn(t, vmi, p.b)
	p.finish(t, vmi)
}

func fencedAndArrived(t *testing.T, p *pair) {
	vmi := begun(t, p)
	see := p.b.Inject(memory.Fault{Call: "Get", Err: errors.New("not now")})
	domainfixture.Must(t, p.a.Migrate(t.Context(), domain.MigrationRequest{Domain: domain.Name(vmi.Namespace, vmi.Name), DestinationURI: p.b.uri()}))
	p.a.SetState(domain.Name(vmi.Namespace, vmi.Name), domain.StatusShutoff, domain.ReasonUnknown)
	p.fence(t, vmi, p.a)
	see()
	p.runsOn(t, vmi, p.b)
	p.starts(t, p.b, 0)
	p.a.start(t)
	p.finish(t, vmi)
}

func fencedAndNotCome(t *testing.T, p *pair) {
	vmi := begun(t, p)
	p.a.Vanish(domain.Name(vmi.Namespace, vmi.Name))
	p.fence(t, vmi, p.a)
	p.until(t, "the target's word", vmi, func(l handoff.Lease) bool { return l.State == handoff.Fenced && l.Target == "" })
	p.offer(t, vmi, p.b)
	p.runsOn(t, vmi, p.b)
	p.starts(t, p.b, 1)
	p.a.start(t)
	p.finish(t, vmi)
}

// longMove begins a migration that does not end by itself.
func longMove(t *testing.T, p *pair, edit func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	p.a.MigrationTakes(time.Hour)
	p.a.start(t)
	p.b.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	p.step(t, vmi, handoff.Event{Kind: handoff.Prepare, Node: p.b.name, Tag: "job"}, func(vmi *v1.VirtualMachineInstance) {
		askToMove(vmi, p.b, "job")
		edit(vmi)
	})
	eventually(t, "the move to be under way", func() bool { return p.b.state(vmi) != nil })
	return vmi
}

// staysOn waits until the migration has failed, with that reason.
func (p *pair) staysOn(t *testing.T, vmi *v1.VirtualMachineInstance, says string) {
	t.Helper()
	p.until(t, "the move to be given up", vmi, func(l handoff.Lease) bool {
		return l.State == handoff.Owned && l.Holder == p.a.name && reverted(l, "job") && p.a.running(vmi)
	})
	if m := vmi.Status.MigrationState; !m.Failed || !strings.Contains(m.FailureReason, says) {
		t.Errorf("migration state %+v, want a failure that says %q", m, says)
	}
	eventually(t, "the target to be tidy", func() bool { return p.b.empty(vmi) })
	p.starts(t, p.a, 1)
	p.finish(t, vmi)
}

func abortedByTheLease(t *testing.T, p *pair) {
	vmi := longMove(t, p, func(*v1.VirtualMachineInstance) {})
	p.step(t, vmi, handoff.Event{Kind: handoff.Abort, Tag: types.UID("job")}, func(*v1.VirtualMachineInstance) {})
	p.staysOn(t, vmi, "aborted")
}

func tooLong(t *testing.T, p *pair) {
	vmi := longMove(t, p, func(*v1.VirtualMachineInstance) {})
	p.change(t, vmi, func(vmi *v1.VirtualMachineInstance, l handoff.Lease) error {
		now := metav1.Now().Rfc3339Copy()
		long := metav1.NewTime(now.Add(-24 * time.Hour)) // more than its options allow
		l.Deadline, vmi.Status.MigrationState.StartTimestamp = &now, &long
		return handoff.Put(vmi, l)
	})
	p.staysOn(t, vmi, "its deadline")
}

func reportedOnce(t *testing.T, p *pair) {
	reported := &recorder{notes: make(chan string, 100)}
	p.a.edit = func(r *domainctrl.Reconciler) { r.Recorder = reported }
	_, r := p.a.agent(t)
	r.Caches = &domainctrl.Caches{Owned: empty{r.Caches.Owned}, Incoming: empty{r.Caches.Incoming}, Pods: r.Caches.Pods}
	vmi := p.create(t, "guest")
	spoil := func(raw string) {
		p.change(t, vmi, func(vmi *v1.VirtualMachineInstance, _ handoff.Lease) error {
			vmi.Annotations = map[string]string{handoff.Annotation: raw}
			return nil
		})
	}
	spoil("{")
	before := vmi.DeepCopy()
	for range 3 {
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(vmi)}); err == nil {
			t.Error("it made sense of a lease that has none")
		}
	}
	if len(reported.notes) != 1 {
		t.Fatalf("%d events, want once", len(reported.notes))
	}
	if note := <-reported.notes; !strings.Contains(note, handoff.Annotation) || !strings.Contains(note, "restore it") {
		t.Errorf("the event is %q", note)
	}
	if p.get(t, vmi); vmi.ResourceVersion != before.ResourceVersion {
		t.Error("the object was written, by a node that cannot know whose it is")
	}
}
