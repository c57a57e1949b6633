// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
)

// podMAC is that of the Pod's link, until the guest has it.
const podMAC = "02:00:00:ab:cd:ef"

// bridged is a VMI on the Pod network with binding bridge.
func bridged() *v1.VirtualMachineInstance {
	vmi := guest("default")
	vmi.Spec.Networks[0].Pod = &v1.PodNetwork{}
	vmi.Spec.Domain.Devices.Interfaces[0].Bridge = &v1.InterfaceBridge{}
	return vmi
}

// newBridgedWorld is a Pod whose link is as the CNI plugins bridge or ptp make it.
func newBridgedWorld(t *testing.T, pointToPoint bool) world {
	t.Helper()
	w := newWorld(t, false)
	w.pod.ip("link", "set", "eth0", "address", podMAC)
	if pointToPoint {
		w.pod.ip("route", "del", "10.244.0.0/24", "dev", "eth0")
		w.pod.ip("route", "replace", clientIPv4, "dev", "eth0", "scope", "link")
		w.pod.ip("route", "replace", "10.244.0.0/24", "via", clientIPv4, "dev", "eth0")
		w.pod.ip("route", "replace", "default", "via", clientIPv4)
	}
	return w
}

// state is what matters of the namespace.
func (s space) state() string {
	s.t.Helper()
	var out []string
	for _, link := range []string{"eth0", "eth0-nic", "k6t-eth0", "tap0"} {
		for line := range strings.Lines(s.ip("-o", "link", "show", link) + s.ip("-o", "-4", "addr", "show", "dev", link)) {
			fields := strings.Fields(line)
			if i := strings.Index(line, "link/ether"); link == "tap0" && i >= 0 {
				line = line[:i] // its own address is random
			}
			out = append(out, strings.Join(append(fields[1:2:2], strings.Fields(line)[2:]...), " "))
		}
	}
	out = append(out, s.ip("route", "show", "table", "27446"), s.ip("route"), s.read("net/ipv4/conf/all/arp_ignore"))
	return carrier.ReplaceAllString(strings.Join(out, "\n"), "")
}

// carrier is what changes when a guest begins to run.
var carrier = regexp.MustCompile(`NO-CARRIER,|,LOWER_UP| state (UP|DOWN|UNKNOWN)| ?linkdown`)

