// SPDX-License-Identifier: Apache-2.0

package domain

import (
	v1 "kubevirt.io/api/core/v1"
)

// unsupportedField is a field that no pass understands, and how to see that it
// is in use.
type unsupportedField struct {
	field  string
	used   func(*v1.VirtualMachineInstanceSpec) bool
	remedy string
}

// unsupportedFields lists what would change the guest and is not converted yet.
// Fields of Pods, probes and schedulers are not the domain's and not listed.
var unsupportedFields = []unsupportedField{
	{specDomain + "launchSecurity", func(s *v1.VirtualMachineInstanceSpec) bool { return s.Domain.LaunchSecurity != nil }, "remove it"},
	{specDomain + "ioThreadsPolicy", func(s *v1.VirtualMachineInstanceSpec) bool { return s.Domain.IOThreadsPolicy != nil }, "remove it"},
	{specDomain + "ioThreads", func(s *v1.VirtualMachineInstanceSpec) bool { return s.Domain.IOThreads != nil }, "remove it"},
	{specDomain + "memory.hugepages", func(s *v1.VirtualMachineInstanceSpec) bool {
		return s.Domain.Memory != nil && s.Domain.Memory.Hugepages != nil
	}, "remove it"},
	{specDomain + "memory.maxGuest", func(s *v1.VirtualMachineInstanceSpec) bool {
		m := s.Domain.Memory
		return m != nil && m.MaxGuest != nil && (m.Guest == nil || m.MaxGuest.Cmp(*m.Guest) != 0)
	}, "memory cannot be added later: leave it out, or set it to memory.guest"},
	{specDomain + "cpu.dedicatedCpuPlacement", func(s *v1.VirtualMachineInstanceSpec) bool {
		return s.Domain.CPU != nil && s.Domain.CPU.DedicatedCPUPlacement
	}, "remove it"},
	{specDomain + "cpu.isolateEmulatorThread", func(s *v1.VirtualMachineInstanceSpec) bool {
		return s.Domain.CPU != nil && s.Domain.CPU.IsolateEmulatorThread
	}, "remove it"},
	{specDomain + "cpu.numa", func(s *v1.VirtualMachineInstanceSpec) bool { return s.Domain.CPU != nil && s.Domain.CPU.NUMA != nil }, "remove it"},
	{specDomain + "cpu.realtime", func(s *v1.VirtualMachineInstanceSpec) bool {
		return s.Domain.CPU != nil && s.Domain.CPU.Realtime != nil
	}, "remove it"},
	{specDomain + "firmware.bootloader.efi", func(s *v1.VirtualMachineInstanceSpec) bool {
		fw := s.Domain.Firmware
		return fw != nil && fw.Bootloader != nil && fw.Bootloader.EFI != nil
	}, "boot by BIOS or from a kernel"},
	{specDomain + "firmware.acpi", func(s *v1.VirtualMachineInstanceSpec) bool {
		return s.Domain.Firmware != nil && s.Domain.Firmware.ACPI != nil
	}, "remove it"},
}

// supported refuses what no pass understands.
func supported(c *Conversion) error {
	for _, u := range unsupportedFields {
		if u.used(&c.VMI.Spec) {
			return c.Unsupported(u.field, u.remedy)
		}
	}
	return nil
}
