// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/virtloom/virtloom/internal/rig"
)

const testGuest = "guest"

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
    <cmdline>console=ttyS0 quiet no_timer_check hb=0.1 gip=10.55.0.200/24</cmdline>
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

func prepareGuest(t *testing.T, n *rig.HypervisorNode) {
	t.Helper()
	if err := os.MkdirAll(n.HostPath(guestDir(n)), 0o755); err != nil {
		t.Fatal(err)
	}
}

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

type beat struct {
	n      int
	uptime time.Duration
}

var beatLine = regexp.MustCompile(`(?m)^virtloom-heartbeat n=(\d+) uptime=(\d+\.\d+)\r?\n`)

func console(t *testing.T, n *rig.HypervisorNode) string {
	t.Helper()
	text, err := os.ReadFile(n.HostPath(guestDir(n) + "/serial.log"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

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

func TestGuest_Migrates(t *testing.T) {
	f := startFabricWith(t, rig.FabricOptions{TCP: true, Log: t.Logf})
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

func TestGuest_OutlivesLibvirtd(t *testing.T) {
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
