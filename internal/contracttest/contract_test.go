// SPDX-License-Identifier: Apache-2.0

// Package contracttest tests that the controller's and the node's half of one guest
// agree where both write one field, and that what renders a Pod and what looks
// after it agree. The packages themselves must not know each other.
package contracttest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/vmi"
)

const (
	hashedRed   = "podb1f51a511f1"
	hashedGreen = "podba4788b226a"
	multusWord  = "multus-status"
)

type nic = v1.VirtualMachineInstanceNetworkInterface

// world is one guest, its Pod and its domain.
type world struct {
	vmi *v1.VirtualMachineInstance
	pod *corev1.Pod
	see status.Observation
}

// attach lets the Pod have interfaces beside its own.
func (w *world) attach(names ...string) {
	text := `[{"interface":"eth0","default":true}`
	for _, n := range names {
		text += `,{"interface":"` + n + `"}`
	}
	w.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p",
		Annotations: map[string]string{"k8s.v1.cni.cncf.io/network-status": text + "]"}}}
}

// plug lets the domain have cards, in this order; functions of host devices come after.
func (w *world) plug(names ...string) {
	devices := &libvirtxml.DomainDeviceList{}
	for _, n := range names {
		alias := &libvirtxml.DomainAlias{Name: domain.AliasPrefix + n}
		if strings.HasPrefix(n, "sriov-") {
			devices.Hostdevs = append(devices.Hostdevs, libvirtxml.DomainHostdev{Alias: alias})
			continue
		}
		devices.Interfaces = append(devices.Interfaces, libvirtxml.DomainInterface{
			Alias: alias, MAC: &libvirtxml.DomainInterfaceMAC{Address: mac(n)},
		})
	}
	w.see.State = &domain.State{Domain: &libvirtxml.Domain{Devices: devices}}
}

// report makes the agent report interfaces; those of the domain by name.
func (w *world) report(names ...string) {
	w.see.Guest = &guestagent.Info{}
	for _, n := range names {
		w.see.Guest.Interfaces = append(w.see.Guest.Interfaces, guestagent.Interface{Name: "in-" + n, MAC: mac(n), IPs: []string{"10.0.0." + n[:1]}})
	}
}

func mac(name string) string {
	return "02:00:00:00:00:" + string("0123456789abcdef"[len(name)%16]) + "1"
}

func (w *world) network(name string, source v1.NetworkSource) {
	w.vmi.Spec.Networks = append(w.vmi.Spec.Networks, v1.Network{Name: name, NetworkSource: source})
	w.vmi.Spec.Domain.Devices.Interfaces = append(w.vmi.Spec.Domain.Devices.Interfaces, v1.Interface{Name: name})
}

func multus() v1.NetworkSource {
	return v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "nad"}}
}

// controller and node run one half, and report whether it wrote.
func (w *world) controller(t *testing.T) bool {
	t.Helper()
	was := w.vmi.Status.Interfaces
	now, err := vmi.Interfaces(w.vmi, w.pod)
	if err != nil {
		t.Fatal(err)
	}
	for i := range was {
		k := slices.IndexFunc(now, func(n nic) bool { return n.Name == was[i].Name && n.MAC == was[i].MAC })
		if k < 0 || !cmp.Equal(nodes(was[i]), nodes(now[k])) {
			t.Errorf("the controller changed what is the node's in %+v: %+v", was[i], now)
		}
	}
	w.vmi.Status.Interfaces = now
	return !cmp.Equal(was, now)
}

func (w *world) node(t *testing.T) bool {
	t.Helper()
	was := w.vmi.Status.Interfaces
	now := status.Interfaces(w.vmi, w.see)
	for i := range now {
		k := slices.IndexFunc(was, func(n nic) bool { return n.Name != "" && n.Name == now[i].Name })
		if k < 0 {
			continue
		}
		if was[k].PodInterfaceName != now[i].PodInterfaceName || byMultus(was[k]) != byMultus(now[i]) {
			t.Errorf("the node changed what is the controller's in %+v: %+v", was[k], now[i])
		}
	}
	w.vmi.Status.Interfaces = now
	return !cmp.Equal(was, now)
}

func byMultus(n nic) bool { return strings.Contains(n.InfoSource, multusWord) }

