// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/network"
)

func TestPods_UnsupportedIsNamed(t *testing.T) {
	asked := 0
	p := network.Pods{PID: func(*v1.VirtualMachineInstance) (int, error) { asked++; return 0, errors.New("asked") }}
	iface := func(vmi *v1.VirtualMachineInstance) *v1.Interface { return &vmi.Spec.Domain.Devices.Interfaces[0] }
	for name, c := range map[string]struct {
		change func(vmi *v1.VirtualMachineInstance)
		field  string
		is     error
	}{
		"masquerade, multus": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Networks[0].NetworkSource = v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "blue"}}
		}, "spec.networks[0].multus", domain.ErrUnsupported},
		"other network": {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Networks[0].Pod = nil }, "spec.networks[0]", domain.ErrUnsupported},
		"DHCP options": {func(vmi *v1.VirtualMachineInstance) {
			iface(vmi).DHCPOptions = &v1.DHCPOptions{NTPServers: []string{"10.0.0.1"}}
		}, "spec.domain.devices.interfaces[0].dhcpOptions", domain.ErrUnsupported},
		"two interfaces": {func(vmi *v1.VirtualMachineInstance) {
			more := masquerade()
			more.Spec.Networks[0].Name, more.Spec.Domain.Devices.Interfaces[0].Name = "more", "more"
			vmi.Spec.Networks = append(vmi.Spec.Networks, more.Spec.Networks...)
			vmi.Spec.Domain.Devices.Interfaces = append(vmi.Spec.Domain.Devices.Interfaces, more.Spec.Domain.Devices.Interfaces...)
		}, "spec.networks[1].pod", domain.ErrInvalid},
		"MAC":      {func(vmi *v1.VirtualMachineInstance) { iface(vmi).MacAddress = "x; reboot" }, "spec.domain.devices.interfaces[0].macAddress", domain.ErrInvalid},
		"port":     {func(vmi *v1.VirtualMachineInstance) { iface(vmi).Ports = []v1.Port{{Port: 70000}} }, "spec.domain.devices.interfaces[0].ports", domain.ErrInvalid},
		"negative": {func(vmi *v1.VirtualMachineInstance) { iface(vmi).Ports = []v1.Port{{Port: -1}} }, "spec.domain.devices.interfaces[0].ports", domain.ErrInvalid},
		"protocol": {func(vmi *v1.VirtualMachineInstance) { iface(vmi).Ports = []v1.Port{{Port: 1, Protocol: "SCTP"}} }, "spec.domain.devices.interfaces[0].ports", domain.ErrInvalid},
		"range": {func(vmi *v1.VirtualMachineInstance) {
			iface(vmi).PortRanges = []v1.PortRange{{Protocol: "TCP", Start: 9, End: 8}}
		}, "spec.domain.devices.interfaces[0].ports", domain.ErrInvalid},
		"many ports":   {func(vmi *v1.VirtualMachineInstance) { iface(vmi).Ports = everyOther(2000) }, "spec.domain.devices.interfaces[0].ports", domain.ErrInvalid},
		"CIDR":         {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Networks[0].Pod.VMNetworkCIDR = "10.0.2.0/31" }, "spec.networks[0].pod.vmNetworkCIDR", domain.ErrInvalid},
		"localhost":    {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Networks[0].Pod.VMNetworkCIDR = "127.0.0.0/8" }, "spec.networks[0].pod.vmNetworkCIDR", domain.ErrInvalid},
		"other family": {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Networks[0].Pod.VMIPv6NetworkCIDR = "10.0.0.0/8" }, "spec.networks[0].pod.vmIPv6NetworkCIDR", domain.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := masquerade()
			c.change(vmi)
			_, err := p.Prepare(t.Context(), vmi)
			var named *convert.Error
			if !errors.As(err, &named) || named.Field != c.field || named.Remedy == "" || named.Object != "VirtualMachineInstance ns/guest" || !errors.Is(err, c.is) {
				t.Errorf("%v, want an error about %s", err, c.field)
			}
		})
	}
	if asked != 0 {
		t.Errorf("the launcher was asked for %d times", asked)
	}
}

func everyOther(n int32) []v1.Port {
	var out []v1.Port
	for i := range n {
		out = append(out, v1.Port{Port: 2*i + 1})
	}
	return out
}

