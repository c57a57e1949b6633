// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/virtloom/virtloom/internal/rig"
)

// podProgram starts a libvirt daemon as a launcher does and ends when asked to, or with exit status 3
// when it finds a file.
const podProgram = `
trap "virsh -q list --all; echo asked; exit 0" TERM
libvirtd --daemon --pid-file /run/libvirt/libvirtd.pid || exit 9
echo "up on $(hostname)"
while [ ! -e "$1" ]; do sleep 0.05; done
exit 3`

// podSocket is where that daemon listens.
const podSocket = "/run/libvirt/libvirt-sock"

func runPod(t *testing.T, n *rig.HypervisorNode, uid, end string) *rig.Pod {
	t.Helper()
	p, err := n.RunPod("pod-"+uid[:2], uid, n.StateDir(), exec.Command("/bin/sh", "-c", podProgram, "sh", end))
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the Pod does not start", func() bool { return strings.Contains(readFile(t, p.Log()), "up on "+n.Name()) })
	return p
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestPod_OwnLibvirt(t *testing.T) {
	f := startFabric(t, "")
	n := addNode(t, f, "pods")
	end := n.HostPath(n.StateDir() + "/end")
	a := runPod(t, n, "aaaaaaaa-0000-4000-8000-000000000000", n.StateDir()+"/end")
	b := runPod(t, n, "bbbbbbbb-0000-4000-8000-000000000000", n.StateDir()+"/never")
	hosts := map[string]bool{}
	for _, uri := range []string{a.URI(podSocket), b.URI(podSocket), n.URI()} {
		out, err := exec.CommandContext(t.Context(), "virsh", "--connect", uri, "capabilities").Output()
		if err != nil {
			t.Fatalf("%s: %v", uri, err)
		}
		_, rest, _ := strings.Cut(string(out), "<uuid>")
		uuid, _, _ := strings.Cut(rest, "</uuid>")
		hosts[uuid] = true
	}
	if len(hosts) != 3 {
		t.Errorf("the daemons call their hosts %v, want three names", hosts)
	}
	if err := n.KillLibvirtd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := exec.CommandContext(t.Context(), "virsh", "--connect", b.URI(podSocket), "list").Run(); err != nil {
		t.Errorf("a Pod's libvirtd is gone with the node's: %v", err)
	}
	if err := n.StartLibvirtd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(end, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	<-a.Done()
	var exit *exec.ExitError
	if err := a.Ended(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("the Pod ended with %v, want exit status 3", err)
	}
	if err := a.Remove(); err != nil {
		t.Error(err)
	}
	if err := b.Stop(patience); err != nil {
		t.Error(err)
	}
	if log := readFile(t, b.Log()); !strings.HasSuffix(log, "asked\n") {
		t.Errorf("the Pod was not asked to end:\n%s", log)
	}
	left, err := n.Command(t.Context(), "busybox", "pidof", "libvirtd").Output()
	if pids := strings.Fields(string(left)); len(pids) != 1 || err != nil {
		t.Errorf("libvirt daemons on the node: %v: %v, want one", pids, err)
	}
}

func TestPod_DiesWithNode(t *testing.T) {
	f := startFabric(t, "")
	n := addNode(t, f, "poddies")
	p := runPod(t, n, "cccccccc-0000-4000-8000-000000000000", "/never")
	if err := n.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
}

func TestPod_RequiresUID(t *testing.T) {
	f := startFabric(t, "")
	n := addNode(t, f, "poduid")
	for name, uid := range map[string]string{"empty": "", "path": "../../../../aaaaaaaa-0000-4000-8000-00", "short": "aaaa"} {
		t.Run(name, func(t *testing.T) {
			if _, err := n.RunPod("p", uid, n.StateDir(), exec.Command("/bin/true")); err == nil {
				t.Error("no error")
			}
		})
	}
}
