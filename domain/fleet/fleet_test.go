// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/domain/fleet"
	"github.com/virtloom/virtloom/domain/memory"
)

// pods is a fleet whose members join when their domains are started.
type pods struct {
	*fleet.Fleet
	t       testing.TB
	members []*memory.Hypervisor
}

// member of a domain: there are two, and one of them is for second domains of cases.
func (p *pods) member(name string) *memory.Hypervisor {
	if strings.HasSuffix(name, "-b") {
		return p.members[1]
	}
	return p.members[0]
}

// Apply makes a member join before its domain is started.
func (p *pods) Apply(ctx context.Context, op domain.Operation) error {
	if _, there := p.Member(op.Domain); op.Verb == domain.Start && op.Domain != "" && !there && ctx.Err() == nil {
		p.Join(ctx, op.Domain, p.member(op.Domain))
	}
	return p.Fleet.Apply(ctx, op)
}

func TestConformance_Fleet(t *testing.T) {
	domaintest.Conformance(t, func(t testing.TB) domaintest.Driver {
		node, there := memory.New("node"), memory.New("there")
		p := &pods{Fleet: &fleet.Fleet{Node: node}, t: t, members: []*memory.Hypervisor{memory.New("first"), memory.New("second")}}
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		all := append([]*memory.Hypervisor{node}, p.members...)
		for _, h := range all {
			h.Connect("memory://there", there)
		}
		d := domaintest.DriverOf(p.members[0])
		d.Hypervisor, d.Peer, d.PeerURI = p, there, "memory://there"
		d.Crash = func(_ testing.TB, name string) { p.member(name).Crash(name) }
		d.Disconnect = func(testing.TB) {
			for _, h := range all {
				h.Disconnect()
			}
		}
		d.Reconnect = func(testing.TB) {
			for _, h := range all {
				h.Reconnect()
			}
		}
		d.Cut = func(testing.TB) { p.members[0].Link("memory://there").Cut() }
		d.Mend = func(testing.TB) { p.members[0].Link("memory://there").Restore() }
		return d
	})
}

// fleetOf is a fleet of members that run a domain each, with the member's name.
func fleetOf(t *testing.T, names ...string) (*fleet.Fleet, map[string]*memory.Hypervisor) {
	t.Helper()
	f, members := &fleet.Fleet{Clock: clocktesting.NewFakeClock(time.Unix(1000, 0))}, map[string]*memory.Hypervisor{}
	t.Cleanup(func() { _ = f.Close() })
	for _, name := range names {
		h := memory.New(name)
		members[name] = h
		f.Join(t.Context(), name, h)
		if err := f.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: name, Definition: domaintest.Definition(t, name)}); err != nil {
			t.Fatal(err)
		}
	}
	return f, members
}

// seen is a list in short.
func seen(t *testing.T, f *fleet.Fleet) []string {
	t.Helper()
	all, err := f.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, st := range all {
		s := st.Name + " " + string(st.Status)
		if !st.Stale.IsZero() {
			s += " stale"
		}
		out = append(out, s)
	}
	return out
}

func TestFleet_UnresponsiveIsNotGone(t *testing.T) {
	f, members := fleetOf(t, "a", "b")
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"both answer", func() {}, []string{"a Running", "b Running"}},
		{"one is lost: what was known", members["b"].Disconnect, []string{"a Running", "b Running stale"}},
		{"it is back", members["b"].Reconnect, []string{"a Running", "b Running"}},
		{"its guest ended", func() { members["b"].Crash("b") }, []string{"a Running", "b Shutoff"}},
		{"a member that has never answered may run its guest", func() {
			h := memory.New("c")
			h.Disconnect()
			f.Join(t.Context(), "c", h)
		}, []string{"a Running", "b Shutoff", "c NoState stale"}},
		{"members leave", func() { f.Leave("b"); f.Leave("c"); f.Leave("nobody") }, []string{"a Running"}},
	} {
		step.do()
		if got := seen(t, f); !slices.Equal(got, step.want) {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
	}
	members["a"].Disconnect()
	if _, err := f.List(t.Context()); !errors.Is(err, domain.ErrDisconnected) {
		t.Errorf("nobody answers: %v, want ErrDisconnected", err)
	}
}

