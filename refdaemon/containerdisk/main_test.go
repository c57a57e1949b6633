// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inPlace makes the test binary the program.
const inPlace = "VIRTLOOM_TEST_CONTAINER_DISK"

func TestMain(m *testing.M) {
	if os.Getenv(inPlace) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestArguments_Parse(t *testing.T) {
	for args, want := range map[string]struct{ path, err string }{
		"--no-op":                  {},
		"--copy-path /a/disk_0":    {path: "/a/disk_0"},
		"--copy-path=/a/disk_0":    {path: "/a/disk_0"},
		"":                         {err: "usage"},
		"--copy-path":              {err: "unknown argument"},
		"--copy-path disk_0":       {err: "absolute"},
		"--copy-path /a --no-op":   {err: "usage"},
		"--no-op=1":                {err: "unknown argument"},
		"--copy-path /a something": {err: "unknown argument something"},
	} {
		got, err := parse(strings.Fields(args))
		if got != want.path || (err == nil) != (want.err == "") || err != nil && !strings.Contains(err.Error(), want.err) {
			t.Errorf("%q: %q, %v", args, got, err)
		}
	}
}

// TestServer_ListensUntilSignaled: as the template renders it, at a path that is too long for an address; over the socket of
// a container that was killed; with the process behind the socket being found, as agents do; and nothing is left.
func TestServer_ListensUntilSignaled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "disk_0.sock")
	if err := os.WriteFile(socket, []byte("left"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "--copy-path", strings.TrimSuffix(socket, ".sock"))
	cmd.Env, cmd.Stderr = append(os.Environ(), inPlace+"=1"), os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for range 3 {
		c := dial(t, cmd)
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			who, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
			if err != nil || int(who.Pid) != cmd.Process.Pid {
				t.Errorf("the listener is %+v, %v, want process %d", who, err, cmd.Process.Pid)
			}
		}); err != nil {
			t.Error(err)
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("it says %d bytes, %v", n, err)
		}
		_ = c.Close()
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// dial connects to the socket in the working directory as soon as it is there.
func dial(t *testing.T, cmd *exec.Cmd) *net.UnixConn {
	t.Helper()
	for {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: "disk_0.sock"})
		if err == nil {
			return c
		}
		if syscall.Kill(cmd.Process.Pid, 0) != nil {
			t.Fatalf("it has ended: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestServer_Errors(t *testing.T) {
	t.Chdir(t.TempDir()) // it changes the directory
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "taken.sock", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		filepath.Join(dir, "missing", "disk_0"):          os.ErrNotExist,
		filepath.Join(dir, "taken"):                      syscall.ENOTEMPTY,
		filepath.Join(dir, strings.Repeat("long", 1000)): syscall.ENAMETOOLONG,
	} {
		if err := run([]string{"--copy-path", path}, nil); !errors.Is(err, want) {
			t.Errorf("%.40s: %v, want %v", path, err, want)
		}
	}
	if err := run([]string{"--no-op"}, nil); err != nil {
		t.Errorf("nothing to do fails: %v", err)
	}
}
