// SPDX-License-Identifier: Apache-2.0

package mounts_test

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain/mounts"
)

// The test binary is three programs: one that re-executes itself in a new mount namespace, so that
// no mount remains, the tests, and a container.
const (
	inside      = "VIRTLOOM_TEST_INSIDE"
	containerAt = "VIRTLOOM_TEST_CONTAINER"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(containerAt) != "":
		if err := beContainer(os.Getenv(containerAt)); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	case os.Getenv(inside) != "":
		// Mounts propagate to containers only.
		err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	default:
		if flag.Parse(); testing.Short() {
			os.Exit(m.Run())
		}
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		err := cmd.Run()
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit):
			os.Exit(exit.ExitCode())
		case err != nil:
			fmt.Println("no mount namespace can be made; run the tests as root:", err)
			os.Exit(1)
		}
	}
}

// beContainer makes a directory its root, with bind mounts in it (from:to), like a container
// runtime, and then executes commands.
func beContainer(spec string) error {
	parts := strings.Split(spec, "|")
	root := parts[0]
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""), unix.Mount(root, root, "", unix.MS_BIND|unix.MS_REC, ""))
	for _, p := range parts[1:] {
		from, to, _ := strings.Cut(p, ":")
		if _, there := os.Lstat(root + to); there != nil {
			err = errors.Join(err, os.MkdirAll(root+to, 0o755))
		}
		err = errors.Join(err, unix.Mount(from, root+to, "", unix.MS_BIND|unix.MS_REC, ""))
	}
	err = errors.Join(err, unix.Chdir(root), unix.PivotRoot(".", "."), unix.Unmount(".", unix.MNT_DETACH), unix.Chdir("/"))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		verb, path, _ := strings.Cut(in.Text(), " ")
		switch verb {
		case "listen":
			l, err := net.Listen("unix", path)
			if err != nil {
				return err
			}
			defer func() { _ = l.Close() }()
			fmt.Println("ok")
		case "read":
			b, err := os.ReadFile(path)
			fmt.Printf("%q %v\n", b, err)
		case "write":
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteString("written")
				_ = f.Close()
			}
			fmt.Println(err)
		}
	}
	return nil
}

// container is a process with its own root and mount namespace.
type container struct {
	t    *testing.T
	root string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
}

func startContainer(t *testing.T, root string, binds ...string) *container {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root: run it without -short")
	}
	c := &container{t: t, root: root, cmd: exec.CommandContext(t.Context(), "/proc/self/exe")}
	c.cmd.Env = []string{containerAt + "=" + strings.Join(append([]string{root}, binds...), "|")}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.end)
	if got := c.answer(); got != "ready" {
		t.Fatalf("the container did not start: %s", got)
	}
	return c
}

func (c *container) end() {
	_ = c.in.Close()
	_ = c.cmd.Wait()
}

func (c *container) answer() string {
	c.t.Helper()
	if !c.out.Scan() {
		c.t.Fatalf("the container has ended: %v", c.out.Err())
	}
	return c.out.Text()
}

// do sends a command to the container and returns its answer.
func (c *container) do(verb, path string) string {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.in, verb, path); err != nil {
		c.t.Fatal(err)
	}
	return c.answer()
}

// node is a node with the kubelet's directories of a launcher Pod and an attachment Pod.
type node struct {
	*mounts.Mounter
	t *testing.T
}

const (
	guestUID = types.UID("6f1c-guest")
	podUID   = types.UID("11-pod")
	carrier  = types.UID("22-carrier")
)

var guest = mounts.Guest{UID: guestUID, Pod: podUID}

func newNode(t *testing.T) node {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root: run it without -short")
	}
	dir := t.TempDir()
	n := node{t: t, Mounter: &mounts.Mounter{Pods: filepath.Join(dir, "pods"), Records: filepath.Join(dir, "records")}}
	n.mkdir(n.folder("container-disks"), n.folder("hotplug-disks"), n.carried("volumes"), n.carried("volumeDevices"))
	t.Cleanup(func() {
		if err := n.Release(guestUID, 0); err != nil && !t.Failed() {
			t.Log("release:", err)
		}
	})
	return n
}

// folder returns a directory that launcher and agent share.
func (n node) folder(name string) string {
	return filepath.Join(n.Pods, string(podUID), "volumes/kubernetes.io~empty-dir", name)
}

// carried returns a path in the attachment Pod.
func (n node) carried(names ...string) string {
	return filepath.Join(append([]string{n.Pods, string(carrier)}, names...)...)
}

func (n node) mkdir(paths ...string) {
	n.t.Helper()
	for _, p := range paths {
		if err := os.MkdirAll(p, 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
}

// write creates a file with its parent directories.
func (n node) write(path, content string) string {
	n.t.Helper()
	n.mkdir(filepath.Dir(path))
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return path
}

// sidecar starts the container of a containerDisk.
func (n node) sidecar(index int, files map[string]string) *container {
	n.t.Helper()
	root := n.t.TempDir()
	for path, content := range files {
		n.write(filepath.Join(root, path), content)
	}
	c := startContainer(n.t, root, n.folder("container-disks")+":/copy")
	if got := c.do("listen", fmt.Sprintf("/copy/disk_%d.sock", index)); got != "ok" {
		n.t.Fatal(got)
	}
	return c
}

func (n node) reads(path, want string) {
	n.t.Helper()
	if b, err := os.ReadFile(path); err != nil || string(b) != want {
		n.t.Errorf("%s holds %q, %v; want %q", path, b, err, want)
	}
}

// mounted returns the mount points below the kubelet's directory.
func (n node) mounted() []string {
	n.t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		n.t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); strings.HasPrefix(f[4], n.Pods) {
			out = append(out, strings.TrimPrefix(f[4], n.Pods))
		}
	}
	return out
}
