// SPDX-License-Identifier: Apache-2.0

package status

import (
	"net/netip"
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// KubeVirt's names for the sources of an interface's status.
const (
	infoDomain = "domain"
	infoMultus = "multus-status"
	infoAgent  = "guest-agent"
)

const (
	// sriovAlias begins the alias of a host device that is an interface of the spec.
	sriovAlias = "sriov-"
	// maxGuestOnly is the maximum number of reported interfaces that only the guest knows.
	maxGuestOnly = 10
)

// nicStatus is one entry of status.interfaces.
type nicStatus = v1.VirtualMachineInstanceNetworkInterface

// Interfaces returns the interface statuses of a running VMI: name, hardware address, queues
// and link state from the domain, addresses from the Pod's link and the guest agent, all else
// from the present status. The interface of the Pod network is first; at most ten that only
// the guest knows are last. Without a report of the agent its last one stays.
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
			out = append(out, old) // bound without an interface in the domain
		}
	}
	if i := slices.IndexFunc(out, func(s nicStatus) bool { return primary != "" && s.Name == primary }); i > 0 {
		first := out[i]
		out = slices.Insert(slices.Delete(out, i, i+1), 0, first)
	}
	reported := o.reported()
	if reported == nil {
		return append(out, guestOnlyBefore(vmi)...)
	}
	return append(out, guestOnly(reported, out)...)
}

// domainInterfaces returns the interfaces of the domain, in its order, with their addresses.
func domainInterfaces(vmi *v1.VirtualMachineInstance, o Observation) []nicStatus {
	var out []nicStatus
	live := o.live()
	if live == nil || live.Devices == nil {
		return nil
	}
	for i := range live.Devices.Interfaces {
		nic := &live.Devices.Interfaces[i]
		if name := xmlspec.NameOf(nic.Alias); name != "" {
			s := statusBefore(vmi, name)
			cardStatus(&s, nic)
			out = append(out, addressed(vmi, o, s))
		}
	}
	for i := range live.Devices.Hostdevs {
		name, sriov := strings.CutPrefix(xmlspec.NameOf(live.Devices.Hostdevs[i].Alias), sriovAlias)
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

// statusBefore returns the present status of an interface; only its name without one.
func statusBefore(vmi *v1.VirtualMachineInstance, name string) nicStatus {
	for i := range vmi.Status.Interfaces {
		if vmi.Status.Interfaces[i].Name == name {
			return *vmi.Status.Interfaces[i].DeepCopy()
		}
	}
	return nicStatus{Name: name}
}

// cardStatus sets the fields that come from the domain's interface.
func cardStatus(s *nicStatus, nic *libvirtxml.DomainInterface) {
	if nic.MAC != nil {
		s.MAC = nic.MAC.Address
	}
	s.QueueCount = 1
	if nic.Driver != nil && nic.Driver.Queues > 0 {
		s.QueueCount = int32(nic.Driver.Queues)
	}
	s.LinkState = xmlspec.LinkState(nic)
}

// functionMAC returns the hardware address of an SR-IOV interface, which the domain does not
// have.
func functionMAC(vmi *v1.VirtualMachineInstance, o Observation, name string) string {
	for _, in := range vmi.Spec.Domain.Devices.Interfaces {
		if in.Name == name && in.MacAddress != "" {
			return in.MacAddress
		}
	}
	return o.Facts.Links[name].MAC
}

// primaryNetwork returns the name of the network that carries the Pod's address.
func primaryNetwork(vmi *v1.VirtualMachineInstance) string {
	for _, n := range vmi.Spec.Networks {
		if n.Pod != nil || n.Multus != nil && n.Multus.Default {
			return n.Name
		}
	}
	return ""
}

// addressed adds the addresses of an interface of the domain and their sources.
func addressed(vmi *v1.VirtualMachineInstance, o Observation, s nicStatus) nicStatus {
	byAgent, byMultus := strings.Contains(s.InfoSource, infoAgent), strings.Contains(s.InfoSource, infoMultus)
	pod, known := o.Facts.Links[s.Name].IPs, o.Facts.Links[s.Name].IPs != nil
	behindNAT := masqueraded(vmi, s.Name)
	if !known && (!byAgent || behindNAT) {
		pod = s.IPs
	}
	if g := o.reported(); g != nil {
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

// masqueraded reports whether the guest's own address is hidden behind the Pod's.
func masqueraded(vmi *v1.VirtualMachineInstance, name string) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Interfaces, func(in v1.Interface) bool {
		return in.Name == name && in.Masquerade != nil
	})
}

// guestCard returns the guest's interface with that hardware address: the first that has
// IP addresses, since a bridge inside the guest has the same hardware address; else the
// first.
func guestCard(g *guestagent.Info, mac string) *guestagent.Interface {
	var first *guestagent.Interface
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

// mergeIPs merges the addresses of the Pod's link and of the guest. Behind NAT the Pod's
// addresses lead to the guest; else the guest's do, if it reports any. The other list adds
// the missing family.
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

// familiesMissing returns the addresses in more of a family that have lacks. Link-local
// addresses do not count.
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

// guestOnly returns the guest's interfaces that are not interfaces of the domain.
func guestOnly(g *guestagent.Info, known []nicStatus) []nicStatus {
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

// guestOnlyBefore returns those in the present status.
func guestOnlyBefore(vmi *v1.VirtualMachineInstance) []nicStatus {
	var out []nicStatus
	for i := range vmi.Status.Interfaces {
		if s := &vmi.Status.Interfaces[i]; s.Name == "" && s.InfoSource == infoAgent {
			out = append(out, *s.DeepCopy())
		}
	}
	return out
}
