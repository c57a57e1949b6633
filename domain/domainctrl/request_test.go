// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

func TestRequests(t *testing.T) {
	c := newCluster(t)
	for name, test := range map[string]func(*testing.T, *pair){
		"a guest is paused and goes on as its user wishes":       pausedByRequest,
		"a guest that hangs holds up those who ask, for a while": hungRequest,
		"a guest that was taken from the node is not served":     takenRequest,
		"nothing is stored where nothing has changed":            steady,
	} {
		t.Run(name, func(t *testing.T) { test(t, newPair(t, c)) })
	}
}

// asks carries out a request on the agent of the node.
func asks(t *testing.T, r *domainctrl.Reconciler, vmi *v1.VirtualMachineInstance, verb plan.RequestVerb, want error) {
	t.Helper()
	if err := r.Request(t.Context(), client.ObjectKeyFromObject(vmi), plan.Request{Verb: verb}); !errors.Is(err, want) {
		t.Fatalf("%s: %v, want %v", verb, err, want)
	}
}

// reconciler starts an agent of the node and returns it too.
func (n *node) reconciler(t *testing.T, edit func(*domainctrl.Reconciler)) (r *domainctrl.Reconciler, stop func()) {
	t.Helper()
	n.edit = func(made *domainctrl.Reconciler) {
		r = made
		if edit != nil {
			edit(r)
		}
	}
	stop = n.start(t)
	n.edit = nil
	return r, stop
}

func pausedByRequest(t *testing.T, p *pair) {
	a, stop := p.a.reconciler(t, nil)
	b, _ := p.b.reconciler(t, nil)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	paused := func(want bool) {
		t.Helper()
		p.until(t, "the object to say so", vmi, func(handoff.Lease) bool {
			for _, c := range vmi.Status.Conditions {
				if c.Type == v1.VirtualMachineInstancePaused {
					return want && c.Reason == status.ReasonPausedByUser
				}
			}
			return !want
		})
	}
	asks(t, b, vmi, plan.RequestPause, domain.ErrNotFound)
	asks(t, a, vmi, "dance", domain.ErrInvalid)
	asks(t, a, vmi, plan.RequestFreeze, domain.ErrNoAgent)
	asks(t, a, vmi, plan.RequestPause, nil)
	if st := p.a.state(vmi); st.Status != domain.StatusPaused || !st.Metadata.Paused {
		t.Fatalf("when the request is done the guest is %+v", st)
	}
	paused(true)
	stop()
	a, _ = p.a.reconciler(t, nil)
	eventually(t, "the agent to serve again", func() bool {
		return a.Request(t.Context(), client.ObjectKeyFromObject(vmi), plan.Request{Verb: plan.RequestUnpause}) == nil
	})
	if !p.a.running(vmi) {
		t.Fatalf("when the request is done the guest is %+v", p.a.state(vmi))
	}
	paused(false)
	p.finish(t, vmi)
	asks(t, a, vmi, plan.RequestPause, domain.ErrNotFound)
}

func hungRequest(t *testing.T, p *pair) {
	a, _ := p.a.reconciler(t, nil)
	vmi, other := p.create(t, "guest"), p.create(t, "other")
	for _, g := range []*v1.VirtualMachineInstance{vmi, other} {
		p.offer(t, g, p.a)
		p.runsOn(t, g, p.a)
	}
	free := p.a.Inject(memory.Fault{Call: "Get", Domain: domain.Name(vmi.Namespace, vmi.Name), Hang: true})
	ctx, cancel := context.WithTimeout(t.Context(), 10*interval)
	defer cancel()
	err := a.Request(ctx, client.ObjectKeyFromObject(vmi), plan.Request{Verb: plan.RequestPause})
	if !errors.Is(err, domain.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
	asks(t, a, other, plan.RequestPause, nil)
	free()
	// It may have begun: a repeated request is harmless.
	asks(t, a, vmi, plan.RequestUnpause, nil)
	eventually(t, "the guest to run", func() bool { return p.a.running(vmi) })
}

func takenRequest(t *testing.T, p *pair) {
	a, _ := p.a.reconciler(t, nil)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	p.change(t, vmi, func(vmi *v1.VirtualMachineInstance, l handoff.Lease) error {
		return handoff.Put(vmi, handoff.Lease{State: handoff.Owned, Epoch: l.Epoch + 1, Holder: p.b.name})
	})
	asks(t, a, vmi, plan.RequestPause, domain.ErrNotFound)
	if st := p.a.state(vmi); st != nil && st.Status == domain.StatusPaused {
		t.Error("the guest of another was paused")
	}
}

func steady(t *testing.T, p *pair) {
	reported := guestagent.Info{
		AgentVersion: "8.0.0", Commands: []string{"guest-ping"}, Hostname: "guest", OS: guestagent.OS{Name: "Debian"},
		Interfaces: []guestagent.Interface{{Name: "eth0", MAC: "02:00:00:00:00:07", IPs: []string{"192.0.2.7"}}},
	}
	p.a.SetAgents(&reported)
	var writes atomic.Int64
	var version atomic.Value
	a, _ := p.a.reconciler(t, func(r *domainctrl.Reconciler) {
		r.WorkerWait = time.Minute // so that a pass is over when it returns
		r.Client = afterPatch{r.Client, func(vmi *v1.VirtualMachineInstance) {
			if version.Swap(vmi.ResourceVersion) != vmi.ResourceVersion { // else it reported what was stored already
				writes.Add(1)
			}
		}}
	})
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.until(t, "the agent to report the guest", vmi, func(handoff.Lease) bool {
		return vmi.Status.Phase == v1.Running && vmi.Status.GuestOSInfo.Name == "Debian" && len(vmi.Status.Interfaces) > 0
	})
	eventually(t, "the writes to end", func() bool {
		var cached v1.VirtualMachineInstance
		before, key := writes.Load(), client.ObjectKeyFromObject(vmi)
		domainfixture.Must(t, p.Get(t.Context(), key, vmi))
		domainfixture.Must(t, a.Client.Get(t.Context(), key, &cached))
		for range 10 {
			pass(t, a, vmi)
		}
		// A pass with a cache that is behind its own writes does nothing.
		return writes.Load() == before && cached.ResourceVersion == vmi.ResourceVersion
	})
	before := writes.Load()
	for n := range 50 {
		busy := reported
		busy.Users = []guestagent.User{{Name: "root", LoginTime: time.Unix(int64(n), 0)}}
		busy.Filesystems = []guestagent.Filesystem{{Name: "vda1", UsedBytes: uint64(n)}}
		p.a.SetGuestInfo(domain.Name(vmi.Namespace, vmi.Name), &busy)
		pass(t, a, vmi)
	}
	if n := writes.Load() - before; n > 0 {
		t.Errorf("%d writes although nothing has changed", n)
	}
}