func TestFleet_WaitsOnceForUnresponsiveMember(t *testing.T) {
	f, members := fleetOf(t, "a", "b")
	clock := f.Clock.(*clocktesting.FakeClock)
	free := members["b"].Inject(memory.Fault{Call: "List", Hang: true})
	listed := make(chan []string)
	go func() { listed <- seen(t, f) }()
	for members["b"].Calls("List") == 0 || !clock.HasWaiters() {
		clock.Step(0)
	}
	for got := []string(nil); got == nil; {
		clock.Step(fleet.DefaultPatience)
		select {
		case got = <-listed:
			if want := []string{"a Running", "b NoState stale"}; !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		default:
		}
	}
	// Nothing advances the clock now.
	if got, want := seen(t, f), []string{"a Running", "b NoState stale"}; !slices.Equal(got, want) {
		t.Errorf("again: %q, want %q", got, want)
	}
	if n := members["b"].Calls("List"); n != 1 {
		t.Errorf("the silent member was asked %d times", n)
	}
	events, err := f.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if e := <-events; e.Kind != domain.Resync {
		t.Fatalf("event is %+v", e)
	}
	free()
	if e := <-events; e.Domain != "b" {
		t.Errorf("event is %+v, want one about b", e)
	}
	if got, want := seen(t, f), []string{"a Running", "b Running"}; !slices.Equal(got, want) {
		t.Errorf("afterwards: %q, want %q", got, want)
	}
}

