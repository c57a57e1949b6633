// SPDX-License-Identifier: Apache-2.0

package migrationproxy_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain/transport"
)

// prey is another user's socket, in a folder of its own; it fails the test if it is connected to.
func prey(t *testing.T, folder string) (socket string) {
	t.Helper()
	socket = filepath.Join(folder, "libvirt-sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Error("somebody else's socket was connected to")
			c.Close()
		}
	}()
	return socket
}

func TestSockets_HypervisorSocketIsLink(t *testing.T) {
	ca := newAuthority(t)
	source, target := newNode(t, "node-a", ca), newNode(t, "node-b", ca)
	other := prey(t, shortDir(t))
	uri := connect(t, source, target).DestinationURI
	if err := os.Symlink(other, target.sockets.Control); err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(dial(t, uri)); len(got) != 0 {
		t.Errorf("a stream brought %q", got)
	}
	eventually(t, "the stream was refused", func() bool {
		s := target.total()
		return s.Refused == 1 && strings.Contains(s.Trouble, "is not a socket")
	})
}

func TestSockets_FolderExchanged(t *testing.T) {
	for name, tc := range map[string]struct {
		path     func(*os.File) string
		exchange func(own, others *os.File) error
		again    bool // Listen succeeds there then
	}{
		"a link": {
			path: (*os.File).Name,
			exchange: func(own, others *os.File) error {
				return errors.Join(os.Rename(own.Name(), others.Name()+"/away"), os.Symlink(others.Name(), own.Name()))
			},
		},
		"a descriptor that is given to another folder": {
			path:     func(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) },
			exchange: func(own, others *os.File) error { return unix.Dup3(int(others.Fd()), int(own.Fd()), unix.O_CLOEXEC) },
			again:    true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			ca := newAuthority(t)
			source, target := newNode(t, "node-a", ca), newNode(t, "node-b", ca)
			own, others := opened(t, target.sockets.Outside), opened(t, shortDir(t))
			prey(t, others.Name())
			target.hypervisor(transport.ChannelControl, echo)
			at := tc.path(own)
			target.sockets.Outside, target.sockets.Control = at, filepath.Join(at, "libvirt-sock")
			route := connect(t, source, target)
			if err := tc.exchange(own, others); err != nil {
				t.Fatal(err)
			}
			roundTrip(t, dial(t, route.DestinationURI), "still the guest's own")
			eventually(t, "it was counted", func() bool { return target.total().Sent > 0 })
			if _, err := target.proxy.Listen(t.Context(), tunnel("node-a")); (err == nil) != tc.again {
				t.Errorf("Listen again: %v", err)
			}
			if s := target.total(); s.Sent != 0 {
				t.Errorf("what is open leads to the folder that was there: %+v", s)
			}
		})
	}
}

func opened(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
