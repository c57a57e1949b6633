// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"slices"

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
