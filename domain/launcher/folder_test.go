// SPDX-License-Identifier: Apache-2.0

package launcher_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/domain/memory"
)

// socketed is a hypervisor with a folder for sockets of migrations.
type socketed struct {
	*memory.Hypervisor
	at domain.Sockets
}

// MigrationSockets implements domain.SocketMigrator.
func (s socketed) MigrationSockets(context.Context, string) (domain.Sockets, error) { return s.at, nil }

func TestMigrationSockets_SeenFromOutside(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"migration/deep", "libvirt/deep/sock"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/tmp", filepath.Join(dir, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	// The launcher sees its folder at another path.
	inside := "/run/launcher"
	for name, c := range map[string]struct {
		at   domain.Sockets
		want error
	}{
		"in the shared folder": {at: domain.Sockets{Control: inside + "/libvirt", Inside: inside + "/migration"}},
		"outside of it":        {at: domain.Sockets{Control: "/run/libvirt/libvirt-sock", Inside: inside + "/migration"}, want: domain.ErrInvalid},
		"above it":             {at: domain.Sockets{Control: inside + "/../x", Inside: inside + "/migration"}, want: domain.ErrInvalid},
		"a socket too deep":    {at: domain.Sockets{Control: inside + "/libvirt/deep/sock", Inside: inside + "/migration"}, want: domain.ErrInvalid},
		"a folder too deep":    {at: domain.Sockets{Control: inside + "/libvirt", Inside: inside + "/migration/deep"}, want: domain.ErrInvalid},
		"a symbolic link":      {at: domain.Sockets{Control: inside + "/libvirt", Inside: inside + "/elsewhere"}, want: domain.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPodOf(t, dir, func() *launcher.Server {
				return &launcher.Server{Hypervisor: socketed{memory.New("pod"), c.at}, Guest: guest, Shared: inside}
			})
			s, err := dial(t, p).MigrationSockets(t.Context(), guest.Domain())
			if c.want != nil {
				if !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s.Inside != c.at.Inside {
				t.Errorf("inside is %s", s.Inside)
			}
			if err := os.WriteFile(filepath.Join(s.Outside, "seen"), nil, 0o600); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(dir, "migration", "seen")); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFinalizeMigration_RefreshesLinks(t *testing.T) {
	c, h, _ := started(t)
	nic := &libvirtxml.DomainInterface{
		Alias: alias("net"), MAC: &libvirtxml.DomainInterfaceMAC{Address: "02:00:00:00:00:02"},
		Source: &libvirtxml.DomainInterfaceSource{Bridge: &libvirtxml.DomainInterfaceSourceBridge{Bridge: "br0"}},
	}
	if err := c.Apply(t.Context(), domain.Operation{Verb: domain.AttachDevice, Domain: guest.Domain(), Device: nic}); err != nil {
		t.Fatal(err)
	}
	// Without an agent the clock is not set; that is no failure.
	if err := c.FinalizeMigration(t.Context(), guest.Domain(), time.Unix(5, 0), []string{nic.Alias.Name}); err != nil {
		t.Fatal(err)
	}
	if n := h.Calls(string(domain.UpdateDevice)); n != 2 {
		t.Errorf("%d updates, want the link down and up", n)
	}
	st, err := c.Get(t.Context(), guest.Domain())
	if err != nil || len(st.Domain.Devices.Interfaces) != 1 || st.Domain.Devices.Interfaces[0].Link.State != "up" {
		t.Errorf("%+v, %v, want a link that is up", st.Domain.Devices, err)
	}
	if err := c.FinalizeMigration(t.Context(), guest.Domain(), time.Time{}, []string{"ua-nobody"}); !errors.Is(err, domain.ErrNotFound) {
		t.Errorf("an unknown interface: %v, want ErrNotFound", err)
	}
}

func TestServer_UndefineEndsLauncher(t *testing.T) {
	h, ends := memory.New("pod"), make(chan struct{}, 9)
	p := newPodOf(t, t.TempDir(), func() *launcher.Server {
		return &launcher.Server{Hypervisor: h, Guest: guest, Undefined: func() { ends <- struct{}{} }}
	})
	c := dial(t, p)
	for _, verb := range []domain.Verb{domain.Undefine, domain.Start, domain.Destroy} {
		op := domain.Operation{Verb: verb, Domain: guest.Domain(), Definition: domaintest.Definition(t, guest.Domain())}
		if err := c.Apply(t.Context(), op); err != nil || len(ends) != 0 {
			t.Errorf("%s: %v, %d calls", verb, err, len(ends))
		}
	}
	if err := c.Apply(t.Context(), domain.Operation{Verb: domain.Undefine, Domain: guest.Domain()}); err != nil {
		t.Error(err)
	}
	<-ends
	p.kill()
	if len(ends) != 0 {
		t.Errorf("%d more calls", len(ends))
	}
}

func TestListen_SocketMode(t *testing.T) {
	dir := t.TempDir()
	l, err := launcher.Listen(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	names := func() (out []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v, %v", e.Name(), info.Mode(), err)
			}
			out = append(out, e.Name())
		}
		return out
	}
	if got := names(); !slices.Equal(got, []string{launcher.BootingSocket}) {
		t.Errorf("while it boots: %q", got)
	}
	if err := l.Ready(); err != nil {
		t.Fatal(err)
	}
	if got := names(); !slices.Equal(got, []string{launcher.ReadySocket}) {
		t.Errorf("when it is ready: %q", got)
	}
	c, err := net.Dial("unix", filepath.Join(dir, launcher.ReadySocket))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
