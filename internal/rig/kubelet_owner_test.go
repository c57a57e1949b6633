// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
	parent, before := t.TempDir(), machineNetwork(t)
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
	if diff := cmp.Diff(before, machineNetwork(t)); diff != "" {
		t.Errorf("a rig changes the network of the machine:\n%s", diff)
	}
	loop := attachLoop(t, nodes[0])
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := loops(t); slices.Contains(now, loop) {
		t.Errorf("loop device %s is attached still", loop)
	}
	waitNothingLeft(t, parent, r.Dir())
	if diff := cmp.Diff(before, machineNetwork(t)); diff != "" {
		t.Errorf("the network of the machine is another than before:\n%s", diff)
	}
}

// expiry is what a route or an address that a router advertised has left, which becomes less.
var expiry = regexp.MustCompile(`(expires|valid_lft|preferred_lft) \S+`)

// machineNetwork returns the machine's own links, addresses, routes, rules, named network namespaces and packet filter.
func machineNetwork(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, command := range []string{
		"ip -oneline link", "ip -oneline address", "ip route show table all", "ip -6 route show table all", "ip rule", "ip netns",
		"nft --stateless list ruleset", "cat /proc/sys/net/ipv4/ip_forward",
	} {
		words := strings.Fields(command)
		out, err := exec.CommandContext(context.Background(), words[0], words[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		found[command] = expiry.ReplaceAllString(string(out), "")
	}
	return found
}

func TestKubelets_DieWithOwner(t *testing.T) {
	needRoot(t)
	signals := map[string]syscall.Signal{"killed": syscall.SIGKILL, "interrupted": syscall.SIGINT}
	for name, when := range map[string]func(dir string) bool{
		"as soon as there is a control group": func(dir string) bool { return len(tracesOf(t, dir)) > 0 },
		"as soon as containerd runs": func(dir string) bool {
			_, err := os.Stat(filepath.Join(dir, "log", "node-one-containerd.log"))
			return err == nil
		},
		"with a Pod": hasPod(t),
	} {
		for how, signal := range signals {
			t.Run(how+" "+name, func(t *testing.T) {
				parent := t.TempDir()
				owner := startOwner(t, parent)
				dir := owner.await(t, parent, when)
				owner.end(t, signal)
				waitNothingLeft(t, parent, dir)
			})
		}
	}
}

// TestStart_RemovesWhatKilledRigsLeft: what is left of a rig whose watchdog was killed as well is removed when the next one starts.
func TestStart_RemovesWhatKilledRigsLeft(t *testing.T) {
	needRoot(t)
	parent := t.TempDir()
	owner := startOwner(t, parent)
	dir := owner.await(t, parent, hasPod(t))
	owner.killWatchdog(t)
	owner.end(t, syscall.SIGKILL)
	f, err := rig.NewFabric(t.Context(), rig.FabricOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	waitNothingLeft(t, parent, dir)
}

// TestUndo_RemovesWhatKilledRigsLeft: hack/undo.sh refuses while a rig lives; else it removes what is left, and the folder of programs.
func TestUndo_RemovesWhatKilledRigsLeft(t *testing.T) {
	needRoot(t)
	root, parent := t.TempDir(), t.TempDir()
	undo := cloneUndo(t, root)
	owner := startOwner(t, parent, "VIRTLOOM_BIN="+filepath.Join(root, "bin"))
	dir := owner.await(t, parent, hasPod(t))
	if out, err := undo(); err == nil || !strings.Contains(out, "runs still") {
		t.Errorf("while the rig lives: %v: %s", err, out)
	}
	owner.killWatchdog(t)
	owner.end(t, syscall.SIGKILL)
	if len(tracesOf(t, dir)) == 0 {
		t.Error("there is nothing to remove")
	}
	if out, err := undo(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	waitNothingLeft(t, parent, dir)
	if _, err := os.Stat(filepath.Join(root, "bin")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of programs: %v", err)
	}
}

// cloneUndo puts hack/undo.sh and what it needs into root, with a folder of programs that leads to the real ones.
func cloneUndo(t *testing.T, root string) (undo func() (string, error)) {
	t.Helper()
	bin, err := rig.BinDir()
	if err != nil {
		t.Fatal(err)
	}
	const script = `cp --parents hack/lib.sh hack/undo.sh internal/rig/watchdog.sh "$1" && mkdir "$1/bin" && ln -s "$2"/* "$1/bin"`
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script, "sh", root, bin)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return func() (string, error) {
		out, err := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "undo.sh")).CombinedOutput()
		return string(out), err
	}
}

// owner is a process that starts a node with a kubelet and never stops it.
type owner struct {
	*exec.Cmd
	said bytes.Buffer
}

func startOwner(t *testing.T, parent string, env ...string) *owner {
	t.Helper()
	o := &owner{Cmd: exec.Command(os.Args[0])}
	o.Env = append(os.Environ(), ownerVariable+"="+parent, kubeletVariable+"=one")
	o.Env = append(o.Env, env...)
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

// end sends the owner's process group a signal, as a terminal does.
func (o *owner) end(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(-o.Process.Pid, signal); err != nil {
		t.Error(err)
	}
	if err := o.Wait(); err == nil || err.Error() != "signal: "+signal.String() {
		t.Errorf("the owner ended by itself: %v, %s", err, &o.said)
	}
}

// hasPod returns a condition of a rig: that it runs a Pod.
func hasPod(t *testing.T) func(dir string) bool {
	return func(dir string) bool { return runsPause(t, filepath.Join(dir, "kubeconfig", rig.UserAdmin)) }
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
