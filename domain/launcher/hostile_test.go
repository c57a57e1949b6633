// SPDX-License-Identifier: Apache-2.0

package launcher_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/domain/launcher/launcherpb"
)

// hostile is a launcher with scripted answers.
type hostile struct {
	launcherpb.UnimplementedLauncherServer
	claims launcher.Guest
	list   []*launcherpb.State
	get    *launcherpb.State
	getErr error
	info   *launcherpb.GuestInfoResponse
	flood  bool
	sent   atomic.Int64
}

func (h *hostile) Info(context.Context, *launcherpb.InfoRequest) (*launcherpb.InfoResponse, error) {
	return &launcherpb.InfoResponse{Versions: []uint32{1}, VmiNamespace: h.claims.Namespace, VmiName: h.claims.Name, VmiUid: string(h.claims.UID)}, nil
}

func (h *hostile) Watch(_ *launcherpb.WatchRequest, s grpc.ServerStreamingServer[launcherpb.Event]) error {
	for s.Send(&launcherpb.Event{Type: launcherpb.Event_TYPE_CHANGED, Domain: guest.Domain()}) == nil && h.flood {
		h.sent.Add(1)
	}
	<-s.Context().Done()
	return s.Context().Err()
}

func (h *hostile) List(context.Context, *launcherpb.ListRequest) (*launcherpb.ListResponse, error) {
	return &launcherpb.ListResponse{States: h.list}, nil
}

func (h *hostile) Get(ctx context.Context, _ *launcherpb.DomainRequest) (*launcherpb.State, error) {
	if h.getErr != nil {
		return nil, h.getErr
	}
	if h.get == nil { // it hangs
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.get, nil
}

func (h *hostile) GuestInfo(context.Context, *launcherpb.DomainRequest) (*launcherpb.GuestInfoResponse, error) {
	return h.info, nil
}

// hostile starts it in a Pod, which the API server has for a VMI if made is one.
func (k *kubelet) hostile(uid types.UID, made launcher.Guest, h *hostile) string {
	k.Helper()
	if made != (launcher.Guest{}) {
		k.makeFor(uid, made)
	}
	path := filepath.Join(k.sockets(string(uid)), launcher.ReadySocket)
	server := grpc.NewServer(grpc.MaxSendMsgSize(1 << 30))
	launcherpb.RegisterLauncherServer(server, h)
	l := listen(k, path)
	go func() { _ = server.Serve(l) }() // Stop ends it
	k.Cleanup(server.Stop)
	return path
}

var mine = launcher.Guest{Namespace: "tenant", Name: "mine", UID: "uid-mine"}

// TestConnector_PodNotOfController has Pods that pose as the launcher of another owner's VMI.
func TestConnector_PodNotOfController(t *testing.T) {
	for name, made := range map[string]launcher.Guest{"a Pod of a tenant": {}, "the launcher of another guest": mine} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, found first: %t", name, first), func(t *testing.T) {
				k := newKubelet(t)
				pose := func() { k.hostile("p0", made, &hostile{claims: guest}) }
				if first {
					pose()
				}
				if err := k.conn.Discover(t.Context()); err != nil {
					t.Fatal(err)
				}
				if _, joined := k.fleet.Member(guest.Domain()); joined {
					t.Fatal("it has the victim's domain")
				}
				k.run("p1", guest)
				if !first {
					pose()
				}
				if err := k.conn.Discover(t.Context()); err != nil {
					t.Errorf("the victim pays for it: %v", err)
				}
				h, err := k.conn.Connect(t.Context(), vmi("p0", "p1"), nil)
				if member, joined := k.fleet.Member(guest.Domain()); err != nil || !joined || member != h {
					t.Errorf("the victim's launcher: %v, %v", h, err)
				}
				if pod, err := k.conn.Pod(vmi("p1")); err != nil || pod != "p1" {
					t.Errorf("the victim's Pod is %s, %v", pod, err)
				}
				if _, joined := k.fleet.Member(mine.Domain()); joined {
					t.Error("one that lies about its guest is a member")
				}
			})
		}
	}
}

