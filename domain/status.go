// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// Phase returns the phase of a VirtualMachineInstance whose domain is in that
// state; nil means there is no domain. A final phase never changes. States that
// say nothing about the guest's fate leave the phase as it is.
func Phase(vmi *v1.VirtualMachineInstance, s *State) v1.VirtualMachineInstancePhase {
	now := vmi.Status.Phase
	switch {
	case vmi.IsFinal():
		return now
	case s == nil:
		return phaseWithoutDomain(now)
	}
	switch s.Status {
	case StatusRunning, StatusBlocked, StatusPMSuspended:
		return v1.Running
	case StatusPaused:
		if s.Reason == ReasonPostcopyFailed {
			return v1.Failed
		}
		return v1.Running
	case StatusShutoff, StatusCrashed:
		return phaseWhenDown(vmi, s.Reason)
	}
	return now
}

// phaseWithoutDomain: a guest not started yet is Scheduled. Where a domain
// should be and is not, only whoever owns the guest can tell what happened.
func phaseWithoutDomain(now v1.VirtualMachineInstancePhase) v1.VirtualMachineInstancePhase {
	if now == v1.Running || now == v1.WaitingForSync {
		return now
	}
	return v1.Scheduled
}

func phaseWhenDown(vmi *v1.VirtualMachineInstance, r Reason) v1.VirtualMachineInstancePhase {
	switch r {
	case ReasonCrashed, ReasonPanicked:
		return v1.Failed
	case ReasonShutdown, ReasonSaved, ReasonFromSnapshot:
		return v1.Succeeded
	case ReasonDestroyed:
		// A guest with ACPI and time to shut down that had to be killed has
		// failed; without, killing is the ordinary way to stop it.
		grace := vmi.Spec.TerminationGracePeriodSeconds
		if acpiEnabled(vmi) && (grace == nil || *grace != 0) {
			return v1.Failed
		}
		m := vmi.Status.MigrationState
		if m != nil && m.Failed && m.Mode == v1.MigrationPostCopy {
			return v1.Failed
		}
		return v1.Succeeded
	}
	return vmi.Status.Phase
}

// Where the fields of an interface's status come from, as KubeVirt writes it.
const (
	infoDomain = "domain"
	infoMultus = "multus-status"
	infoAgent  = "guest-agent"
)

// Interfaces returns the interface statuses of a running domain: name, hardware
// address, queues and link from the domain, everything else as the status has
// it. The interface of the Pod network comes first. live may be nil.
func Interfaces(vmi *v1.VirtualMachineInstance, live *libvirtxml.Domain) []v1.VirtualMachineInstanceNetworkInterface {
	var out []v1.VirtualMachineInstanceNetworkInterface
	seen := map[string]bool{}
	if live != nil && live.Devices != nil {
		for i := range live.Devices.Interfaces {
			nic := &live.Devices.Interfaces[i]
			name := nameOf(nic.Alias)
			if name == "" {
				continue
			}
			seen[name] = true
			out = append(out, interfaceStatus(vmi, name, nic))
		}
	}
	for _, old := range vmi.Status.Interfaces {
		if !seen[old.Name] && strings.Contains(old.InfoSource, infoMultus) {
			old.InfoSource = infoMultus
			out = append(out, old)
		}
	}
	if primary := primaryNetwork(vmi); primary != "" {
		if i := slices.IndexFunc(out, func(s v1.VirtualMachineInstanceNetworkInterface) bool { return s.Name == primary }); i > 0 {
			first := out[i]
			out = slices.Insert(slices.Delete(out, i, i+1), 0, first)
		}
	}
	return out
}

func interfaceStatus(vmi *v1.VirtualMachineInstance, name string, nic *libvirtxml.DomainInterface) v1.VirtualMachineInstanceNetworkInterface {
	s := v1.VirtualMachineInstanceNetworkInterface{}
	for i := range vmi.Status.Interfaces {
		if vmi.Status.Interfaces[i].Name == name {
			s = *vmi.Status.Interfaces[i].DeepCopy()
		}
	}
	sources := []string{infoDomain}
	for _, more := range []string{infoAgent, infoMultus} {
		if strings.Contains(s.InfoSource, more) {
			sources = append(sources, more)
		}
	}
	s.Name, s.InfoSource = name, strings.Join(sources, ", ")
	if nic.MAC != nil {
		s.MAC = nic.MAC.Address
	}
	s.QueueCount = 1
	if nic.Driver != nil && nic.Driver.Queues > 0 {
		s.QueueCount = int32(nic.Driver.Queues)
	}
	s.LinkState = linkState(nic)
	return s
}

// linkState returns up or down; a card without a link element is up.
func linkState(nic *libvirtxml.DomainInterface) string {
	if nic.Link != nil && nic.Link.State == "down" {
		return "down"
	}
	return "up"
}

func primaryNetwork(vmi *v1.VirtualMachineInstance) string {
	for _, n := range vmi.Spec.Networks {
		if n.Pod != nil || n.Multus != nil && n.Multus.Default {
			return n.Name
		}
	}
	return ""
}

// VolumeStatus returns the volume statuses with the target of each disk as the
// running domain has it, sorted by name. Entries the domain does not know stay
// as they are. live may be nil.
func VolumeStatus(vmi *v1.VirtualMachineInstance, live *libvirtxml.Domain) []v1.VolumeStatus {
	targets := map[string]string{}
	if live != nil && live.Devices != nil {
		for i := range live.Devices.Disks {
			d := &live.Devices.Disks[i]
			if name := nameOf(d.Alias); name != "" && d.Source != nil && d.Target != nil {
				targets[name] = d.Target.Dev
			}
		}
	}
	var out []v1.VolumeStatus
	for i := range vmi.Status.VolumeStatus {
		s := *vmi.Status.VolumeStatus[i].DeepCopy()
		if t := targets[s.Name]; t != "" {
			s.Target = t
		}
		delete(targets, s.Name)
		out = append(out, s)
	}
	for name, target := range targets {
		out = append(out, v1.VolumeStatus{Name: name, Target: target})
	}
	slices.SortFunc(out, func(a, b v1.VolumeStatus) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// AgentConnected tells whether the guest agent of a running domain answers.
func AgentConnected(live *libvirtxml.Domain) bool {
	if live == nil || live.Devices == nil {
		return false
	}
	return slices.ContainsFunc(live.Devices.Channels, func(c libvirtxml.DomainChannel) bool {
		return c.Target != nil && c.Target.VirtIO != nil &&
			c.Target.VirtIO.Name == AgentChannel && c.Target.VirtIO.State == "connected"
	})
}

// Emulated tells whether the domain runs in software emulation (KubeVirt:
// condition SoftwareEmulation).
func Emulated(live *libvirtxml.Domain) bool { return live != nil && live.Type == "qemu" }
