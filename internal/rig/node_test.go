// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/virtloom/virtloom/internal/rig"
)

// testGuest is what these tests call their guest.
const testGuest = "guest"

// nodeOwnerVariable makes TestNothingOfANodeOutlivesItsOwner the owner: the folder of its fabric.
const nodeOwnerVariable = "VIRTLOOM_TEST_NODE_OWNER"

// startFabric starts a fabric for the test. Hypervisor nodes are for root only; others skip.
func startFabric(t *testing.T, dir string) *rig.Fabric {
	t.Helper()
	f, err := rig.NewFabric(t.Context(), rig.FabricOptions{Dir: dir, Log: t.Logf})
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

// guestXML is a guest with a heartbeat ten times a second, its console as KubeVirt has it: a socket,
// and a log that QEMU appends to.
func guestXML(t *testing.T, n *rig.HypervisorNode) string {
	t.Helper()
	image, err := rig.FindGuestImage()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`<domain type='qemu'>
  <name>%[1]s</name>
  <memory unit='MiB'>96</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>%[2]s</kernel>
    <initrd>%[3]s</initrd>
    <cmdline>console=ttyS0 quiet hb=0.1 gip=10.55.0.200/24</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='custom' match='exact'><model>qemu64</model></cpu>
  <devices>
    <controller type='usb' model='none'/>
    <interface type='bridge'>
      <mac address='52:54:00:55:00:01'/>
      <source bridge='br0'/>
      <model type='virtio'/>
    </interface>
    <serial type='unix'>
      <source mode='bind' path='%[4]s/serial'/>
      <log file='%[4]s/serial.log' append='on'/>
    </serial>
    <memballoon model='none'/>
  </devices>
</domain>
`, testGuest, image.Kernel, image.Initrd, guestDir(n))
}

func guestDir(n *rig.HypervisorNode) string { return n.StateDir() + "/guests/" + testGuest }

// prepareGuest makes the folder of the guest on a node.
func prepareGuest(t *testing.T, n *rig.HypervisorNode) {
	t.Helper()
	if err := os.MkdirAll(n.HostPath(guestDir(n)), 0o755); err != nil {
		t.Fatal(err)
	}
}

// startGuest defines and starts the guest.
func startGuest(t *testing.T, n *rig.HypervisorNode) {
	t.Helper()
	prepareGuest(t, n)
	file := filepath.Join(t.TempDir(), "guest.xml")
	if err := os.WriteFile(file, []byte(guestXML(t, n)), 0o644); err != nil {
		t.Fatal(err)
	}
	virsh(t, n, "define", file)
	virsh(t, n, "start", testGuest)
}

