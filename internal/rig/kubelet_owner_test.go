// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

func TestStartKubeletNode_Refuses(t *testing.T) {
	needRoot(t)
	r := rigtest.New(t)
	_, err := r.StartKubeletNode(t.Context(), rig.KubeletNodeOptions{Name: "one"})
	if err == nil || !strings.Contains(err.Error(), "Options.Kubelets") {
		t.Errorf("in a rig without kubelets: %v", err)
	}
}

func TestStopKubelets_LeavesNothing(t *testing.T) {
	needRoot(t)
	parent := t.TempDir()
	r, err := rig.Start(t.Context(), rig.Options{Dir: parent, Kubelets: true, Bare: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	nodes := startKubelets(t, r, "one")
	for _, name := range []string{"", "Upper", "with.dot", "one"} {
		if _, err := r.StartKubeletNode(t.Context(), rig.KubeletNodeOptions{Name: name}); err == nil {
			t.Errorf("name %q is accepted", name)
		}
	}
	c := client(t, r, "tester")
	create(t, c, serving("pod", "one"))
	ready(t, c, "pod")
	if len(tracesOf(t, r.Dir())) == 0 {
		t.Fatal("a running node has no control group, so there is nothing to see when it is gone")
	}
	loop := attachLoop(t, nodes[0])
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := loops(t); slices.Contains(now, loop) {
		t.Errorf("loop device %s is attached still", loop)
	}
	waitNothingLeft(t, parent, r.Dir())
}

func TestKubelets_DieWithOwner(t *testing.T) {
	needRoot(t)
	for name, when := range map[string]func(dir string) bool{
		"as soon as there is a control group": func(dir string) bool { return len(tracesOf(t, dir)) > 0 },
		"as soon as containerd runs": func(dir string) bool {
			_, err := os.Stat(filepath.Join(dir, "log", "node-one-containerd.log"))
			return err == nil
		},
		"with a Pod": func(dir string) bool { return runsPause(t, filepath.Join(dir, "kubeconfig", rig.UserAdmin)) },
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			owner := startOwner(t, parent)
			dir := owner.await(t, parent, when)
			owner.kill(t)
			waitNothingLeft(t, parent, dir)
		})
	}
}

// TestStart_RemovesWhatKilledRigsLeft: what is left of a rig whose watchdog was killed as well is removed when the next one starts.
func TestStart_RemovesWhatKilledRigsLeft(t *testing.T) {
	needRoot(t)
	parent := t.TempDir()
	owner := startOwner(t, parent)
	dir := owner.await(t, parent, func(dir string) bool { return runsPause(t, filepath.Join(dir, "kubeconfig", rig.UserAdmin)) })
	owner.killWatchdog(t)
	owner.kill(t)
	f, err := rig.NewFabric(t.Context(), rig.FabricOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	waitNothingLeft(t, parent, dir)
}

// owner is a process that starts a node with a kubelet and never stops it.
type owner struct {
	*exec.Cmd
	said bytes.Buffer
}

func startOwner(t *testing.T, parent string) *owner {
	t.Helper()
	o := &owner{Cmd: exec.Command(os.Args[0])}
	o.Env = append(os.Environ(), ownerVariable+"="+parent, kubeletVariable+"=one")
	o.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	o.Stdout, o.Stderr = &o.said, &o.said
	if err := o.Start(); err != nil {
		t.Fatal(err)
	}
	return o
}

// await waits until the rig is so far, and returns its folder.
func (o *owner) await(t *testing.T, parent string, when func(dir string) bool) (dir string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, patience, true, func(context.Context) (bool, error) {
		dirs, err := filepath.Glob(filepath.Join(parent, "virtloom-rig-*"))
		if err != nil || len(dirs) == 0 {
			return false, err
		}
		dir = dirs[0]
		return when(dir), nil
	})
	if err != nil {
		t.Error(err)
	}
	return dir
}

// killWatchdog kills the watchdog alone.
func (o *owner) killWatchdog(t *testing.T) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "pgrep", "-P", strconv.Itoa(o.Process.Pid), "-f", "virtloom-watchdog").Output()
	if err != nil {
		t.Fatalf("pgrep: %v", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err := errors.Join(err, syscall.Kill(pid, syscall.SIGKILL)); err != nil {
		t.Fatal(err)
	}
}

// kill kills the owner.
func (o *owner) kill(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(-o.Process.Pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if err := o.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the owner ended by itself: %v, %s", err, &o.said)
	}
}

// runsPause makes a Pod of the one image that every node has, and reports whether it runs.
func runsPause(t *testing.T, kubeconfig string) bool {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return false
	}
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	pod := newPod("pause")
	pod.Spec.Containers[0].Image = "localhost/virtloom-pause:dev"
	pods := c.CoreV1().Pods(pod.Namespace)
	// It cannot be made before the API server has what Pods need.
	_, _ = pods.Create(t.Context(), pod, metav1.CreateOptions{})
	got, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
	return err == nil && got.Status.Phase == corev1.PodRunning
}

// attachLoop attaches a loop device on the node, as a kubelet does for a volume of blocks, and returns its line of loops.
func attachLoop(t *testing.T, n *rig.KubeletNode) string {
	t.Helper()
	const file = "/var/lib/virtloom/disk"
	out, err := n.Command(t.Context(), "sh", "-c", "truncate -s 1M "+file+" && losetup -f --show "+file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	name := strings.TrimSpace(string(out))
	all := loops(t)
	i := slices.IndexFunc(all, func(line string) bool { return strings.HasPrefix(line, name+" ") })
	if i < 0 {
		t.Fatalf("%s is not attached: %q", name, all)
	}
	return all[i]
}

// loops lists the machine's loop devices that are attached, each with the inode and the device of its file.
func loops(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(context.Background(), "losetup", "--noheadings", "--raw", "--output", "NAME,BACK-INO,BACK-MAJ:MIN", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// tracesOf lists what the rig in dir has on the machine and not in a folder of its own: control groups and mounts.
func tracesOf(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		groups, err := filepath.Glob(pattern + filepath.Base(dir) + "-*")
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, groups...)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			found = append(found, line)
		}
	}
	return found
}
