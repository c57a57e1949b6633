// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/informer"
	"github.com/virtloom/virtloom/domain/memory"
)

// asked is a node whose agents are queried, in a bubble.
type asked struct {
	testing.TB
	*memory.Hypervisor
	agents *agents
	queue  workqueue.TypedRateLimitingInterface[reconcile.Request]
}

const asker, other = "ns_guest", "ns_other"

func withAgents(t *testing.T, test func(*asked)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		hv := memory.New("node")
		in := &informer.Informer{Hypervisor: hv}
		a := &asked{TB: t, Hypervisor: hv, agents: newAgents(hv, in)}
		a.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		ctx, cancel := context.WithCancel(t.Context())
		if err := a.agents.source().Start(ctx, a.queue); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for _, run := range []func(context.Context) error{in.Run, a.agents.Start} {
			all.Go(func() {
				if err := run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		for n, name := range []string{asker, other} {
			a.apply(domain.Operation{Verb: domain.Start, Domain: name, Definition: guestWithAgent(name, n)})
		}
		test(a)
		cancel()
		a.queue.ShutDown()
		all.Wait()
	})
}

func guestWithAgent(name string, n int) *libvirtxml.Domain {
	return &libvirtxml.Domain{
		Type: "qemu", Name: name, UUID: "5f0c6c9a-9d0d-4f5e-8f1e-00000000000" + string(rune('1'+n)),
		Devices: &libvirtxml.DomainDeviceList{Channels: []libvirtxml.DomainChannel{{
			Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{Mode: "bind"}},
			Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: convert.AgentChannel}},
		}}},
	}
}

func (a *asked) apply(op domain.Operation) {
	a.Helper()
	if err := a.Apply(a.Context(), op); err != nil {
		a.Fatal(err)
	}
}

// says is the last answer of the agent of that domain.
func (a *asked) says(name string) *guestagent.Info {
	a.Helper()
	st, err := a.Get(a.Context(), name)
	if err != nil {
		a.Fatal(err)
	}
	return a.agents.of(name, &st)
}

// wants checks the last answer of the agent, and the number of passes requested since the last
// check.
func (a *asked) wants(host string, passes int) {
	a.Helper()
	synctest.Wait()
	got := "nothing"
	if i := a.says(asker); i != nil {
		got = i.Hostname
	}
	if got != host {
		a.Errorf("the agent said %q, want %q", got, host)
	}
	if n := a.queue.Len(); n != passes {
		a.Errorf("%d passes were asked for, want %d", n, passes)
	}
	for range a.queue.Len() {
		req, _ := a.queue.Get()
		a.queue.Done(req)
	}
}

