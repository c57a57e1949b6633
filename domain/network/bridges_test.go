// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/network"
)

// space is a network namespace with a process that keeps it.
type space struct {
	t    *testing.T
	file string
	pid  int
}

func newSpace(t *testing.T) space {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root: run it without -short")
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--net", "cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	// The namespace exists once the process answers.
	if _, err := fmt.Fprintln(in, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("no network namespace can be made; run the tests as root: %v", err)
	}
	return space{t: t, file: fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid), pid: cmd.Process.Pid}
}

// ip runs ip(8) in the namespace.
func (s space) ip(args ...string) string {
	s.t.Helper()
	all := append([]string{"-t", fmt.Sprint(s.pid), "-n", "ip"}, args...)
	out, err := exec.CommandContext(s.t.Context(), "nsenter", all...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (s space) bridge(name string) {
	s.t.Helper()
	s.ip("link", "add", name, "mtu", "1450", "type", "bridge")
	s.ip("link", "set", name, "up")
}

// taps returns the tap devices in the namespace.
func (s space) taps() []string {
	s.t.Helper()
	var out []string
	for line := range strings.Lines(s.ip("-o", "link", "show", "type", "tun")) {
		out = append(out, strings.TrimSuffix(strings.Fields(line)[1], ":"))
	}
	return out
}

func guest(networks ...string) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-1"}}
	for _, n := range networks {
		vmi.Spec.Networks = append(vmi.Spec.Networks, v1.Network{Name: n})
		vmi.Spec.Domain.Devices.Interfaces = append(vmi.Spec.Domain.Devices.Interfaces, v1.Interface{Name: n})
	}
	return vmi
}

// bridges connects network x to bridge br-x.
func bridges(t *testing.T, s space) *network.Bridges {
	t.Helper()
	return &network.Bridges{Namespace: s.file, Taps: true, User: 107, Group: 107, Records: filepath.Join(t.TempDir(), "records"),
		Bridge: func(_ *v1.VirtualMachineInstance, n v1.Network) (string, error) { return "br-" + n.Name, nil }}
}

func TestPrepare_WaitsForBridges(t *testing.T) {
	s := newSpace(t)
	b := bridges(t, s)
	vmi := guest("blue", "red")
	waits := func(want error, words ...string) {
		t.Helper()
		links, err := b.Prepare(t.Context(), vmi)
		if links != nil || !errors.Is(err, want) {
			t.Fatalf("%v, %v; want %v", links, err, want)
		}
		for _, w := range append(words, "waiting for network") {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("the error does not say %q: %v", w, err)
			}
		}
		if got := s.taps(); len(got) != 0 {
			t.Errorf("taps %v while a network is missing", got)
		}
	}
	waits(domain.ErrNotReady, `"blue"`, "br-blue")
	s.bridge("br-blue")
	waits(domain.ErrNotReady, `"red"`, "br-red")
	s.ip("link", "add", "br-red", "type", "veth", "peer", "name", "other")
	waits(domain.ErrInvalid, `"red"`, "veth", "not a bridge")
	s.ip("link", "del", "br-red")
	s.bridge("br-red")
	s.ip("link", "set", "br-red", "down")
	waits(domain.ErrNotReady, `"red"`, "down")
	s.ip("link", "set", "br-red", "up")
	links, err := b.Prepare(t.Context(), vmi)
	want := map[string]convert.Link{
		"blue": {Tap: network.TapName("uid-1", "blue"), MTU: 1450}, "red": {Tap: network.TapName("uid-1", "red"), MTU: 1450},
	}
	if diff := cmp.Diff(want, links); err != nil || diff != "" {
		t.Fatalf("%v (-want +got):\n%s", err, diff)
	}
	for n, l := range links {
		for _, w := range []string{"master br-" + n, "mtu 1450", "user 107", "group 107", "persist on", "UP"} {
			if got := s.ip("-d", "link", "show", l.Tap); !strings.Contains(got, w) {
				t.Errorf("%s is not %q: %s", l.Tap, w, got)
			}
		}
	}
}

func TestPrepare_Idempotent(t *testing.T) {
	s := newSpace(t)
	s.bridge("br-blue")
	b := bridges(t, s)
	first, err := b.Prepare(t.Context(), guest("blue"))
	if err != nil {
		t.Fatal(err)
	}
	before := s.ip("-o", "link", "show", first["blue"].Tap)
	s.ip("link", "del", "br-blue") // not inspected again, since the guest may run
	restarted := bridges(t, s)
	restarted.Records = b.Records
	second, err := restarted.Prepare(t.Context(), guest("blue"))
	if diff := cmp.Diff(first, second); err != nil || diff != "" {
		t.Fatalf("%v (-first +second):\n%s", err, diff)
	}
	index, _, _ := strings.Cut(before, ":")
	if after := s.ip("-o", "link", "show", first["blue"].Tap); !strings.HasPrefix(after, index+":") {
		t.Errorf("another device: %s was %s", after, before)
	}
	for range 2 {
		if err := restarted.Release(t.Context(), "uid-1"); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(b.Records); err != nil || len(left) != 0 || len(s.taps()) != 0 {
		t.Errorf("left: %v, %v, taps %v", left, err, s.taps())
	}
}

func TestPrepare_S8InterruptedIsBroken(t *testing.T) {
	s := newSpace(t)
	s.bridge("br-blue")
	b := bridges(t, s)
	links, err := b.Prepare(t.Context(), guest("blue"))
	if err != nil {
		t.Fatal(err)
	}
	// The agent ended before it recorded the result.
	path := filepath.Join(b.Records, "uid-1.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(data), `"finished":true`, `"finished":false`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := b.Prepare(t.Context(), guest("blue")); !errors.Is(err, domain.ErrBroken) || !strings.Contains(err.Error(), `"blue"`) {
			t.Fatalf("%v", err)
		}
	}
	if err := b.Release(t.Context(), "uid-1"); err != nil || len(s.taps()) != 0 {
		t.Fatalf("%v, taps %v", err, s.taps())
	}
	if again, err := b.Prepare(t.Context(), guest("blue")); err != nil || again["blue"].Tap != links["blue"].Tap {
		t.Errorf("after the release: %v, %v", again, err)
	}
}