func TestFleet_MembersReportOwnDomainsOnly(t *testing.T) {
	f, members := fleetOf(t, "a", "b")
	liar := members["b"]
	for _, name := range []string{"a", "other"} {
		if err := liar.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: name, Definition: domaintest.Definition(t, name)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := liar.Apply(t.Context(), domain.Operation{Verb: domain.Destroy, Domain: "a"}); err != nil {
		t.Fatal(err)
	}
	if got, want := seen(t, f), []string{"a Running", "b Running"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if _, err := f.Get(t.Context(), "other"); !errors.Is(err, domain.ErrNotFound) {
		t.Errorf("get: %v, want ErrNotFound", err)
	}
	stats, err := f.Stats(t.Context())
	if err != nil || len(stats) != 2 || stats[0].Name != "a" || stats[1].Name != "b" {
		t.Errorf("stats are %+v, %v", stats, err)
	}
}

// plain is a hypervisor without abilities.
type plain struct{ domain.Hypervisor }

func TestFleet_WithoutMember(t *testing.T) {
	f := &fleet.Fleet{}
	defer f.Close()
	ctx := t.Context()
	f.Join(ctx, "plain", plain{memory.New("plain")})
	host := func() error { _, err := f.Host(ctx); return err }
	model := func() error { _, err := f.MemoryModel(ctx, "x86_64"); return err }
	sockets := func(name string) error { _, err := f.MigrationSockets(ctx, name); return err }
	for name, c := range map[string]struct{ err, want error }{
		"start waits for its launcher":         {f.Apply(ctx, domain.Operation{Verb: domain.Start, Domain: "x", Definition: domaintest.Definition(t, "x")}), domain.ErrNotReady},
		"destroy has nothing to do":            {f.Apply(ctx, domain.Operation{Verb: domain.Destroy, Domain: "x"}), nil},
		"undefine has nothing to do":           {f.Apply(ctx, domain.Operation{Verb: domain.Undefine, Domain: "x"}), nil},
		"suspend finds nobody":                 {f.Apply(ctx, domain.Operation{Verb: domain.Suspend, Domain: "x"}), domain.ErrNotFound},
		"migrate finds nobody":                 {f.Migrate(ctx, domain.MigrationRequest{Domain: "x"}), domain.ErrNotFound},
		"a target waits for its launcher":      {sockets("x"), domain.ErrNotReady},
		"a member that has no sockets":         {sockets("plain"), domain.ErrUnsupported},
		"a member that cannot migrate":         {f.Migrate(ctx, domain.MigrationRequest{Domain: "plain"}), domain.ErrUnsupported},
		"a member that cannot be tuned":        {f.SetMaxDowntime(ctx, "plain", time.Second), domain.ErrUnsupported},
		"a member without bandwidth":           {f.SetMigrationBandwidth(ctx, "plain", 1), domain.ErrUnsupported},
		"a member without post-copy":           {f.SwitchToPostCopy(ctx, "plain"), domain.ErrUnsupported},
		"a member describes the node":          {host(), nil},
		"no member knows a model":              {model(), domain.ErrUnsupported},
		"operations are checked before routed": {f.Apply(ctx, domain.Operation{Verb: domain.Start}), domain.ErrInvalid},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
	f.Leave("plain")
	if err := host(); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("nobody describes the node: %v, want ErrNotReady", err)
	}
}

func TestFleet_LostMemberEvent(t *testing.T) {
	f, members := fleetOf(t, "a", "b")
	events, err := f.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	until := func(what string, ok func(domain.Event) bool) {
		t.Helper()
		for e := range events {
			if ok(e) {
				return
			}
			if e.Kind == domain.Lost {
				break
			}
		}
		t.Fatalf("never came: %s", what)
	}
	why := func(name, why string) func(domain.Event) bool {
		return func(e domain.Event) bool { return e.Kind == domain.Changed && e.Domain == name && e.Why == why }
	}
	until("the first", func(e domain.Event) bool { return e.Kind == domain.Resync })
	// Events of a member arrive once it has emitted one itself.
	for name, h := range members {
		for heard, verb := false, domain.Suspend; !heard; {
			if err := h.Apply(t.Context(), domain.Operation{Verb: verb, Domain: name}); err != nil {
				t.Fatal(err)
			}
			if verb = domain.Suspend; h.Calls(string(domain.Suspend)) > h.Calls(string(domain.Resume)) {
				verb = domain.Resume
			}
			select {
			case e := <-events:
				heard = why(name, string(domain.StatusPaused))(e) || why(name, string(domain.StatusRunning))(e)
			default:
			}
		}
	}
	members["b"].Disconnect()
	until("loss of b", why("b", "Lost"))
	members["a"].Disconnect()
	until("loss of all", func(e domain.Event) bool { return e.Kind == domain.Lost })
	until("loss of a", why("a", "Lost"))
	members["b"].Reconnect()
	until("return of the first", func(e domain.Event) bool { return e.Kind == domain.Resync })
	members["a"].Reconnect()
	until("return of the second", why("a", string(domain.Resync)))
}

// host is a hypervisor with a description of its own.
type host struct {
	*memory.Hypervisor
	is  domain.Host
	err error
}

func (h *host) Host(context.Context) (domain.Host, error) { return h.is, h.err }

func TestHostOf_Member(t *testing.T) {
	node := &host{Hypervisor: memory.New("node"), is: domain.Host{Name: "node", KVM: true}}
	inPod := &host{Hypervisor: memory.New("pod"), is: domain.Host{Name: "pod", KVMReason: "no device"}}
	f := &fleet.Fleet{Node: node}
	t.Cleanup(func() { _ = f.Close() })
	if h, err := f.HostOf(t.Context(), "a"); !errors.Is(err, domain.ErrNoHypervisor) || !errors.Is(err, domain.ErrNotFound) {
		t.Errorf("before its member has joined: %+v, %v", h, err)
	}
	f.Join(t.Context(), "a", inPod)
	if h, err := f.HostOf(t.Context(), "a"); err != nil || h.Name != "pod" || h.KVM {
		t.Errorf("%+v, %v", h, err)
	}
	inPod.is.KVM = true // it was given the device
	if h, err := f.HostOf(t.Context(), "a"); err != nil || !h.KVM {
		t.Errorf("an old answer: %+v, %v", h, err)
	}
	if h, err := f.Host(t.Context()); err != nil || h.Name != "node" {
		t.Errorf("that of the node: %+v, %v", h, err)
	}
	inPod.err = domain.ErrDisconnected
	if h, err := f.HostOf(t.Context(), "a"); !errors.Is(err, domain.ErrDisconnected) {
		t.Errorf("the node's in place of its own: %+v, %v", h, err)
	}
}
