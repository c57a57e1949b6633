// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

func startFabric(t *testing.T, dir string) *rig.Fabric {
	t.Helper()
	return startFabricWith(t, rig.FabricOptions{Dir: dir, Log: t.Logf})
}

func startFabricWith(t *testing.T, o rig.FabricOptions) *rig.Fabric {
	t.Helper()
	rigtest.Need(t)
	f, err := rig.NewFabric(t.Context(), o)
	if errors.Is(err, rig.ErrNeedsRoot) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			f.Keep()
			t.Logf("the logs of the fabric are in %s", f.LogDir())
		}
		if err := f.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return f
}

func addNode(t *testing.T, f *rig.Fabric, name string) *rig.HypervisorNode {
	t.Helper()
	started := time.Now()
	n, err := f.AddNode(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("node %s took %v", name, time.Since(started))
	return n
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), interval/5, patience, true, func(context.Context) (bool, error) {
		return done(), nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func TestProgram_Isolated(t *testing.T) {
	f := startFabric(t, "")
	n := addNode(t, f, "seen")
	const script = `hostname; readlink /proc/self/ns/net /proc/self/ns/mnt; ls -d "$1"; exit 7`
	network, mounts := readlink(t, fmt.Sprintf("/proc/%d/ns/net", n.Pid())), readlink(t, fmt.Sprintf("/proc/%d/ns/mnt", n.Pid()))
	want := strings.Join([]string{"seen", network, mounts, n.StateDir(), ""}, "\n")
	for name, run := range map[string]func(argv ...string) (string, error){
		"Run": func(argv ...string) (string, error) {
			p, err := n.Run("seen", exec.Command(argv[0], argv[1:]...))
			if err != nil {
				return "", err
			}
			<-p.Done()
			text, err := os.ReadFile(p.Log())
			return string(text), errors.Join(p.Ended(), err)
		},
		"Command": func(argv ...string) (string, error) {
			text, err := n.Command(t.Context(), argv[0], argv[1:]...).Output()
			return string(text), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run("/bin/sh", "-c", script, "sh", n.StateDir())
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 7 {
				t.Errorf("error %v, want exit status 7", err)
			}
			if diff := cmp.Diff(want, out); diff != "" {
				t.Errorf("the program sees (-want +got):\n%s", diff)
			}
		})
	}
}

func readlink(t *testing.T, path string) string {
	t.Helper()
	link, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func TestProgram_DiesWithNode(t *testing.T) {
	f := startFabric(t, "")
	n := addNode(t, f, "dying")
	run, err := n.Run("run", exec.Command("/bin/sleep", "1000"))
	if err != nil {
		t.Fatal(err)
	}
	command := n.Command(t.Context(), "/bin/sleep", "1000")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if err := n.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-run.Done()
	if err := command.Wait(); err == nil {
		t.Error("the program has ended as if nothing had happened")
	}
	// The name is free again.
	addNode(t, f, "dying")
}

func TestStop_DoesNotReap(t *testing.T) {
	f := startFabric(t, "")
	n := addNode(t, f, "unreaped")
	cmd := n.Command(t.Context(), "/bin/sh", "-c", "echo; exec sleep 1000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := n.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the program ended by itself")
	}
}

func TestProgram_Signals(t *testing.T) {
	f := startFabric(t, "")
	n := addNode(t, f, "signals")
	p, err := n.Run("signals", exec.Command("/bin/sh", "-c", `trap "echo graceful; exit 3" TERM; echo ready; while :; do sleep 0.01; done`))
	if err != nil {
		t.Fatal(err)
	}
	log := func() string {
		text, err := os.ReadFile(p.Log())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	waitFor(t, "the program does not start", func() bool { return log() == "ready\n" })
	if err := p.Stop(patience); err != nil {
		t.Fatal(err)
	}
	if got := log(); !strings.HasSuffix(got, "\ngraceful\n") {
		t.Errorf("the program says %q", got)
	}
}

func TestHypervisorNode_Registered(t *testing.T) {
	startFabric(t, "") // skips without root
	r := rigtest.New(t)
	n, err := r.AddHypervisorNode(t.Context(), "both")
	if err != nil {
		t.Fatal(err)
	}
	node, err := client(t, r, rig.UserAdmin).CoreV1().Nodes().Get(t.Context(), "both", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: n.Address()}
	if !slices.Contains(node.Status.Addresses, want) {
		t.Errorf("addresses %v lack %v", node.Status.Addresses, want)
	}
	pid := n.Pid()
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("first process of the node after Stop: %v, want %v", err, syscall.ESRCH)
	}
}

func TestNewFabric_WithoutRoot(t *testing.T) {
	// Only this thread gives up being root, and takes it back.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	become := func(user uintptr) {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), user, ^uintptr(0)); errno != 0 {
			t.Fatal(errno)
		}
	}
	if os.Geteuid() == 0 {
		const nobody = 65534
		become(nobody)
		defer become(0)
	}
	_, err := rig.NewFabric(t.Context(), rig.FabricOptions{})
	if !errors.Is(err, rig.ErrNeedsRoot) || !strings.Contains(err.Error(), "run as root") {
		t.Errorf("error %v, want %v", err, rig.ErrNeedsRoot)
	}
}

func TestAddNode_InvalidNames(t *testing.T) {
	f := startFabric(t, "")
	for name, bad := range map[string]string{
		"empty": "", "path": "../x", "upper case": "Node", "line break": "a\nb", "long": strings.Repeat("a", 33),
	} {
		t.Run(name, func(t *testing.T) {
			if n, err := f.AddNode(t.Context(), bad); err == nil {
				t.Errorf("node %q was added at %s", bad, n.Address())
			}
		})
	}
}