func TestAgents(t *testing.T) {
	hostname := func(host string) *guestagent.Info { return &guestagent.Info{Hostname: host} }
	for name, test := range map[string]func(*asked){
		"are asked at once, and then less and less": func(a *asked) {
			a.wants("nothing", 0)
			a.SetGuestInfo(asker, hostname("one"))
			a.wants("one", 1)
			var at []time.Duration
			began, before := time.Now(), a.Calls("GuestInfo")
			for range 400 {
				time.Sleep(time.Second)
				synctest.Wait()
				if n := a.Calls("GuestInfo"); n > before {
					before = n
					at = append(at, time.Since(began).Round(time.Second))
				}
			}
			s := time.Second
			if diff := cmp.Diff([]time.Duration{10 * s, 30 * s, 70 * s, 150 * s, 270 * s, 390 * s}, at); diff != "" {
				a.Errorf("asked at (-want +got):\n%s", diff)
			}
			a.wants("one", 0)
		},
		"ask for a pass only when it counts": func(a *asked) {
			a.SetGuestInfo(asker, hostname("one"))
			a.wants("one", 1)
			busy := hostname("one")
			busy.Users = []guestagent.User{{Name: "root"}}
			a.SetGuestInfo(asker, busy)
			time.Sleep(agentPauseLast)
			a.wants("one", 0)
			a.SetGuestInfo(asker, hostname("two"))
			time.Sleep(agentPauseLast)
			a.wants("two", 1)
		},
		"are forgotten when they go": func(a *asked) {
			a.SetGuestInfo(asker, hostname("one"))
			a.wants("one", 1)
			a.SetGuestInfo(asker, nil)
			a.wants("nothing", 0)
			before := a.Calls("GuestInfo")
			time.Sleep(time.Hour)
			if n := a.Calls("GuestInfo") - before; n > 0 {
				a.Errorf("asked %d times, though there is no agent", n)
			}
			a.SetGuestInfo(asker, hostname("two"))
			a.wants("two", 1)
		},
		"are left alone while the guest stands still": func(a *asked) {
			a.SetGuestInfo(asker, hostname("one"))
			a.wants("one", 1)
			a.apply(domain.Operation{Verb: domain.Suspend, Domain: asker})
			synctest.Wait()
			before := a.Calls("GuestInfo")
			time.Sleep(time.Hour)
			if n := a.Calls("GuestInfo") - before; n > 0 {
				a.Errorf("asked %d times, though the guest is paused", n)
			}
			a.wants("one", 0)
			a.apply(domain.Operation{Verb: domain.Resume, Domain: asker})
			synctest.Wait()
			if n := a.Calls("GuestInfo") - before; n != 1 {
				a.Errorf("asked %d times, want once at once", n)
			}
		},
		"of a guest that took another's name speak for that one only": func(a *asked) {
			a.SetGuestInfo(asker, hostname("one"))
			a.wants("one", 1)
			earlier, err := a.Get(a.Context(), asker)
			if err != nil {
				a.Fatal(err)
			}
			next := earlier
			next.Metadata.UID = "uid-2"
			if i := a.agents.of(asker, &next); i != nil {
				a.Errorf("the next guest has the answer of the previous one: %+v", i)
			}
			ctx, cancel := context.WithCancel(a.Context())
			defer cancel()
			var all sync.WaitGroup
			a.agents.follow(ctx, &all, informer.Change{Name: asker, Old: &earlier, New: &next})
			a.wants("nothing", 1)
			if i := a.agents.of(asker, &next); i == nil || i.Hostname != "one" {
				a.Errorf("the agent of the next guest was not asked: %+v", i)
			}
		},
		"that hang delay no other, and are heard when they are back": func(a *asked) {
			a.SetGuestInfo(asker, hostname("one"))
			a.wants("one", 1)
			free := a.Inject(memory.Fault{Call: "GuestInfo", Domain: asker, Hang: true})
			a.SetGuestInfo(asker, hostname("two"))
			time.Sleep(time.Minute)
			a.SetGuestInfo(other, hostname("other"))
			a.wants("one", 1)
			if i := a.says(other); i == nil || i.Hostname != "other" {
				a.Errorf("the other agent said %+v", i)
			}
			free()
			time.Sleep(agentPauseLast + agentDeadline)
			a.wants("two", 1)
		},
		"that fail are believed by what they said": func(a *asked) {
			a.SetGuestInfo(asker, hostname("one"))
			a.wants("one", 1)
			a.Inject(memory.Fault{Call: "GuestInfo", Err: errors.New("not now")})
			time.Sleep(time.Hour)
			a.wants("one", 0)
		},
		"are asked at once after a request": func(a *asked) {
			a.SetGuestInfo(asker, hostname("one"))
			time.Sleep(time.Hour)
			a.wants("one", 1)
			if err := a.Freeze(a.Context(), asker); err != nil {
				a.Fatal(err)
			}
			a.agents.again(asker)
			a.wants("one", 1)
			if !a.says(asker).Frozen {
				a.Error("that the guest is frozen is not known")
			}
			a.agents.again("ns_nobody")
		},
	} {
		t.Run(name, func(t *testing.T) { withAgents(t, test) })
	}
}

// mute is a hypervisor without support for agents.
type mute struct{ domain.Hypervisor }

func TestAgents_HypervisorWithoutAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hv := mute{memory.New("node")}
		a := newAgents(hv, &informer.Informer{Hypervisor: hv})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.Start(ctx) }()
		if i := a.of(asker, &domain.State{Name: asker}); i != nil {
			t.Errorf("known: %+v", i)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		r := &Reconciler{Hypervisor: hv}
		if err := (actor{r}).agentTask(t.Context(), asker, action.Action{Verb: action.Freeze}); !errors.Is(err, domain.ErrUnsupported) {
			t.Errorf("freeze: %v, want ErrUnsupported", err)
		}
	})
}