// marked is the definition of a domain with metadata.
func marked(t *testing.T, name string, m domain.Metadata) string {
	t.Helper()
	d := domaintest.Definition(t, name)
	if err := m.Put(d); err != nil {
		t.Fatal(err)
	}
	text, err := d.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestCalls_ResetByTheLauncher has streams reset, which gRPC's server does with those whose deadline has passed by its own timer.
func TestCalls_ResetByTheLauncher(t *testing.T) {
	k := newKubelet(t)
	h := &hostile{claims: guest}
	k.hostile("p1", guest, h)
	client, err := k.conn.Connect(t.Context(), vmi("p1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		code    codes.Code
		within  time.Duration
		want    error
		overdue bool
	}{
		"as its deadline passes":             {codes.Canceled, 50 * time.Millisecond, domain.ErrTimeout, true},
		"for its deadline, as it passes":     {codes.DeadlineExceeded, 50 * time.Millisecond, domain.ErrTimeout, true},
		"long before":                        {codes.Canceled, time.Hour, domain.ErrDisconnected, false},
		"for its deadline, long before that": {codes.DeadlineExceeded, time.Hour, domain.ErrTimeout, false},
	} {
		t.Run(name, func(t *testing.T) {
			h.getErr = status.Error(c.code, "stream terminated by RST_STREAM")
			ctx, cancel := context.WithTimeout(t.Context(), c.within)
			defer cancel()
			_, err := client.Get(ctx, guest.Domain())
			if !errors.Is(err, c.want) || errors.Is(err, context.DeadlineExceeded) != c.overdue {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

func TestConnector_ReportsOfOtherDomains(t *testing.T) {
	own := domain.Metadata{Namespace: guest.Namespace, Name: guest.Name, UID: guest.UID, Epoch: 1}
	k := newKubelet(t)
	h := &hostile{claims: guest}
	k.hostile("p1", guest, h)
	hv, err := k.conn.Connect(t.Context(), vmi("p1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		h.list = append(h.list, &launcherpb.State{Name: fmt.Sprintf("prod_victim-%d", i), Status: string(domain.StatusShutoff)})
	}
	h.list = append(h.list, &launcherpb.State{Name: guest.Domain(), Status: string(domain.StatusRunning)}, &launcherpb.State{Name: guest.Domain(), Status: string(domain.StatusShutoff)})
	if all, err := hv.List(t.Context()); err != nil || len(all) != 1 || all[0].Name != guest.Domain() || all[0].Status != domain.StatusRunning {
		t.Errorf("%d domains, %v; want its own", len(all), err)
	}
	for name, edit := range map[string]func(*domain.Metadata){
		"another UID":       func(m *domain.Metadata) { m.UID = "uid-victim" },
		"another name":      func(m *domain.Metadata) { m.Name = "victim" },
		"another namespace": func(m *domain.Metadata) { m.Namespace = "prod" },
	} {
		lie := own
		edit(&lie)
		h.get = &launcherpb.State{Name: guest.Domain(), Status: string(domain.StatusRunning), Definition: marked(t, guest.Domain(), lie)}
		if st, err := hv.Get(t.Context(), guest.Domain()); !errors.Is(err, domain.ErrDisconnected) || errors.Is(err, domain.ErrNotFound) || st.Metadata.UID != "" {
			t.Errorf("%s: %+v, %v; want nothing to be known", name, st.Metadata, err)
		}
	}
	h.get = &launcherpb.State{Name: guest.Domain(), Status: string(domain.StatusRunning), Definition: marked(t, guest.Domain(), own)}
	if st, err := hv.Get(t.Context(), guest.Domain()); err != nil || st.Metadata.UID != guest.UID {
		t.Errorf("its own: %+v, %v", st.Metadata, err)
	}
}

// TestClient_BoundsAnswers has answers that are small to send and large to decode.
func TestClient_BoundsAnswers(t *testing.T) {
	domainOf := func(inner string) string {
		return "<domain type='kvm'><name>" + guest.Domain() + "</name>" + inner + "</domain>"
	}
	own := domain.Metadata{Namespace: guest.Namespace, Name: guest.Name, UID: guest.UID}
	hidden := own
	hidden.LastApplied = domainOf("<devices>" + strings.Repeat("<disk/>", 70_000) + "</devices>")
	for name, definition := range map[string]string{
		"many elements":              domainOf("<devices>" + strings.Repeat("<disk/>", 300_000) + "</devices>"),
		"many attributes":            domainOf("<devices><disk " + strings.Repeat("a='' ", 300_000) + "/></devices>"),
		"deeply nested":              domainOf(strings.Repeat("<a>", 300_000)),
		"large":                      domainOf("<description>" + strings.Repeat("x", 15<<20) + "</description>"),
		"large in what was applied":  marked(t, guest.Domain(), hidden),
		"metadata that is not right": domainOf("<metadata><guest xmlns='" + domain.MetadataNamespace + "'><epoch>x</epoch></guest></metadata>"),
	} {
		t.Run(name, func(t *testing.T) {
			k := newKubelet(t)
			k.hostile("p1", guest, &hostile{claims: guest, get: &launcherpb.State{Name: guest.Domain(), Definition: definition}})
			hv, err := k.conn.Connect(t.Context(), vmi("p1"), nil)
			if err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err = hv.Get(t.Context(), guest.Domain())
			runtime.ReadMemStats(&after)
			if !errors.Is(err, domain.ErrDisconnected) || errors.Is(err, domain.ErrNotFound) {
				t.Errorf("%v; want nothing to be known of the guest", err)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 256<<20 {
				t.Errorf("%d MiB were needed to read %d KiB", got>>20, len(definition)>>10)
			}
			if len(fmt.Sprint(err)) > 8<<10 {
				t.Errorf("the error has %d bytes", len(fmt.Sprint(err)))
			}
		})
	}
	t.Run("many fields", func(t *testing.T) {
		k := newKubelet(t)
		h := &hostile{claims: guest, list: make([]*launcherpb.State, 1_500_000), info: &launcherpb.GuestInfoResponse{Hostname: strings.Repeat("x", 1<<20)}}
		for i := range h.list {
			h.list[i] = &launcherpb.State{}
		}
		for range 50_000 {
			h.info.Commands = append(h.info.Commands, "x")
		}
		k.hostile("p1", guest, h)
		hv, err := k.conn.Connect(t.Context(), vmi("p1"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if all, err := hv.List(t.Context()); err == nil {
			t.Errorf("%d domains were read", len(all))
		}
		info, err := hv.(domain.GuestAgent).GuestInfo(t.Context(), guest.Domain())
		if err != nil || len(info.Hostname) > 2<<10 || len(info.Commands) > 1<<10 {
			t.Errorf("a name of %d bytes and %d commands end up in the status, %v", len(info.Hostname), len(info.Commands), err)
		}
	})
}

func TestClient_EventRate(t *testing.T) {
	k := newKubelet(t)
	h := &hostile{claims: guest, flood: true}
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	c, err := launcher.Dial(t.Context(), k.hostile("p1", guest, h), launcher.Options{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	until := func(what string, ok func() bool) {
		t.Helper()
		if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) { return ok(), nil }); err != nil {
			t.Fatalf("waiting for %s: %v", what, err)
		}
	}
	until("the client to rest", clock.HasWaiters)
	clock.Step(time.Minute)
	until("it to go on, and to rest again", clock.HasWaiters)
	if err := c.Close(); err != nil { // also while it rests
		t.Error(err)
	}
}

func TestClient_UnresponsiveLauncher(t *testing.T) {
	k := newKubelet(t)
	k.hostile("p1", guest, &hostile{claims: guest})
	hv, err := k.conn.Connect(t.Context(), vmi("p1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := hv.Get(ctx, guest.Domain()); !errors.Is(err, domain.ErrTimeout) || errors.Is(err, domain.ErrNotFound) {
		t.Errorf("%v, want ErrTimeout", err)
	}
}
