// SPDX-License-Identifier: Apache-2.0

package launcher_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/domain/launcher/launcherpb"
	"github.com/virtloom/virtloom/domain/memory"
)

// started is a client whose guest runs, and the hypervisor behind it.
func started(t *testing.T) (*launcher.Client, *memory.Hypervisor, *pod) {
	t.Helper()
	h := memory.New("pod")
	p := newPod(t, h)
	c := dial(t, p)
	if err := c.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: guest.Domain(), Definition: domaintest.Definition(t, guest.Domain())}); err != nil {
		t.Fatal(err)
	}
	return c, h, p
}

// raw is a connection without a Client.
func raw(t *testing.T, p *pod) launcherpb.LauncherClient {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+p.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return launcherpb.NewLauncherClient(conn)
}

func TestVersion_Agreed(t *testing.T) {
	_, _, p := started(t)
	api := raw(t, p)
	for name, c := range map[string]struct {
		theirs []uint32
		want   uint32 // zero for an error
	}{
		"the same":         {[]uint32{1}, 1},
		"the highest":      {[]uint32{9, 1}, 1},
		"none in common":   {[]uint32{7, 8}, 0},
		"no version known": {nil, 0},
	} {
		info, err := api.Info(t.Context(), &launcherpb.InfoRequest{Versions: c.theirs})
		if c.want != 0 && (err != nil || info.Version != c.want || info.VmiUid != string(guest.UID) || info.Launcher != "test") {
			t.Errorf("%s: %v, %v, want version %d", name, info, err, c.want)
		}
		if c.want == 0 && (status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "launcher supports 1")) {
			t.Errorf("%s: %v, want an error that names the versions", name, err)
		}
	}
	if _, err := api.List(t.Context(), &launcherpb.ListRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a call without a version: %v", err)
	}
}

// futureLauncher speaks an unknown version.
type futureLauncher struct {
	launcherpb.UnimplementedLauncherServer
}

func (futureLauncher) Info(context.Context, *launcherpb.InfoRequest) (*launcherpb.InfoResponse, error) {
	return &launcherpb.InfoResponse{Version: 9, Versions: []uint32{9}}, nil
}

func TestVersion_Unknown(t *testing.T) {
	path := filepath.Join(t.TempDir(), launcher.ReadySocket)
	s := grpc.NewServer()
	launcherpb.RegisterLauncherServer(s, futureLauncher{})
	l := listen(t, path)
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	_, err := launcher.Dial(t.Context(), path, launcher.Options{})
	if !errors.Is(err, domain.ErrUnsupported) || !strings.Contains(err.Error(), "launcher supports 9") {
		t.Errorf("%v, want ErrUnsupported that names the versions", err)
	}
}

func TestErrors_KeepText(t *testing.T) {
	c, h, _ := started(t)
	for _, want := range []error{
		domain.ErrNotFound, domain.ErrDisconnected, domain.ErrUnsupported, domain.ErrInvalidState, domain.ErrInvalid, domain.ErrTimeout,
		domain.ErrNoAgent, domain.ErrMigrationAborted, domain.ErrNotReady, domain.ErrMigrationUnsafe, nil,
	} {
		sent := errors.Join(errors.New("disk \"x\": 100 % broken\nsecond line"), want)
		remove := h.Inject(memory.Fault{Call: string(domain.Suspend), Err: sent})
		err := c.Apply(t.Context(), domain.Operation{Verb: domain.Suspend, Domain: guest.Domain()})
		remove()
		if err == nil || want != nil && !errors.Is(err, want) || !strings.Contains(err.Error(), sent.Error()) {
			t.Errorf("%v became %v", sent, err)
		}
		for _, other := range []error{domain.ErrNotFound, domain.ErrInvalid} {
			if !errors.Is(want, other) && errors.Is(err, other) {
				t.Errorf("%v became %v as well", sent, other)
			}
		}
	}
}

func TestCalls_Deadline(t *testing.T) {
	c, h, p := started(t)
	suspend := domain.Operation{Verb: domain.Suspend, Domain: guest.Domain()}
	h.Inject(memory.Fault{Call: string(domain.Suspend), Hang: true})
	t.Run("by the caller's deadline", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := c.Apply(ctx, suspend); !errors.Is(err, domain.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want ErrTimeout", err)
		}
	})
	t.Run("by the launcher's limit", func(t *testing.T) {
		short := newPodOf(t, t.TempDir(), func() *launcher.Server {
			return &launcher.Server{Hypervisor: h, Guest: guest, Longest: 50 * time.Millisecond}
		})
		if err := dial(t, short).Apply(t.Context(), suspend); !errors.Is(err, domain.ErrTimeout) {
			t.Errorf("%v, want ErrTimeout", err)
		}
	})
	t.Run("by the launcher's end", func(t *testing.T) {
		ended := make(chan error, 1)
		before := h.Calls(string(domain.Suspend))
		go func() { ended <- c.Apply(t.Context(), suspend) }()
		for h.Calls(string(domain.Suspend)) == before {
			if t.Context().Err() != nil {
				t.Fatal("the call never arrived")
			}
		}
		p.kill()
		if err := <-ended; !errors.Is(err, domain.ErrDisconnected) {
			t.Errorf("%v, want ErrDisconnected", err)
		}
	})
}

