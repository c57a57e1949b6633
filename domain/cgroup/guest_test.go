// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain/cgroup"
)

// opener makes the test binary a process in the role of QEMU: it opens the paths it reads, one per
// line, and answers with the error number.
const opener = "VIRTLOOM_TEST_OPENER"

func TestMain(m *testing.M) {
	if os.Getenv(opener) == "" {
		os.Exit(m.Run())
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fd, err := unix.Open(in.Text(), unix.O_RDONLY, 0)
		errno := unix.Errno(0)
		if err != nil {
			errors.As(err, &errno)
		} else {
			_ = unix.Close(fd)
		}
		fmt.Println(int(errno))
	}
}

// guest is the process of a guest in a cgroup.
type guest struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// startGuest starts the process in the cgroup, in further namespaces if flags say so.
func startGuest(t *testing.T, dir string, flags uintptr) *guest {
	t.Helper()
	fd, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	g := &guest{t: t, cmd: exec.CommandContext(t.Context(), "/proc/self/exe")}
	g.cmd.Env = []string{opener + "=1"}
	g.cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: !isV1(t, dir), CgroupFD: int(fd.Fd()), Cloneflags: flags}
	if g.in, err = g.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	g.out = bufio.NewScanner(out)
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.end)
	if isV1(t, dir) { // a process can begin in a cgroup of version 2 only
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(pid(g)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func (g *guest) end() {
	_ = g.in.Close()
	_ = g.cmd.Wait()
}

// open returns the error of opening the device in the process.
func (g *guest) open(path string) unix.Errno {
	g.t.Helper()
	if _, err := fmt.Fprintln(g.in, path); err != nil {
		g.t.Fatal(err)
	}
	if !g.out.Scan() {
		g.t.Fatalf("the process has ended: %v", g.out.Err())
	}
	var n int
	if _, err := fmt.Sscan(g.out.Text(), &n); err != nil {
		g.t.Fatal(err)
	}
	return unix.Errno(n)
}

// is checks for each device whether the process may open it.
func (g *guest) is(want map[string]bool) {
	g.t.Helper()
	for path, allowed := range want {
		errno := unix.Errno(0)
		if !allowed {
			errno = unix.EPERM
		}
		if got := g.open(path); got != errno {
			g.t.Errorf("%s: %v, want %v", path, got, errno)
		}
	}
}

// hierarchy returns the mount point of cgroup v2.
func hierarchy(t *testing.T) string {
	t.Helper()
	found, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return i.FSType != "cgroup2", i.FSType == "cgroup2"
	})
	if err != nil || len(found) == 0 {
		t.Skipf("cgroup v2 is not mounted: %v", err)
	}
	return found[0].Mountpoint
}

// container creates a cgroup, and skips the test if the kernel does not permit device filters.
func container(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(hierarchy(t), "virtloom-test-*")
	if err != nil {
		t.Skipf("cgroups cannot be created: %v", err)
	}
	t.Cleanup(func() { removeCgroups(t, dir) })
	probe := filepath.Join(dir, "probe")
	if err := os.Mkdir(probe, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := cgroup.Set(probe, cgroup.Default()); errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		t.Skipf("device filters are not permitted: %v", err)
	}
	return dir
}

// isV1 reports whether a directory is in a hierarchy of cgroup v1.
func isV1(t *testing.T, dir string) bool {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Type == unix.CGROUP_SUPER_MAGIC
}

// containerV1 creates a cgroup in the hierarchy of the devices controller of cgroup v1.
func containerV1(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root: run it without -short")
	}
	dir, err := os.MkdirTemp(devicesV1, "virtloom-test-*")
	if err != nil {
		t.Skipf("no cgroup of version 1 can be made: %v", err)
	}
	t.Cleanup(func() { removeCgroups(t, dir) })
	return dir
}

// devicesV1 is where machines have the devices controller of cgroup v1.
const devicesV1 = "/sys/fs/cgroup/devices"

// removeCgroups removes a cgroup with its children. It may be busy for a moment after its last
// process has ended.
func removeCgroups(t *testing.T, dir string) {
	t.Helper()
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeCgroups(t, filepath.Join(dir, e.Name()))
		}
	}
	var err error
	for range 1000 {
		if err = unix.Rmdir(dir); !errors.Is(err, unix.EBUSY) {
			break
		}
		events, readErr := os.ReadFile(filepath.Join(dir, "cgroup.events"))
		if readErr != nil || strings.Contains(string(events), "populated 1") {
			continue
		}
	}
	if err != nil {
		t.Errorf("removing cgroup %s: %v", dir, err)
	}
}