// Interfaces of others need no launcher; the conversion refuses them, or they have no tap device.
func TestPods_LeavesOthersAlone(t *testing.T) {
	vmi := guest("sriov", "passt", "plugin", "gone", "none")
	in := vmi.Spec.Domain.Devices.Interfaces
	in[0].SRIOV, in[1].PasstBinding = &v1.InterfaceSRIOV{}, &v1.InterfacePasstBinding{}
	in[2].Binding, in[3].State = &v1.PluginBinding{Name: "p"}, v1.InterfaceStateAbsent
	vmi.Spec.Networks[4].Pod = &v1.PodNetwork{}
	p := network.Pods{PID: func(*v1.VirtualMachineInstance) (int, error) { return 0, errors.New("asked") }}
	if links, err := p.Prepare(t.Context(), vmi); err != nil || len(links) != 0 {
		t.Errorf("%v, %v", links, err)
	}
	vmi.UID = "../x"
	if _, err := p.Prepare(t.Context(), vmi); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("%v", err)
	}
	if err := p.Release(t.Context(), vmi.UID); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("%v", err)
	}
	if _, err := (network.Pods{}).Prepare(t.Context(), masquerade()); err == nil || !strings.Contains(err.Error(), "PID") {
		t.Errorf("%v", err)
	}
}

// The network of the node, or of this process, is never changed, whatever the launcher is.
func TestPods_NodeIsRefused(t *testing.T) {
	w := newWorld(t, false)
	node := newSpace(t)
	// Not this process itself, whose first thread may be in the namespace of another test.
	beside := exec.Command("sleep", "infinity")
	if err := beside.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = beside.Process.Kill()
		_ = beside.Wait()
	})
	for name, c := range map[string]struct {
		pids []int
		is   error
	}{
		"this process": {[]int{beside.Process.Pid}, domain.ErrInvalid},
		"the node":     {[]int{node.pid}, domain.ErrInvalid},
		"invisible":    {[]int{0}, domain.ErrInvalid},
		"negative":     {[]int{-1}, domain.ErrInvalid},
		"gone":         {[]int{1 << 22}, domain.ErrNotReady},
		"another one":  {[]int{w.pod.pid, w.client.pid}, domain.ErrNotReady},
	} {
		t.Run(name, func(t *testing.T) {
			p := network.Pods{Node: node.file, Records: t.TempDir(), PID: func(*v1.VirtualMachineInstance) (int, error) {
				pid := c.pids[0]
				if len(c.pids) > 1 {
					c.pids = c.pids[1:]
				}
				return pid, nil
			}}
			if _, err := p.Prepare(t.Context(), masquerade()); !errors.Is(err, c.is) {
				t.Errorf("%v, want %v", err, c.is)
			}
		})
	}
	for _, s := range []space{w.pod, w.client, node} {
		if got := s.ip("-o", "link", "show", "type", "bridge"); got != "" {
			t.Errorf("made %s", got)
		}
	}
	unknown := w.pods()
	unknown.Node = "/proc/0/ns/net"
	if _, err := unknown.Prepare(t.Context(), masquerade()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without knowing the node's: %v", err)
	}
	lost := errors.New("not connected")
	p := network.Pods{PID: func(*v1.VirtualMachineInstance) (int, error) {
		return 0, fmt.Errorf("%w: %w", domain.ErrNotReady, lost)
	}}
	if _, err := p.Prepare(t.Context(), masquerade()); !errors.Is(err, lost) || !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("%v", err)
	}
}

func TestPods_WaitsForThePod(t *testing.T) {
	s := newSpace(t)
	p := world{pod: s, records: t.TempDir()}.pods()
	waits := func(words string) {
		t.Helper()
		if _, err := p.Prepare(t.Context(), masquerade()); !errors.Is(err, domain.ErrNotReady) || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "waiting for network") {
			t.Errorf("%v, want %q", err, words)
		}
	}
	waits("link eth0: not found")
	s.ip("link", "add", "eth0", "type", "veth", "peer", "name", "x")
	s.ip("link", "set", "eth0", "up")
	waits("link eth0 has no address yet")
	s.ip("addr", "add", "10.0.2.9/24", "dev", "eth0")
	if _, err := p.Prepare(t.Context(), masquerade()); !errors.Is(err, domain.ErrInvalid) || !strings.Contains(err.Error(), "spec.networks[0].pod.vmNetworkCIDR") {
		t.Errorf("the Pod is in the guest's network: %v", err)
	}
	vmi := masquerade()
	vmi.Spec.Networks[0].Pod.VMNetworkCIDR = "192.168.9.0/24"
	if _, err := p.Prepare(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	if got := s.ip("-o", "addr", "show", "dev", "k6t-eth0"); !strings.Contains(got, "192.168.9.1/24") {
		t.Errorf("addresses %s", got)
	}
}
