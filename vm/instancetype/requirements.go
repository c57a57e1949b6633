// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"
)

// Unmet is one requirement of a preference that is not met.
type Unmet struct {
	// Fields are the fields to change.
	Fields []string
	// Message says what is required and what there is.
	Message string
}

// Check returns the requirements of the preference that a VM does not meet, and the vCPUs that its preference cannot
// spread. The spec is that of the template, without the instance type applied.
func Check(spec *v1.VirtualMachineInstanceSpec, d Definitions) (unmet []Unmet) {
	if d.Preference == nil {
		return nil
	}
	add := func(u *Unmet) {
		if u != nil {
			unmet = append(unmet, *u)
		}
	}
	add(checkSpread(d))
	r := d.Preference.Requirements
	if r == nil {
		return unmet
	}
	if r.CPU != nil {
		add(checkCPU(spec, d, r.CPU.Guest))
	}
	if r.Memory != nil {
		add(checkMemory(spec, d, r.Memory))
	}
	if r.Architecture != nil && spec.Architecture != *r.Architecture && !(spec.Architecture == "" && preferred(d) == *r.Architecture) {
		add(&Unmet{Fields: []string{templateSpec + ".architecture"},
			Message: fmt.Sprintf("preference requires architecture %s but %s is being requested", *r.Architecture, spec.Architecture)})
	}
	return unmet
}

const templateSpec = "spec.template.spec"

// preferred returns the architecture that the preference gives to a VM without one.
func preferred(d Definitions) string {
	if a := d.Preference.PreferredArchitecture; a != nil {
		return *a
	}
	return ""
}

// checkSpread requires that the vCPUs can be spread without remainder.
func checkSpread(d Definitions) *Unmet {
	if d.Instancetype == nil || topologyOf(d.Preference) != v1beta1.Spread || d.Instancetype.CPU.Guest <= 1 {
		return nil
	}
	s := spreadOf(d.Preference)
	divisor := uint64(s.ratio)
	if s.across == v1beta1.SpreadAcrossSocketsCoresThreads {
		divisor *= 2
	}
	if uint64(d.Instancetype.CPU.Guest)%divisor == 0 {
		return nil
	}
	return &Unmet{Fields: []string{"spec.instancetype", "spec.preference"},
		Message: fmt.Sprintf("%d vCPUs provided by the instance type are not divisible by %d, as the preference spreads them across %s with a ratio of %d; "+
			"use an instance type with a multiple of %d vCPUs, or another preference", d.Instancetype.CPU.Guest, divisor, s.across, s.ratio, divisor)}
}

func checkCPU(spec *v1.VirtualMachineInstanceSpec, d Definitions, required uint32) *Unmet {
	if d.Instancetype != nil {
		if has := d.Instancetype.CPU.Guest; has < required {
			return &Unmet{Fields: []string{"spec.instancetype"},
				Message: fmt.Sprintf("insufficient CPU resources of %d vCPU provided by instance type, preference requires %d vCPU", has, required)}
		}
		return nil
	}
	at := templateSpec + ".domain.cpu"
	cpu := spec.Domain.CPU
	if cpu == nil {
		return &Unmet{Fields: []string{at}, Message: fmt.Sprintf("no CPU resources provided by VirtualMachine, preference requires %d vCPU", required)}
	}
	has, as, fields := provided(cpu, d.Preference, at)
	if has >= uint64(required) {
		return nil
	}
	return &Unmet{Fields: fields, Message: fmt.Sprintf("insufficient CPU resources of %d vCPU provided by VirtualMachine, preference requires %d vCPU provided as %s", has, required, as)}
}

// provided returns the vCPUs of a VM that count in the preferred topology, its name, and the fields that define them.
func provided(cpu *v1.CPU, p *v1beta1.VirtualMachinePreferenceSpec, at string) (count uint64, as string, fields []string) {
	sockets, cores, threads := uint64(cpu.Sockets), uint64(cpu.Cores), uint64(cpu.Threads)
	switch topologyOf(p) {
	case v1beta1.Cores:
		return cores, "cores", []string{at + ".cores"}
	case v1beta1.Threads:
		return threads, "threads", []string{at + ".threads"}
	case v1beta1.Spread:
		switch s := spreadOf(p); s.across {
		case v1beta1.SpreadAcrossSocketsCoresThreads:
			return sockets * cores * threads, "SocketsCoresThreads", []string{at + ".sockets", at + ".cores", at + ".threads"}
		case v1beta1.SpreadAcrossCoresThreads:
			return cores * threads, "CoresThreads", []string{at + ".cores", at + ".threads"}
		default:
			return sockets * cores, "SocketsCores", []string{at + ".sockets", at + ".cores"}
		}
	case v1beta1.Any:
		return max(sockets, 1) * max(cores, 1) * max(threads, 1), "any", []string{at + ".sockets", at + ".cores", at + ".threads"}
	default:
		return sockets, "sockets", []string{at + ".sockets"}
	}
}

func checkMemory(spec *v1.VirtualMachineInstanceSpec, d Definitions, required *v1beta1.MemoryPreferenceRequirement) *Unmet {
	if d.Instancetype != nil {
		if has := d.Instancetype.Memory.Guest; has.Cmp(required.Guest) < 0 {
			return &Unmet{Fields: []string{"spec.instancetype"},
				Message: fmt.Sprintf("insufficient Memory resources of %s provided by instance type, preference requires %s", has.String(), required.Guest.String())}
		}
		return nil
	}
	at := templateSpec + ".domain.memory"
	memory := spec.Domain.Memory
	if memory == nil || memory.Guest == nil {
		return &Unmet{Fields: []string{at}, Message: fmt.Sprintf("no Memory resources provided by VirtualMachine, preference requires %s", required.Guest.String())}
	}
	if memory.Guest.Cmp(required.Guest) >= 0 {
		return nil
	}
	return &Unmet{Fields: []string{at + ".guest"},
		Message: fmt.Sprintf("insufficient Memory resources of %s provided by VirtualMachine, preference requires %s", memory.Guest.String(), required.Guest.String())}
}