func TestCalls_OversizedMessage(t *testing.T) {
	c, h, _ := started(t)
	def := domaintest.Definition(t, guest.Domain())
	def.Description = strings.Repeat("x", 16<<20+1)
	err := c.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: def.Name, Definition: def})
	if !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
	if n := h.Calls(string(domain.Start)); n != 1 {
		t.Errorf("it arrived: %d starts", n)
	}
	if _, err := c.Get(t.Context(), guest.Domain()); err != nil {
		t.Errorf("the channel is broken: %v", err)
	}
}

func TestServer_RefusesUnknownElements(t *testing.T) {
	_, h, p := started(t)
	before := h.Calls(string(domain.AttachDevice))
	disk, err := (&libvirtxml.DomainDisk{Device: "disk", Alias: alias("x")}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	newer := dial(t, p)
	for name, op := range map[string]domain.Operation{
		"an element":          {Verb: domain.AttachDevice, Device: document(strings.Replace(disk, "</disk>", "<hologram depth='3'/></disk>", 1))},
		"an attribute":        {Verb: domain.AttachDevice, Device: document(strings.Replace(disk, "<disk ", "<disk hue='blue' ", 1))},
		"a kind of device":    {Verb: domain.AttachDevice, Device: document("<teleporter/>")},
		"a kind of operation": {Verb: domain.AttachDevice, Device: document("")},
	} {
		op.Domain = guest.Domain()
		err := newer.Apply(t.Context(), op)
		if want := domain.ErrUnsupported; name != "a kind of operation" && !errors.Is(err, want) || err == nil {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	if n := h.Calls(string(domain.AttachDevice)); n != before {
		t.Errorf("%d devices were attached", n-before)
	}
}

// document is a device that only exists as text.
type document string

func (d document) Marshal() (string, error) { return string(d), nil }
func (d document) Unmarshal(string) error   { return errors.New("it is only text") }

// TestReadDefinition_Complete keeps readAll from refusing valid definitions.
func TestReadDefinition_Complete(t *testing.T) {
	files, err := filepath.Glob("../convert/testdata/*.xml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no definitions: %v", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		def := &libvirtxml.Domain{}
		if err := def.Unmarshal(string(text)); err != nil {
			t.Fatal(err)
		}
		def.Type = "qemu" // the type that memory accepts
		c := dial(t, newPod(t, memory.New("pod")))
		if err := c.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: def.Name, Definition: def}); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

// TestMigrate_OneShot breaks the channel during a migration.
func TestMigrate_OneShot(t *testing.T) {
	c, h, p := started(t)
	there := memory.New("there")
	h.Connect("memory://there", there)
	h.MigrationTakes(time.Hour)
	req := domain.MigrationRequest{Migration: "m1", Domain: guest.Domain(), DestinationURI: "memory://there"}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var reported []domain.Progress
	begun, first := make(chan struct{}), make(chan error, 1)
	go func() {
		first <- c.MigrateTelling(ctx, req, time.Millisecond, func(p domain.Progress) {
			if reported = append(reported, p); len(reported) == 1 {
				close(begun)
			}
		})
	}()
	<-begun
	p.mu.Lock()
	cut := p.cutOnly
	p.mu.Unlock()
	cut()
	if err := <-first; !errors.Is(err, domain.ErrDisconnected) {
		t.Fatalf("a channel that was cut: %v, want ErrDisconnected", err)
	}
	if len(reported) == 0 || !reported[0].Active {
		t.Errorf("progress was %+v", reported)
	}
	again := dial(t, p)
	if progress, err := again.MigrationProgress(t.Context(), guest.Domain()); err != nil || !progress.Active {
		t.Fatalf("the migration did not go on: %+v, %v", progress, err)
	}
	joined, joins := make(chan error, 1), make(chan domain.Progress, 1)
	go func() {
		joined <- again.MigrateTelling(ctx, req, time.Millisecond, func(p domain.Progress) {
			select {
			case joins <- p:
			default:
			}
		})
	}()
	<-joins
	// An unknown id ends nothing; the end of a call that joined does.
	other := req
	other.Migration = "m2"
	if err := again.Migrate(t.Context(), other); !errors.Is(err, domain.ErrInvalidState) {
		t.Errorf("M5: another migration beside it: %v, want ErrInvalidState", err)
	}
	cancel()
	if err := <-joined; !errors.Is(err, domain.ErrMigrationAborted) {
		t.Errorf("joined: %v, want ErrMigrationAborted", err)
	}
	h.MigrationTakes(0)
	if err := again.Migrate(t.Context(), req); !errors.Is(err, domain.ErrMigrationAborted) {
		t.Errorf("M5: the same migration, finished: %v, want how it ended", err)
	}
	if n := h.Calls("Migrate"); n != 2 {
		t.Errorf("%d migrations were begun, want those of two ids", n)
	}
	other.Migration = "m3"
	if err := again.Migrate(t.Context(), other); err != nil {
		t.Errorf("a new one: %v", err)
	}
	if err := again.Migrate(t.Context(), other); err != nil {
		t.Errorf("reported again: %v", err)
	}
}
