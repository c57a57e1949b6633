// SPDX-License-Identifier: Apache-2.0

package migrationproxy_test

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/transport"
)

var somewhere = transport.Endpoint{Address: "127.0.0.1", Ports: map[string]int{"1": transport.ChannelControl, "2": transport.ChannelMemory}}

func TestSockets_OwnerOnly(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	type owner struct{ uid, gid int }
	this := owner{os.Getuid(), os.Getgid()}
	for name, want := range map[string]owner{"this process": this, "another user": {107, 108}, "another group": {this.uid, 108}} {
		t.Run(name, func(t *testing.T) {
			if want != this && this.uid != 0 {
				t.Skip("only root may give files away")
			}
			n := newNode(t, "node-a", newAuthority(t))
			if err := os.Chown(n.sockets.Outside, want.uid, want.gid); err != nil {
				t.Fatal(err)
			}
			route, err := n.proxy.Dial(t.Context(), tunnel("node-b"), somewhere)
			if err != nil {
				t.Fatal(err)
			}
			for _, uri := range []string{route.DestinationURI, route.MigrateURI} {
				f, err := os.Lstat(socketOf(uri))
				if err != nil {
					t.Fatal(err)
				}
				s := f.Sys().(*syscall.Stat_t)
				if got := (owner{int(s.Uid), int(s.Gid)}); f.Mode() != os.ModeSocket|0o600 || got != want {
					t.Errorf("%s is %s of %+v, want srw------- of %+v", f.Name(), f.Mode(), got, want)
				}
			}
			n.proxy.Close(tunnel("").Key)
			if _, err := os.Lstat(socketOf(route.MigrateURI)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket is left: %v", err)
			}
		})
	}
}

// TestSockets_ReplacedAfterRestart begins a migration, drops its state, and begins it again.
func TestSockets_ReplacedAfterRestart(t *testing.T) {
	ca := newAuthority(t)
	source, target := newNode(t, "node-a", ca), newNode(t, "node-b", ca)
	target.hypervisor(transport.ChannelControl, echo)
	first := connect(t, source, target)
	old := source.proxy
	source.restart()
	target.restart()
	second := connect(t, source, target)
	if first != second {
		t.Errorf("the route was %+v and is %+v", first, second)
	}
	roundTrip(t, dial(t, second.DestinationURI), "through the new one")
	old.Close(tunnel("").Key) // which leaves the new proxy's sockets alone
	roundTrip(t, dial(t, second.DestinationURI), "still")
}

func TestDial_Again(t *testing.T) {
	ca := newAuthority(t)
	source, target := newNode(t, "node-a", ca), newNode(t, "node-b", ca)
	target.hypervisor(transport.ChannelControl, echo)
	route := connect(t, source, target)
	c := dial(t, route.DestinationURI)
	if again := connect(t, source, target); again != route {
		t.Errorf("the route was %+v and is %+v", route, again)
	}
	roundTrip(t, c, "the same migration goes on")
	other := tunnel("node-b")
	other.Migration = "m2"
	c = dial(t, route.DestinationURI)
	eventually(t, "a stream flows", func() bool { return source.total().Streams == 1 })
	if _, err := source.proxy.Dial(t.Context(), other, somewhere); err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(c); len(got) != 0 {
		t.Errorf("a stream of the replaced migration brought %q", got)
	}
}

func TestSockets_OtherFilesKept(t *testing.T) {
	name := transport.SocketName(tunnel("").Key, transport.ChannelMemory)
	for what, put := range map[string]func(path, precious string) error{
		"a link to a file":    func(path, precious string) error { return os.Symlink(precious, path) },
		"a link to nothing":   func(path, _ string) error { return os.Symlink(path+".gone", path) },
		"a file":              func(path, precious string) error { return os.Link(precious, path) },
		"a folder":            func(path, _ string) error { return os.Mkdir(path, 0o700) },
		"a link to a socket":  func(path, _ string) error { return linkToSocket(path) },
		"a pipe with no name": func(path, _ string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		t.Run(what, func(t *testing.T) {
			ca := newAuthority(t)
			source, target := newNode(t, "node-a", ca), newNode(t, "node-b", ca)
			precious := filepath.Join(source.sockets.Outside, "precious")
			if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(source.sockets.Outside, name)
			if err := put(path, precious); err != nil {
				t.Fatal(err)
			}
			before, _ := os.Lstat(path)
			_, err := source.proxy.Dial(t.Context(), tunnel("node-b"), somewhere)
			if err == nil || !strings.Contains(err.Error(), name+": is not a socket") {
				t.Errorf("Dial: %v, want an error that names the file", err)
			}
			if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
				t.Errorf("it has gone, or is another one: %v", err)
			}
			if got, err := os.ReadFile(precious); err != nil || string(got) != "precious" {
				t.Errorf("the file holds %q, error %v", got, err)
			}
			left, _ := filepath.Glob(filepath.Join(source.sockets.Outside, "*-source.sock"))
			if len(left) != 1 {
				t.Errorf("a failed Dial leaves %q", left)
			}

			// The target does not follow it either.
			targetPath := filepath.Join(target.sockets.Outside, name)
			if err := put(targetPath, precious); err != nil && what != "a file" {
				t.Fatal(err)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if what == "a file" {
				return // the two folders may be on different file systems
			}
			if got, _ := io.ReadAll(dial(t, connect(t, source, target).MigrateURI)); len(got) != 0 {
				t.Errorf("a stream brought %q", got)
			}
			eventually(t, "the stream was refused", func() bool { return target.total().Refused == 1 })
			if got := target.total().Trouble; !strings.Contains(got, "is not a socket") {
				t.Errorf("refused because %q", got)
			}
		})
	}
}

// linkToSocket puts a link to a socket that listens until the test process ends.
func linkToSocket(path string) error {
	l, err := net.Listen("unix", path+".real")
	if err != nil {
		return err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "you should not be here")
			c.Close()
		}
	}()
	return os.Symlink(path+".real", path)
}

