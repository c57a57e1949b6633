// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/libvirt"
)

// contextWithoutEnd is for cleaning up after a test whose context has ended.
func contextWithoutEnd(t testing.TB) context.Context { return context.WithoutCancel(t.Context()) }

// TestQEMU runs all tests of real guests on one pair of nodes.
func TestQEMU(t *testing.T) {
	ns := startNodes(t)
	t.Run("conformance", func(t *testing.T) { testConformance(t, ns) })
	t.Run("one question lists all domains", func(t *testing.T) { testBulk(t, ns) })
	t.Run("an attach that the definition refuses is taken back", func(t *testing.T) { testRollBack(t, ns) })
	t.Run("a guest that hangs has statistics", func(t *testing.T) { testHungStatistics(t, ns) })
	t.Run("an agent that hangs holds up itself only", func(t *testing.T) { testHungAgent(t, ns) })
	t.Run("a console on a terminal", func(t *testing.T) { testTerminal(t, ns) })
	t.Run("read back", func(t *testing.T) { testReadBack(t, ns) })
	t.Run("guests", func(t *testing.T) { testGuests(t, ns) })
	t.Run("host", func(t *testing.T) { testHost(t, ns) })
	t.Run("capabilities", func(t *testing.T) { testCapabilities(t, ns) })
	t.Run("one guest that hangs delays no other", func(t *testing.T) { testHang(t, ns) })
	t.Run("a guest that hangs is ended", func(t *testing.T) { testHangEnds(t, ns) })
	t.Run("a driver closes while the daemon is silent", func(t *testing.T) { testSilentClose(t, ns) })
	t.Run("a daemon that is silent is given up", func(t *testing.T) { testSilentDaemon(t, ns) })
	t.Run("the daemon is killed again and again", func(t *testing.T) { testKills(t, ns) })
	t.Run("an informer misses nothing while daemon and guests are killed", func(t *testing.T) { testChaos(t, ns) })
	t.Run("a guest that hangs costs others no time", func(t *testing.T) { testHungLatency(t, ns) })
	t.Run("nothing leaks", func(t *testing.T) { testLeaks(t, ns) })
	t.Run("heartbeat goes on across a migration", func(t *testing.T) { testHeartbeat(t, ns) })
	t.Run("moves over sockets", func(t *testing.T) { testMoves(t, ns) })
}

func testHost(t *testing.T, ns *nodes) {
	auto := open(t, ns.n[0].URI(), libvirt.Options{})
	h, err := auto.Host(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h.Name != "node1" || h.Arch != "x86_64" || h.Hypervisor != "QEMU" || h.Emulator == "" || h.CPUs == 0 || h.MemoryBytes == 0 {
		t.Errorf("host is %+v", h)
	}
	for kvm, want := range map[libvirt.KVM]bool{libvirt.KVMOn: true, libvirt.KVMOff: false} {
		h, err := open(t, ns.n[0].URI(), libvirt.Options{KVM: kvm}).Host(t.Context())
		if err != nil || h.KVM != want {
			t.Errorf("KVM %s: host is %+v, %v", kvm, h, err)
		}
	}
}

// await polls a condition that a guest has to reach.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("never came: %s", what)
		}
	}
}

func testHeartbeat(t *testing.T, ns *nodes) {
	here, there := open(t, ns.n[0].URI(), libvirt.Options{}), open(t, ns.n[1].URI(), libvirt.Options{})
	vmi, f := guest("heartbeat"), ns.facts(t, "heartbeat")
	d, err := convert.Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { destroy(t, d.Name, here, there) })
	if err := here.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: d.Name, Definition: d}); err != nil {
		t.Fatal(err)
	}
	await(t, "a heartbeat", func() bool { return len(beats(serial(t, ns.n[0], f))) > 3 })
	req := domain.MigrationRequest{Domain: d.Name, DestinationURI: "qemu+tcp://" + ns.n[1].Address() + "/system"}
	if err := here.Migrate(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	await(t, "a heartbeat at the destination", func() bool { return len(beats(serial(t, ns.n[1], f))) > 3 })
	all := beats(serial(t, ns.n[0], f) + serial(t, ns.n[1], f))
	for i, n := range all {
		if n != i+1 {
			t.Fatalf("heartbeat %d is number %d: %v", i+1, n, all)
		}
	}
}

// beats lists the numbers of the heartbeats.
func beats(log string) []int {
	var out []int
	for line := range strings.Lines(log) {
		var n int
		var uptime float64
		if c, _ := fmt.Sscanf(line, "virtloom-heartbeat n=%d uptime=%f", &n, &uptime); c == 2 {
			out = append(out, n)
		}
	}
	return out
}

func destroy(t testing.TB, name string, hs ...*libvirt.Driver) {
	for _, h := range hs {
		for _, verb := range []domain.Verb{domain.Destroy, domain.Undefine} {
			if err := h.Apply(contextWithoutEnd(t), domain.Operation{Verb: verb, Domain: name}); err != nil {
				t.Error(err)
			}
		}
	}
}

// testCapabilities reads the capabilities of a real hypervisor.
func testCapabilities(t *testing.T, ns *nodes) {
	c, err := open(t, ns.n[0].URI(), libvirt.Options{}).Capabilities(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]struct{ xml, has string }{
		"the host":                        {c.Host, "<arch>x86_64</arch>"},
		"what guests can have":            {c.Domain, "<machine>pc-q35-"},
		"all features of the host's CPU":  {c.CPU, "<feature policy='require' name='sse2'/>"},
		"and those that its model has as": {c.CPU, "<model "},
	} {
		if !strings.Contains(text.xml, text.has) {
			t.Errorf("%s: there is no %s in %s", what, text.has, text.xml)
		}
	}
}
