// SPDX-License-Identifier: Apache-2.0

package liveupdate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// blockedCPU returns why the number of sockets cannot change live; empty if it can, or does not change.
func blockedCPU(has *v1.CPU, current *v1.VirtualMachineInstanceSpec) string {
	want := current.Domain.CPU
	switch {
	case has == nil || want == nil || has.Sockets == want.Sockets:
	case current.Architecture == "arm64":
		return "ARM doesn't support CPU hotplug"
	case has.MaxSockets != 0 && want.Sockets > has.MaxSockets:
		return "CPU sockets updated in template spec to a value higher than what's available"
	case want.Sockets < has.Sockets:
		return "Reduction of CPU socket count requires a restart"
	}
	return ""
}

// memoryChange returns the sizes of a memory update; ok is false if there is none.
func memoryChange(vmi *v1.VirtualMachineInstance, current *v1.VirtualMachineInstanceSpec) (has, want *resource.Quantity, ok bool) {
	if m := current.Domain.Memory; m == nil || m.Guest == nil || vmi.Spec.Domain.Memory == nil || vmi.Spec.Domain.Memory.Guest == nil ||
		vmi.Status.Memory == nil || vmi.Status.Memory.GuestCurrent == nil {
		return nil, nil, false
	}
	has, want = vmi.Spec.Domain.Memory.Guest, current.Domain.Memory.Guest
	return has, want, true
}

// blockedMemory returns why the memory cannot change live; empty if it can, or does not change.
func blockedMemory(vmi *v1.VirtualMachineInstance, current *v1.VirtualMachineInstanceSpec) string {
	const changed = "memory updated in template spec"
	has, want, ok := memoryChange(vmi, current)
	if !ok {
		return ""
	}
	if c := vmistatus.Condition(vmi, v1.VirtualMachineInstanceMemoryChange); c != nil && c.Status == corev1.ConditionFalse {
		return changed + ". Memory-hotplug failed and is not available for this VM configuration"
	}
	most := vmi.Spec.Domain.Memory.MaxGuest
	switch {
	case has.Equal(*want):
		return ""
	case !vmistatus.IsTrue(vmi, v1.VirtualMachineInstanceIsMigratable):
		return changed + ". Memory-hotplug is only available for migratable VMs"
	case most == nil:
		return changed + ". Memory-hotplug is not available for this VM configuration"
	}
	if why := unsupportedSize(current, want, most); why != "" {
		return "memory hotplug not supported, " + why
	}
	if boot := vmi.Status.Memory.GuestAtBoot; boot != nil && want.Cmp(*boot) < 0 {
		return changed + " to a value lower than what the VM started with"
	}
	return ""
}

// unsupportedSize returns why memory of a spec cannot change to a size; empty if it can.
func unsupportedSize(s *v1.VirtualMachineInstanceSpec, want, most *resource.Quantity) string {
	align := int64(2 << 20)
	if h := s.Domain.Memory.Hugepages; h != nil && h.PageSize == "1Gi" {
		align = 1 << 30
	}
	switch {
	case tiesMemory(s.Domain.CPU) != "":
		return tiesMemory(s.Domain.CPU)
	case s.Domain.LaunchSecurity != nil:
		return "spec.domain.launchSecurity is set"
	case want.Cmp(*most) > 0:
		return fmt.Sprintf("spec.domain.memory.guest %s is greater than the maximum %s", want, most)
	case want.Value()%align != 0 || most.Value()%align != 0:
		return fmt.Sprintf("spec.domain.memory.guest %s and its maximum %s must be multiples of %dMi", want, most, align>>20)
	case s.Architecture != "" && s.Architecture != "amd64":
		return "spec.architecture is not amd64"
	case want.Value() < 1<<30:
		return fmt.Sprintf("spec.domain.memory.guest %s is less than 1Gi", want)
	}
	return ""
}

// tiesMemory returns why a CPU ties the memory of the guest to a place; empty if it does not.
func tiesMemory(cpu *v1.CPU) string {
	switch {
	case cpu == nil:
		return ""
	case cpu.Realtime != nil:
		return "spec.domain.cpu.realtime is set"
	case cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil:
		return "spec.domain.cpu.numa.guestMappingPassthrough is set"
	default:
		return ""
	}
}
