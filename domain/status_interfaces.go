// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"net/netip"
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// Where the fields of an interface's status come from, as KubeVirt writes it.
const (
	infoDomain = "domain"
	infoMultus = "multus-status"
	infoAgent  = "guest-agent"
)

const (
	// sriovAlias begins the alias of a host device that is an interface of the spec.
	sriovAlias = "sriov-"
	// maxGuestOnly is how many interfaces are reported that only the guest knows of.
	maxGuestOnly = 10
)

// nicStatus is one entry of status.interfaces.
type nicStatus = v1.VirtualMachineInstanceNetworkInterface

// Interfaces returns the interface statuses of a running guest: name, hardware
// address, queues and link from the domain, addresses from the Pod's link and the
// guest's agent, everything else as the status has it. The interface of the Pod
// network comes first; at most ten that only the guest knows of come last. Without
// word from the agent what it said before stays.
func Interfaces(vmi *v1.VirtualMachineInstance, o Observation) []v1.VirtualMachineInstanceNetworkInterface {
	out := domainInterfaces(vmi, o)
	has := func(name string) bool {
		return slices.ContainsFunc(out, func(s nicStatus) bool { return s.Name == name })
	}
	primary := primaryNetwork(vmi)
	for i := range vmi.Status.Interfaces {
		old := *vmi.Status.Interfaces[i].DeepCopy()
		switch {
		case old.Name == "" || has(old.Name):
		case strings.Contains(old.InfoSource, infoMultus):
			old.InfoSource = infoMultus
			out = append(out, old)
		case old.Name == primary:
			out = append(out, old) // bound without a card in the domain
		}
	}
	if i := slices.IndexFunc(out, func(s nicStatus) bool { return primary != "" && s.Name == primary }); i > 0 {
		first := out[i]
		out = slices.Insert(slices.Delete(out, i, i+1), 0, first)
	}
	told := o.told()
	if told == nil {
		return append(out, guestOnlyBefore(vmi)...)
	}
	return append(out, guestOnly(told, out)...)
}

// domainInterfaces are those the domain has, in its order, with their addresses.
func domainInterfaces(vmi *v1.VirtualMachineInstance, o Observation) []nicStatus {
	var out []nicStatus
	live := o.live()
	if live == nil || live.Devices == nil {
		return nil
	}
	for i := range live.Devices.Interfaces {
		nic := &live.Devices.Interfaces[i]
		if name := nameOf(nic.Alias); name != "" {
			s := statusBefore(vmi, name)
			cardStatus(&s, nic)
			out = append(out, addressed(vmi, o, s))
		}
	}
	for i := range live.Devices.Hostdevs {
		name, sriov := strings.CutPrefix(nameOf(live.Devices.Hostdevs[i].Alias), sriovAlias)
		if !sriov {
			continue
		}
		s := statusBefore(vmi, name)
		if mac := functionMAC(vmi, o, name); mac != "" {
			s.MAC = mac
		}
		out = append(out, addressed(vmi, o, s))
	}
	return out
}

// statusBefore is what the status says of an interface; only its name if nothing.
func statusBefore(vmi *v1.VirtualMachineInstance, name string) nicStatus {
	for i := range vmi.Status.Interfaces {
		if vmi.Status.Interfaces[i].Name == name {
			return *vmi.Status.Interfaces[i].DeepCopy()
		}
	}
	return nicStatus{Name: name}
}

// cardStatus takes over what the domain says of a card.
func cardStatus(s *nicStatus, nic *libvirtxml.DomainInterface) {
	if nic.MAC != nil {
		s.MAC = nic.MAC.Address
	}
	s.QueueCount = 1
	if nic.Driver != nil && nic.Driver.Queues > 0 {
		s.QueueCount = int32(nic.Driver.Queues)
	}
	s.LinkState = linkState(nic)
}

// functionMAC is the address of an interface that is a function of a host device,
// which the domain does not tell.
func functionMAC(vmi *v1.VirtualMachineInstance, o Observation, name string) string {
	for _, in := range vmi.Spec.Domain.Devices.Interfaces {
		if in.Name == name && in.MacAddress != "" {
			return in.MacAddress
		}
	}
	return o.Facts.Links[name].MAC
}

// linkState returns up or down; a card without a link element is up.
func linkState(nic *libvirtxml.DomainInterface) string {
	if nic.Link != nil && nic.Link.State == "down" {
		return "down"
	}
	return "up"
}

// primaryNetwork is the name of the network that carries the Pod's address.
func primaryNetwork(vmi *v1.VirtualMachineInstance) string {
	for _, n := range vmi.Spec.Networks {
		if n.Pod != nil || n.Multus != nil && n.Multus.Default {
			return n.Name
		}
	}
	return ""
}