func TestSockets_Folder(t *testing.T) {
	long := strings.Repeat("x", 60)
	for name, tc := range map[string]struct {
		change func(t *testing.T, s *domain.Sockets)
		want   string // of the error; empty: none
	}{
		"is missing":  {change: func(_ *testing.T, s *domain.Sockets) { s.Outside += "/none" }, want: "no such file"},
		"is a file":   {change: func(_ *testing.T, s *domain.Sockets) { s.Outside = "/etc/hostname" }, want: "not a directory"},
		"is unknown":  {change: func(_ *testing.T, s *domain.Sockets) { s.Outside = "" }, want: "no such file"},
		"is too long": {change: func(_ *testing.T, s *domain.Sockets) { s.Inside = "/" + long }, want: "a unix socket allows 107: shorten its folder"},
		"is just long": {change: func(_ *testing.T, s *domain.Sockets) {
			s.Inside = "/" + long[:107-1-1-len("8a1e6e44-0b5e-4c1c-9d5e-5a3f1f0f7a11-49152-source.sock")]
		}},
		"is a link": {
			change: func(t *testing.T, s *domain.Sockets) {
				link := filepath.Join(t.TempDir(), "link")
				if err := os.Symlink(s.Outside, link); err != nil {
					t.Fatal(err)
				}
				s.Outside = link
			},
			want: "open the folder of sockets",
		},
		"is far away in another mount namespace": {
			change: func(t *testing.T, s *domain.Sockets) {
				s.Outside = filepath.Join(s.Outside, long, long)
				if err := os.MkdirAll(s.Outside, 0o700); err != nil {
					t.Fatal(err)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "node-a", newAuthority(t))
			tc.change(t, &n.sockets)
			_, err := n.proxy.Dial(t.Context(), tunnel("node-b"), somewhere)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want %q", err, tc.want)
			}
			if err != nil {
				return
			}
			for _, channel := range tunnel("").Channels() {
				if f, err := os.Lstat(filepath.Join(n.sockets.Outside, transport.SocketName(tunnel("").Key, channel))); err != nil || f.Mode().Type() != os.ModeSocket {
					t.Errorf("no socket for channel %d: %v", channel, err)
				}
			}
		})
	}
}

func TestTunnel_Invalid(t *testing.T) {
	n := newNode(t, "node-a", newAuthority(t))
	for name, tc := range map[string]struct {
		key    types.UID
		domain string
		at     transport.Endpoint
		want   string
	}{
		"no key":                {domain: "ns_vm", at: somewhere, want: "do not name a migration"},
		"no domain":             {key: "k", at: somewhere, want: "do not name a migration"},
		"a key that is a path":  {key: "../../etc/passwd", domain: "ns_vm", at: somewhere, want: "do not name a migration"},
		"no place":              {key: "k", domain: "ns_vm", want: "targetNodeAddress"},
		"a place without ports": {key: "k", domain: "ns_vm", at: transport.Endpoint{Address: "127.0.0.1"}, want: "targetDirectMigrationNodePorts"},
	} {
		t.Run(name, func(t *testing.T) {
			p := transport.Tunnel{Key: tc.key, Domain: tc.domain, Peer: "node-b"}
			_, err := n.proxy.Dial(t.Context(), p, tc.at)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Dial: %v, want %q", err, tc.want)
			}
			if strings.Contains(tc.want, "name a migration") {
				if _, err := n.proxy.Listen(t.Context(), p); !errors.Is(err, domain.ErrInvalid) {
					t.Errorf("Listen: %v", err)
				}
			}
		})
	}
}
