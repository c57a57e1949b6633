// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/virtloom/virtloom/internal/rig"
)

const nodeOwnerVariable = "VIRTLOOM_TEST_NODE_OWNER"

func TestNode_DiesWithOwner(t *testing.T) {
	if dir := os.Getenv(nodeOwnerVariable); dir != "" {
		f := startFabric(t, dir)
		n := addNode(t, f, "first")
		addNode(t, f, "second")
		startGuest(t, n)
		fmt.Printf("owner: %s\n", filepath.Dir(f.Dir()))
		select {}
	}
	for name, stop := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "interrupted": syscall.SIGINT} {
		t.Run(name, func(t *testing.T) {
			startFabric(t, "") // skips where the owner would
			parent := t.TempDir()
			before := machine(t)
			owner := exec.Command(os.Args[0], "-test.run=^TestNode_DiesWithOwner$", "-test.timeout=5m")
			owner.Env = append(os.Environ(), nodeOwnerVariable+"="+parent)
			owner.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			out, err := owner.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := owner.Start(); err != nil {
				t.Fatal(err)
			}
			dir := ownerDir(out)
			if !strings.HasPrefix(dir, parent) {
				t.Fatalf("the owner says %q, want a folder in %s", dir, parent)
			}
			namespaces := namespacesOf(t, dir)
			if len(namespaces) != 3 {
				t.Errorf("network namespaces %v, want those of the fabric and of two nodes", namespaces)
			}
			if diff := cmp.Diff(before, machine(t)); diff != "" {
				t.Errorf("the owner shows on the machine (-before +after):\n%s", diff)
			}
			if err := syscall.Kill(-owner.Process.Pid, stop); err != nil {
				t.Fatal(err)
			}
			if err := owner.Wait(); err == nil {
				t.Error("the owner ended as if nothing had happened")
			}
			waitNothingLeft(t, parent, dir)
			waitFor(t, "a process is left in the namespaces of the nodes", func() bool {
				return !processIn(t, namespaces)
			})
			if diff := cmp.Diff(before, machine(t)); diff != "" {
				t.Errorf("left on the machine (-before +after):\n%s", diff)
			}
		})
	}
}

func ownerDir(out interface{ Read([]byte) (int, error) }) string {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if dir, ok := strings.CutPrefix(lines.Text(), "owner: "); ok {
			return dir
		}
	}
	return ""
}

func machine(t *testing.T) map[string]string {
	t.Helper()
	seen := map[string]string{}
	for _, file := range []string{"/proc/self/mounts", "/proc/net/dev_snmp6"} {
		if entries, err := os.ReadDir(file); err == nil {
			var names []string
			for _, e := range entries {
				names = append(names, e.Name())
			}
			seen[file] = strings.Join(names, " ")
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		seen[file] = string(text)
	}
	for _, dir := range []string{rig.DefaultStateDir, "/var/lib/libvirt", "/var/log/libvirt", "/var/cache/libvirt"} {
		_, err := os.Stat(dir)
		seen[dir] = strconv.FormatBool(err == nil)
	}
	return seen
}

func namespacesOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	own, found := readlink(t, "/proc/self/ns/net"), map[string]bool{}
	for _, process := range processesOf(t, dir) {
		if link, err := os.Readlink(filepath.Join(process, "ns/net")); err == nil && link != own {
			found[link] = true
		}
	}
	return found
}

func processIn(t *testing.T, namespaces map[string]bool) bool {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && namespaces[target] {
			return true
		}
	}
	return false
}
