// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// Phase returns the phase of a VirtualMachineInstance whose domain is in that state; nil
// means that there is no domain. A final phase never changes, and a state without evidence
// leaves the phase as it is.
func Phase(vmi *v1.VirtualMachineInstance, s *domain.State) v1.VirtualMachineInstancePhase {
	now := vmi.Status.Phase
	switch {
	case vmi.IsFinal():
		return now
	case s == nil:
		return phaseWithoutDomain(now)
	}
	switch s.Status {
	case domain.StatusRunning, domain.StatusBlocked, domain.StatusPMSuspended:
		return v1.Running
	case domain.StatusPaused:
		if s.Reason == domain.ReasonPostcopyFailed {
			return v1.Failed
		}
		return v1.Running
	case domain.StatusShutoff, domain.StatusCrashed:
		return phaseWhenDown(vmi, s.Reason)
	}
	return now
}

// phaseWithoutDomain returns Scheduled for a VMI that has not been started. Where a domain is
// missing that should exist, only the owner of the VMI can decide.
func phaseWithoutDomain(now v1.VirtualMachineInstancePhase) v1.VirtualMachineInstancePhase {
	if now == v1.Running || now == v1.WaitingForSync {
		return now
	}
	return v1.Scheduled
}

func phaseWhenDown(vmi *v1.VirtualMachineInstance, r domain.Reason) v1.VirtualMachineInstancePhase {
	switch r {
	case domain.ReasonCrashed, domain.ReasonPanicked:
		return v1.Failed
	case domain.ReasonShutdown, domain.ReasonSaved, domain.ReasonFromSnapshot:
		return v1.Succeeded
	case domain.ReasonDestroyed:
		// A VMI with ACPI and a grace period that had to be force-stopped has failed;
		// without them that is the ordinary way to stop it.
		grace := vmi.Spec.TerminationGracePeriodSeconds
		if xmlspec.ACPIEnabled(vmi) && (grace == nil || *grace != 0) {
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

// AgentConnected reports whether the guest agent of a running domain is connected.
func AgentConnected(live *libvirtxml.Domain) bool {
	if live == nil || live.Devices == nil {
		return false
	}
	return slices.ContainsFunc(live.Devices.Channels, func(c libvirtxml.DomainChannel) bool {
		return c.Target != nil && c.Target.VirtIO != nil &&
			c.Target.VirtIO.Name == convert.AgentChannel && c.Target.VirtIO.State == "connected"
	})
}

// Emulated reports whether the domain runs with software emulation (KubeVirt: condition
// SoftwareEmulation).
func Emulated(live *libvirtxml.Domain) bool { return live != nil && live.Type == "qemu" }