func TestPods_Bridge(t *testing.T) {
	for name, ptp := range map[string]bool{"network at the link": false, "point to point": true} {
		t.Run(name, func(t *testing.T) {
			w := newBridgedWorld(t, ptp)
			links, err := w.pods().Prepare(t.Context(), bridged())
			want := map[string]convert.Link{"default": {Tap: "tap0", MAC: podMAC, MTU: 1450, IPs: []string{podIPv4}}}
			if diff := cmp.Diff(want, links); err != nil || diff != "" {
				t.Fatalf("%v (-want +got):\n%s", err, diff)
			}
			before := w.pod.state()
			ways := "default via 10.244.0.1 dev eth0 onlink"
			held := "inet 10.244.0.2/24"
			if ptp {
				ways, held = ways+" \n10.244.0.0/24 via 10.244.0.1 dev eth0 onlink \n10.244.0.1 dev eth0 scope link", "inet 10.244.0.2/32"
			}
			for _, text := range []string{ways, held, "alias virtloom guest " + podMAC, "alias virtloom address of the guest at k6t-eth0"} {
				if all := before + w.pod.ip("link"); !strings.Contains(all, text) {
					t.Errorf("no %q in\n%s", text, all)
				}
			}
			if nic := w.pod.ip("link", "show", "eth0-nic"); strings.Contains(nic, podMAC) {
				t.Errorf("the Pod has the guest's hardware address: %s", nic)
			}
			g := w.pod.address(w.boot(false))
			g.serve(80)
			w.client.serve(81)
			for range 2 {
				if got, err := w.client.dial(podIPv4, 80); got != clientIPv4 || err != nil {
					t.Errorf("the guest was called from %q, %v", got, err)
				}
				if got, err := g.dial(clientIPv4, 81); got != podIPv4 || err != nil {
					t.Errorf("the guest called from %q, %v", got, err)
				}
				// An agent that has started again changes nothing.
				if _, err := w.pods().Prepare(t.Context(), bridged()); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(before, w.pod.state()); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}

// address gives a guest that has booted the address of the Pod, as DHCP does.
func (s space) address(g space) space {
	g.ip("addr", "flush", "dev", "tap0")
	g.ip("link", "set", "tap0", "address", podMAC)
	g.ip("addr", "add", podIPv4+"/32", "dev", "tap0")
	g.ip("route", "add", clientIPv4, "dev", "tap0")
	g.ip("route", "add", "default", "via", clientIPv4)
	return g
}

// A setup that ends after any of its steps is completed by the next agent, which knows only the record.
func TestPods_BridgeInterruptedAnywhere(t *testing.T) {
	fresh := newBridgedWorld(t, true)
	if _, err := fresh.pods().Prepare(t.Context(), bridged()); err != nil {
		t.Fatal(err)
	}
	want := fresh.pod.state()
	for steps, done := 0, false; !done; steps++ {
		w := newBridgedWorld(t, true)
		_, err := w.pods().Prepare(&countdown{Context: t.Context(), left: steps}, bridged())
		if done = err == nil; !done && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		links, err := w.pods().Prepare(t.Context(), bridged())
		if err != nil || links["default"].MAC != podMAC {
			t.Fatalf("after %d steps: %v, %v", steps, links, err)
		}
		if diff := cmp.Diff(want, w.pod.state()); diff != "" {
			t.Errorf("after %d steps (-want +got):\n%s", steps, diff)
		}
	}
}

// What a container of the Pod spoils in its own network is repaired from the record.
func TestPods_BridgeRepairs(t *testing.T) {
	w := newBridgedWorld(t, true)
	if _, err := w.pods().Prepare(t.Context(), bridged()); err != nil {
		t.Fatal(err)
	}
	want := w.pod.state()
	for _, spoil := range []string{
		"link del eth0", "link del k6t-eth0", "link del tap0", "link set eth0-nic nomaster", "link set eth0-nic down",
		"link set eth0-nic address " + podMAC, "addr add 192.0.2.1/24 dev eth0-nic", "addr flush dev eth0", "addr add 192.0.2.1/24 dev eth0",
		"route flush table 27446", "route add 192.0.2.0/24 dev eth0 table 27446", "link set tap0 nomaster", "addr flush dev k6t-eth0",
		"link set eth0-nic mtu 1300",
	} {
		w.pod.ip(strings.Fields(spoil)...)
		if _, err := w.pods().Prepare(t.Context(), bridged()); err != nil {
			t.Fatalf("%s: %v", spoil, err)
		}
		if diff := cmp.Diff(want, w.pod.state()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", spoil, diff)
		}
	}
	// The link itself is not to be repaired, and no other one takes its place.
	w.pod.ip("link", "del", "eth0-nic")
	if _, err := w.pods().Prepare(t.Context(), bridged()); !errors.Is(err, domain.ErrBroken) {
		t.Errorf("%v", err)
	}
}

func TestPods_BridgeRecord(t *testing.T) {
	w := newBridgedWorld(t, false)
	if _, err := w.pods().Prepare(t.Context(), bridged()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(w.records, "uid-1.json")
	for name, text := range map[string]string{"damaged": "{", "of another VMI": `{"version":1,"guest":"uid-2","links":{}}`, "of the future": `{"version":9}`} {
		raw, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.pods().Prepare(t.Context(), bridged()); !errors.Is(err, domain.ErrBroken) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Another Pod of the VMI is not this one.
	next := newBridgedWorld(t, false)
	next.records = w.records
	next.pod.ip("link", "set", "eth0", "address", "02:00:00:ab:cd:00")
	links, err := next.pods().Prepare(t.Context(), bridged())
	if err != nil || links["default"].MAC != "02:00:00:ab:cd:00" {
		t.Errorf("%v, %v", links, err)
	}
	// Without the record, a namespace that was changed is not taken for a new one.
	if err := next.pods().Release(t.Context(), "uid-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := next.pods().Prepare(t.Context(), bridged()); !errors.Is(err, domain.ErrBroken) {
		t.Errorf("%v", err)
	}
}

// Links that a container of the Pod has made are refused or bounded, and nothing is recorded of them.
func TestPods_BridgeHostileLinks(t *testing.T) {
	for name, spoil := range map[string]func(s space){
		"many routes": func(s space) {
			for i := range 40 {
				s.ip("route", "add", fmt.Sprintf("192.0.2.%d/32", i), "dev", "eth0")
			}
		},
		"a bridge": func(s space) {
			s.ip("link", "del", "eth0")
			s.ip("link", "add", "eth0", "type", "bridge")
		},
		"a tunnel without MAC": func(s space) {
			s.ip("link", "del", "eth0")
			s.ip("tuntap", "add", "eth0", "mode", "tun")
			s.ip("addr", "add", podIPv4, "dev", "eth0")
		},
		"the other name is taken": func(s space) { s.ip("link", "add", "eth0-nic", "type", "bridge") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newBridgedWorld(t, false)
			spoil(w.pod)
			_, err := w.pods().Prepare(t.Context(), bridged())
			if !errors.Is(err, domain.ErrUnsupported) && !errors.Is(err, domain.ErrBroken) {
				t.Errorf("%v", err)
			}
			if left, _ := filepath.Glob(filepath.Join(w.records, "*")); len(left) > 0 {
				t.Errorf("recorded %v", left)
			}
		})
	}
}

// A second interface that the CNI plugin bridge has made, as multus has it made, is the guest's.
func TestPods_SecondaryNetwork(t *testing.T) {
	node := newSpace(t)
	for name, ipam := range map[string]string{"with addresses": `{"type": "host-local", "subnet": "10.77.0.0/24", "dataDir": "DIR"}`, "without": `{}`} {
		for _, kind := range []string{"pod16477688c0e", "net1"} { // the names of network "blue", and of old releases
			t.Run(name+", "+kind, func(t *testing.T) {
				w := newBridgedWorld(t, true)
				config := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "blue", "type": "bridge", "bridge": "br-blue", "ipam": %s}`, strings.ReplaceAll(ipam, "DIR", t.TempDir()))
				w.plug(node, kind, config)
				vmi := bridged()
				vmi.Spec.Networks = append(vmi.Spec.Networks, v1.Network{Name: "blue", NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "blue"}}})
				vmi.Spec.Domain.Devices.Interfaces = append(vmi.Spec.Domain.Devices.Interfaces, v1.Interface{
					Name: "blue", MacAddress: guestMAC, InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}},
				})
				for range 2 {
					links, err := w.pods().Prepare(t.Context(), vmi)
					blue := links["blue"]
					if err != nil || len(links) != 2 || blue.MAC != guestMAC || blue.Tap == "tap0" || blue.IPs == nil || (name == "without") != (len(blue.IPs) == 0) {
						t.Fatalf("%+v, %v", links, err)
					}
				}
				bridge := "k6t-" + strings.TrimPrefix(kind, "pod")
				if got := w.pod.ip("-o", "-4", "addr", "show", "dev", bridge); (name == "without") != (got == "") {
					t.Errorf("the server of %s has %q", bridge, got)
				}
				w.pod.ip("link", "show", strings.TrimPrefix(kind, "pod")+"-nic")
			})
		}
	}
	w := newBridgedWorld(t, true)
	vmi := bridged()
	vmi.Spec.Networks[0] = v1.Network{Name: "default", NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "blue"}}}
	if _, err := w.pods().Prepare(t.Context(), vmi); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("without multus: %v", err)
	}
}

// plug has the CNI plugin bridge connect the Pod to a bridge of the node.
func (w world) plug(node space, link, config string) {
	w.pod.t.Helper()
	cmd := exec.CommandContext(w.pod.t.Context(), "nsenter", "-t", fmt.Sprint(node.pid), "-n", "/usr/lib/cni/bridge")
	cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=guest", "CNI_NETNS="+w.pod.file, "CNI_IFNAME="+link, "CNI_PATH=/usr/lib/cni")
	cmd.Stdin = strings.NewReader(config)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.pod.t.Fatalf("CNI: %v: %s", err, out)
	}
}