// nodes is what belongs to the node in an entry.
func nodes(n nic) nic {
	n = *n.DeepCopy()
	n.PodInterfaceName = ""
	words := slices.DeleteFunc(strings.Split(n.InfoSource, ", "), func(s string) bool { return s == multusWord })
	n.InfoSource = strings.Join(words, ", ")
	return n
}

// story is what happens to a guest, step by step, and what is then said.
var story = []struct {
	name string
	do   func(*world)
	want []string
}{
	{"41 handoff", func(w *world) {
		w.network("default", v1.NetworkSource{Pod: &v1.PodNetwork{}})
		w.network("red", multus())
		w.network("dra", v1.NetworkSource{ResourceClaim: &v1.ClaimRequest{ClaimName: "c", RequestName: "r"}})
		w.attach(hashedRed)
	}, []string{"default eth0 ", "red " + hashedRed + " multus-status"}},
	{"the domain has its cards in its own order", func(w *world) { w.plug("red", "default", "sriov-dra") },
		[]string{"default eth0 domain", "red " + hashedRed + " domain, multus-status", "dra  domain"}},
	{"the agent reports another interface", func(w *world) { w.report("default", "red", "bridge-of-docker") },
		[]string{"default eth0 domain, guest-agent", "red " + hashedRed + " domain, guest-agent, multus-status", "dra  domain", "  guest-agent"}},
	{"the Pod is attached to a new network", func(w *world) { w.network("green", multus()); w.attach(hashedRed, hashedGreen) },
		[]string{"default eth0 domain, guest-agent", "red " + hashedRed + " domain, guest-agent, multus-status", "dra  domain",
			"green " + hashedGreen + " multus-status", "  guest-agent"}},
	{"a card is plugged into it", func(w *world) { w.plug("red", "default", "green", "sriov-dra") },
		[]string{"default eth0 domain, guest-agent", "red " + hashedRed + " domain, guest-agent, multus-status",
			"green " + hashedGreen + " domain, multus-status", "dra  domain", "  guest-agent"}},
	{"a card is unplugged", func(w *world) { w.plug("default", "green", "sriov-dra"); w.report("default", "bridge-of-docker") },
		[]string{"default eth0 domain, guest-agent", "green " + hashedGreen + " domain, multus-status", "dra  domain",
			"red " + hashedRed + " multus-status", "  guest-agent"}},
	{"the Pod leaves its network", func(w *world) { w.attach(hashedGreen) },
		[]string{"default eth0 domain, guest-agent", "green " + hashedGreen + " domain, multus-status", "dra  domain", "  guest-agent"}},
	{"the agent falls silent", func(w *world) { w.see.Guest = nil },
		[]string{"default eth0 domain, guest-agent", "green " + hashedGreen + " domain, multus-status", "dra  domain", "  guest-agent"}},
	{"the guest moves to a Pod with numbered interfaces", func(w *world) { w.attach("net1", "net2") },
		[]string{"default eth0 domain, guest-agent", "green net2 domain, multus-status", "dra  domain", "red net1 multus-status", "  guest-agent"}},
	{"the domain is not to be seen", func(w *world) { w.see.State = nil },
		[]string{"default eth0 domain, guest-agent", "green net2 multus-status", "red net1 multus-status", "  guest-agent"}},
}

// Whoever begins, each half writes at most once for what happened, and then both
// rest.
func TestInterfaces_Converge(t *testing.T) {
	for name, first := range map[string]int{"the controller begins": 0, "the node begins": 1} {
		t.Run(name, func(t *testing.T) {
			w := &world{vmi: &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest"}}}
			for _, step := range story {
				step.do(w)
				writes := [2]int{}
				for turn := range 6 {
					who := (first + turn) % 2
					half := w.controller
					if who == 1 {
						half = w.node
					}
					if half(t) {
						writes[who]++
					}
				}
				if writes[0] > 1 || writes[1] > 1 {
					t.Errorf("%s: the controller wrote %d times, the node %d times", step.name, writes[0], writes[1])
				}
				var got []string
				for _, n := range w.vmi.Status.Interfaces {
					got = append(got, n.Name+" "+n.PodInterfaceName+" "+n.InfoSource)
				}
				if diff := cmp.Diff(step.want, got); diff != "" {
					t.Errorf("%s: %s", step.name, diff)
				}
			}
		})
	}
}
