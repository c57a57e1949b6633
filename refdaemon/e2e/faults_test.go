// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/refcluster"
)

// restartLibvirtd kills the libvirt daemon of a node and starts another.
func restartLibvirtd(t *testing.T, c *refcluster.Cluster, node string, between func()) {
	t.Helper()
	n := c.Node(node)
	must(t, n.KillLibvirtd(t.Context()))
	between()
	must(t, n.StartLibvirtd(t.Context()))
}

func TestVMI_LibvirtdKilled(t *testing.T) {
	c := cluster(t)
	s := boot(t, c, newGuest(t, "no-libvirtd"))
	node := c.Node(s.vmi.Status.NodeName)
	before, err := node.QEMUs()
	must(t, err)
	restartLibvirtd(t, c, node.Name(), func() { s.beats(node.Name(), 5) })
	s.single()
	s.beats(node.Name(), 5)
	after, err := node.QEMUs()
	must(t, err)
	if !slices.Equal(before, after) {
		t.Errorf("QEMU processes were %v and are %v", before, after)
	}
	// The agent has found its way back: it ends the guest in order.
	must(t, c.Client.Delete(t.Context(), s.vmi.DeepCopy()))
	must(t, c.AwaitGone(t.Context(), s.vmi.DeepCopy(), patience))
	s.unbroken()
}

// side is the node a moving guest comes from or goes to.
func (s *scene) side(name string) string {
	s.Helper()
	l, err := handoff.Of(s.vmi)
	must(s.T, err)
	return map[string]string{"source": l.Holder, "target": l.Target}[name]
}

// killQEMUs kills the QEMU processes of a node.
func killQEMUs(t *testing.T, c *refcluster.Cluster, node string) {
	t.Helper()
	pids, err := c.Node(node).QEMUs()
	must(t, err)
	if len(pids) == 0 {
		t.Fatalf("no QEMU runs on %s", node)
	}
	for _, pid := range pids {
		p, err := os.FindProcess(pid)
		must(t, err)
		must(t, p.Kill())
	}
}

func TestMigration_TargetQEMUKilled(t *testing.T) {
	c := cluster(t)
	slowly(t, c)
	s := boot(t, c, newGuest(t, "qemu-target", busy))
	home := s.vmi.Status.NodeName
	m := s.migrate("qemu-target")
	s.awaitMoving()
	killQEMUs(t, c, s.side("target"))
	s.awaitMigration(m, v1.MigrationFailed)
	s.single()
	s.await(v1.Running)
	if s.vmi.Status.NodeName != home {
		t.Errorf("the guest is on %s, want %s", s.vmi.Status.NodeName, home)
	}
	s.beats(home, 5)
	s.unbroken()
}

func TestMigration_SourceQEMUKilled(t *testing.T) {
	c := cluster(t)
	slowly(t, c)
	s := boot(t, c, newGuest(t, "qemu-source", busy))
	m := s.migrate("qemu-source")
	s.awaitMoving()
	killQEMUs(t, c, s.side("source"))
	s.await(v1.Failed)
	s.awaitMigration(m, v1.MigrationFailed)
}

func TestNodeAgent_ForeignDomain(t *testing.T) {
	c := cluster(t)
	const theirs = "web_server"
	node := c.Nodes[0]
	file := filepath.Join(t.TempDir(), "domain.xml")
	must(t, os.WriteFile(file, []byte(`<domain type='qemu'><name>`+theirs+`</name><memory unit='MiB'>16</memory>`+
		`<os><type arch='x86_64' machine='q35'>hvm</type></os></domain>`), 0o600))
	_, err := node.Virsh(t.Context(), "create", file)
	must(t, err)
	t.Cleanup(func() {
		_, err := node.Virsh(context.Background(), "destroy", theirs)
		must(t, err)
	})
	// A restarted agent looks at every domain; a guest that comes and goes shows
	// that it has.
	crashAgent(t, c, node.Name(), func() {})
	must(t, c.AwaitAgents(t.Context(), patience))
	s := boot(t, c, newGuest(t, "neighbour", func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": node.Name()}
	}))
	must(t, c.Client.Delete(t.Context(), s.vmi.DeepCopy()))
	must(t, c.AwaitGone(t.Context(), s.vmi.DeepCopy(), patience))
	if out, err := node.Virsh(t.Context(), "domstate", theirs); err != nil || strings.TrimSpace(out) != "running" {
		t.Errorf("the domain is %q: %v", out, err)
	}
}