func virsh(t *testing.T, n *rig.HypervisorNode, args ...string) string {
	t.Helper()
	started := time.Now()
	out, err := n.Virsh(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("virsh %s on %s took %v", args[0], n.Name(), time.Since(started))
	return strings.TrimSpace(out)
}

// beat is a heartbeat: its number, and when the guest says it was.
type beat struct {
	n      int
	uptime time.Duration
}

var beatLine = regexp.MustCompile(`(?m)^virtloom-heartbeat n=(\d+) uptime=(\d+\.\d+)\r?\n`)

// console is what the guest has written to its console while it was on the node.
func console(t *testing.T, n *rig.HypervisorNode) string {
	t.Helper()
	text, err := os.ReadFile(n.HostPath(guestDir(n) + "/serial.log"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

// beats are the heartbeats that the guest sent from the nodes, in this order.
func beats(t *testing.T, nodes ...*rig.HypervisorNode) []beat {
	t.Helper()
	var text strings.Builder
	for _, n := range nodes {
		// The move may split a line in two.
		text.WriteString(console(t, n))
	}
	var found []beat
	for _, m := range beatLine.FindAllStringSubmatch(text.String(), -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		uptime, err := time.ParseDuration(m[2] + "s")
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, beat{n, uptime})
	}
	return found
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

func TestGuestMovesBetweenNodesWithoutMissingABeat(t *testing.T) {
	f := startFabric(t, "")
	source, target := addNode(t, f, "source"), addNode(t, f, "target")
	started := time.Now()
	startGuest(t, source)
	waitFor(t, "no heartbeat before the migration", func() bool { return len(beats(t, source)) >= 5 })
	t.Logf("guest took %v to its fifth beat", time.Since(started))

	prepareGuest(t, target)
	virsh(t, source, "migrate", "--live", "--p2p", "--persistent", testGuest, "qemu+tcp://"+target.Address()+"/system")
	waitFor(t, "no heartbeat after the migration", func() bool { return len(beats(t, target)) >= 5 })

	var gap time.Duration
	all := beats(t, source, target)
	for i, b := range all {
		if b.n != i+1 {
			t.Errorf("beat %d says n=%d", i+1, b.n)
		}
		if i > 0 {
			gap = max(gap, b.uptime-all[i-1].uptime)
		}
	}
	t.Logf("%d beats, at most %v apart by the clock of the guest", len(all), gap)
	if got := virsh(t, source, "domstate", "--reason", testGuest); got != "shut off (migrated)" {
		t.Errorf("the guest is %q on the source", got)
	}
	if got := virsh(t, target, "domstate", testGuest); got != "running" {
		t.Errorf("the guest is %q on the target", got)
	}
	for n, want := range map[*rig.HypervisorNode]int{source: 0, target: 1} {
		if got := qemus(t, n); len(got) != want {
			t.Errorf("QEMU processes on %s: %v, want %d", n.Name(), got, want)
		}
	}
	virsh(t, target, "shutdown", testGuest)
	waitFor(t, "the guest does not heed its power button", func() bool { return len(qemus(t, target)) == 0 })
	if !strings.Contains(console(t, target), "virtloom-power-button") {
		t.Error("the guest says nothing about its power button")
	}
	domains, err := target.Domains(t.Context())
	if diff := cmp.Diff([]string{testGuest}, domains); diff != "" || err != nil {
		t.Errorf("domains on the target (-want +got): %v\n%s", err, diff)
	}
}

func qemus(t *testing.T, n *rig.HypervisorNode) []int {
	t.Helper()
	pids, err := n.QEMUs()
	if err != nil {
		t.Fatal(err)
	}
	return pids
}

func TestGuestOutlivesLibvirtd(t *testing.T) {
	f := startFabric(t, "")
	n := addNode(t, f, "alone")
	startGuest(t, n)
	before := qemus(t, n)
	if err := n.KillLibvirtd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Domains(t.Context()); err == nil {
		t.Error("libvirtd answers after it was killed")
	}
	if err := n.StartLibvirtd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, qemus(t, n)); diff != "" {
		t.Errorf("QEMU processes (-before +after):\n%s", diff)
	}
	if got := virsh(t, n, "domstate", testGuest); got != "running" {
		t.Errorf("the guest is %q", got)
	}
	// These wait until libvirtd has found its QEMU again; destroy does not, and if it comes first, both
	// stop the guest and destroy reports that it is not running.
	virsh(t, n, "suspend", testGuest)
	virsh(t, n, "resume", testGuest)
	virsh(t, n, "destroy", testGuest)
	if left := qemus(t, n); len(left) > 0 {
		t.Errorf("QEMU processes after destroy: %v", left)
	}
}

func TestProgramOnNodeSeesTheNodeAndTheNetworkOfTheMachine(t *testing.T) {
	f := startFabric(t, "")
	n := addNode(t, f, "seen")
	const script = `hostname; readlink /proc/self/ns/net /proc/self/ns/mnt; ls -d "$1"; exit 7`
	network, mounts := readlink(t, "/proc/self/ns/net"), readlink(t, fmt.Sprintf("/proc/%d/ns/mnt", n.Pid()))
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

func TestProgramDiesWithItsNode(t *testing.T) {
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

// A program that has ended stays in its PID namespace until its parent asks how. This parent cannot.
func TestStopDoesNotWaitForAProgramToBeReaped(t *testing.T) {
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

func TestProgramOnNodeGetsItsSignals(t *testing.T) {
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

func TestAddNodeRefusesBadNames(t *testing.T) {
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

// TestNothingOfANodeOutlivesItsOwner starts itself as the owner of two nodes and a guest.
func TestNothingOfANodeOutlivesItsOwner(t *testing.T) {
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
			owner := exec.Command(os.Args[0], "-test.run=^TestNothingOfANodeOutlivesItsOwner$", "-test.timeout=5m")
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

// machine is what a careless fabric would leave its marks in: the mounts of this process, the
// interfaces of its network, and the folders that a node has of its own.
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

// namespacesOf are the network namespaces, other than the machine's, of the processes of a rig.
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

// processIn tells whether any process lives in one of the network namespaces.
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