func TestPrepare_FailureIsUndone(t *testing.T) {
	s := newSpace(t)
	s.bridge("br-blue")
	b := bridges(t, s)
	tap := network.TapName("uid-1", "blue")
	s.ip("link", "add", tap, "type", "veth", "peer", "name", "other") // a foreign link has the name
	if _, err := b.Prepare(t.Context(), guest("blue")); !errors.Is(err, domain.ErrInvalid) {
		t.Fatalf("%v", err)
	}
	s.ip("link", "show", tap)
	if err := b.Release(t.Context(), "uid-1"); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("a foreign link was removed: %v", err)
	}
	s.ip("link", "del", tap)
	if err := b.Release(t.Context(), "uid-1"); err != nil {
		t.Fatal(err)
	}
	if links, err := b.Prepare(t.Context(), guest("blue")); err != nil || len(links) != 1 {
		t.Errorf("%v, %v", links, err)
	}
}

func TestPrepare_BridgedNetworksOnly(t *testing.T) {
	s := newSpace(t)
	s.bridge("br-blue")
	vmi := guest("blue", "sriov", "passt", "plugin", "gone")
	vmi.Spec.Networks = append(vmi.Spec.Networks, v1.Network{Name: "unused"})
	in := vmi.Spec.Domain.Devices.Interfaces
	in[1].SRIOV, in[2].PasstBinding = &v1.InterfaceSRIOV{}, &v1.InterfacePasstBinding{}
	in[3].Binding, in[4].State = &v1.PluginBinding{Name: "p"}, v1.InterfaceStateAbsent
	if links, err := bridges(t, s).Prepare(t.Context(), vmi); err != nil || len(links) != 1 || links["blue"].Tap == "" {
		t.Errorf("%v, %v", links, err)
	}
	only := bridges(t, s)
	only.Taps = false
	if links, err := only.Prepare(t.Context(), guest("blue")); err != nil || len(links) != 0 {
		t.Errorf("where the hypervisor makes them: %v, %v", links, err)
	}
	if _, err := only.Prepare(t.Context(), guest("blue", "red")); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("a network that was added later is not set up: %v", err)
	}
}

func TestRelease_NamespaceGone(t *testing.T) {
	s := newSpace(t)
	s.bridge("br-blue")
	b := bridges(t, s)
	if _, err := b.Prepare(t.Context(), guest("blue")); err != nil {
		t.Fatal(err)
	}
	b.Namespace = "/proc/0/ns/net"
	if _, err := b.Prepare(t.Context(), guest("blue", "red")); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("%v", err)
	}
	if err := b.Release(t.Context(), "uid-1"); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(b.Records); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestPrepare_InvalidNamesAndRecords(t *testing.T) {
	s := newSpace(t)
	b := bridges(t, s)
	for _, uid := range []types.UID{"", "..", "a/b", types.UID(strings.Repeat("u", 80))} {
		vmi := guest("blue")
		vmi.UID = uid
		if _, err := b.Prepare(t.Context(), vmi); !errors.Is(err, domain.ErrInvalid) {
			t.Errorf("%q: %v", uid, err)
		}
		if err := b.Release(t.Context(), uid); !errors.Is(err, domain.ErrInvalid) {
			t.Errorf("%q: %v", uid, err)
		}
	}
	if _, err := b.Prepare(t.Context(), guest(strings.Repeat("n", 20))); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("invalid link name: %v", err)
	}
	unknown := errors.New("there is no such network")
	b.Bridge = func(*v1.VirtualMachineInstance, v1.Network) (string, error) { return "", unknown }
	if _, err := b.Prepare(t.Context(), guest("blue")); !errors.Is(err, unknown) {
		t.Errorf("%v", err)
	}
	for name, content := range map[string]string{"half": "{", "other": `{"version":1,"guest":"x","networks":{}}`, "newer": `{"version":2,"guest":"uid-1","networks":{}}`} {
		b := bridges(t, s)
		path := filepath.Join(b.Records, "uid-1.json")
		if err := errors.Join(os.MkdirAll(b.Records, 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Prepare(t.Context(), guest("blue")); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		if err := b.Release(t.Context(), "uid-1"); err == nil {
			t.Errorf("%s: released", name)
		}
	}
}