// addressed completes an interface of the domain by its addresses and by where
// they come from.
func addressed(vmi *v1.VirtualMachineInstance, o Observation, s nicStatus) nicStatus {
	byAgent, byMultus := strings.Contains(s.InfoSource, infoAgent), strings.Contains(s.InfoSource, infoMultus)
	pod, known := o.Facts.Links[s.Name].IPs, o.Facts.Links[s.Name].IPs != nil
	behindNAT := masqueraded(vmi, s.Name)
	if !known && (!byAgent || behindNAT) {
		pod = s.IPs
	}
	if g := o.told(); g != nil {
		nic := guestCard(g, s.MAC)
		byAgent = nic != nil
		s.InterfaceName = ""
		var guest []string
		if nic != nil {
			s.InterfaceName, guest = nic.Name, nic.IPs
		}
		setIPs(&s, mergeIPs(pod, guest, behindNAT))
	} else if known && !byAgent {
		setIPs(&s, pod)
	}
	sources := []string{infoDomain}
	if byAgent {
		sources = append(sources, infoAgent)
	}
	if byMultus {
		sources = append(sources, infoMultus)
	}
	s.InfoSource = strings.Join(sources, ", ")
	return s
}

// masqueraded tells whether the guest's own address is hidden behind the Pod's.
func masqueraded(vmi *v1.VirtualMachineInstance, name string) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Interfaces, func(in v1.Interface) bool {
		return in.Name == name && in.Masquerade != nil
	})
}

// guestCard is the guest's interface with that hardware address: the first that has
// addresses, since a bridge inside of the guest shares that of its card; else the
// first.
func guestCard(g *GuestInfo, mac string) *GuestInterface {
	var first *GuestInterface
	for i := range g.Interfaces {
		nic := &g.Interfaces[i]
		if mac == "" || !strings.EqualFold(nic.MAC, mac) {
			continue
		}
		if len(nic.IPs) > 0 {
			return nic
		}
		if first == nil {
			first = nic
		}
	}
	return first
}

// mergeIPs puts together what the Pod's link and the guest have. Behind a NAT the
// Pod's addresses are those that lead to the guest; else the guest's are, where it
// tells any. The other one adds the family that is missing.
func mergeIPs(pod, guest []string, behindNAT bool) []string {
	if behindNAT {
		guest = slices.DeleteFunc(slices.Clone(guest), linkLocal)
		return append(slices.Clone(pod), familiesMissing(pod, guest)...)
	}
	if len(guest) == 0 {
		return slices.Clone(pod)
	}
	return primaryFirst(append(slices.Clone(guest), familiesMissing(guest, pod)...))
}

// familiesMissing are those addresses of more whose family have has none of.
// Addresses that lead nowhere else do not count.
func familiesMissing(have, more []string) []string {
	var four, six bool
	for _, ip := range have {
		if !linkLocal(ip) {
			four, six = four || isIPv4(ip), six || !isIPv4(ip)
		}
	}
	return slices.DeleteFunc(slices.Clone(more), func(ip string) bool { return isIPv4(ip) && four || !isIPv4(ip) && six })
}

// primaryFirst moves the first IPv4 address to the front, as KubeVirt prefers it.
func primaryFirst(ips []string) []string {
	if i := slices.IndexFunc(ips, isIPv4); i > 0 {
		first := ips[i]
		return slices.Insert(slices.Delete(ips, i, i+1), 0, first)
	}
	return ips
}

func isIPv4(ip string) bool {
	a, err := netip.ParseAddr(ip)
	return err == nil && a.Unmap().Is4()
}

func linkLocal(ip string) bool {
	a, err := netip.ParseAddr(ip)
	return err == nil && a.Unmap().IsLinkLocalUnicast()
}

func setIPs(s *nicStatus, ips []string) {
	s.IP, s.IPs = "", nil
	if len(ips) > 0 {
		s.IP, s.IPs = ips[0], ips
	}
}

// guestOnly are the guest's interfaces that no card of the domain stands for.
func guestOnly(g *GuestInfo, known []nicStatus) []nicStatus {
	var out []nicStatus
	for _, nic := range g.Interfaces {
		if len(out) == maxGuestOnly {
			break
		}
		if nic.MAC == "" || nic.Name == "lo" || strings.Trim(nic.MAC, "0:") == "" {
			continue // loopback
		}
		if slices.ContainsFunc(known, func(s nicStatus) bool { return strings.EqualFold(s.MAC, nic.MAC) }) {
			continue
		}
		s := nicStatus{InterfaceName: nic.Name, MAC: nic.MAC, InfoSource: infoAgent}
		setIPs(&s, primaryFirst(slices.Clone(nic.IPs)))
		out = append(out, s)
	}
	return out
}

// guestOnlyBefore are those the status has.
func guestOnlyBefore(vmi *v1.VirtualMachineInstance) []nicStatus {
	var out []nicStatus
	for i := range vmi.Status.Interfaces {
		if s := &vmi.Status.Interfaces[i]; s.Name == "" && s.InfoSource == infoAgent {
			out = append(out, *s.DeepCopy())
		}
	}
	return out
}
