// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"
)

// application applies an instance type.
type application struct {
	*target
	base       string
	spec       *v1beta1.VirtualMachineInstancetypeSpec
	preference *v1beta1.VirtualMachinePreferenceSpec
	// fields are the conflicts.
	fields []string
}

// apply sets what the instance type defines.
func (a *application) apply() {
	s, d := a.target.Spec, &a.target.Spec.Domain
	if a.spec.NodeSelector != nil {
		s.NodeSelector = maps.Clone(a.spec.NodeSelector)
	}
	if a.spec.SchedulerName != "" {
		s.SchedulerName = a.spec.SchedulerName
	}
	a.cpu()
	a.memory()
	fill(&d.IOThreadsPolicy, a.spec.IOThreadsPolicy)
	fill(&d.IOThreads, a.spec.IOThreads)
	fill(&d.LaunchSecurity, a.spec.LaunchSecurity)
	if len(a.spec.GPUs) > 0 {
		d.Devices.GPUs = a.spec.GPUs
	}
	if len(a.spec.HostDevices) > 0 {
		d.Devices.HostDevices = a.spec.HostDevices
	}
	for key, value := range a.spec.Annotations {
		a.annotate(key, value)
	}
}

// fill sets a field that is unset.
func fill[T any](field **T, value *T) {
	if *field == nil && value != nil {
		*field = value
	}
}

// fillText sets a field that is empty.
func fillText[T ~string](field *T, value T) {
	if *field == "" {
		*field = value
	}
}

// part returns the part of a spec, and creates it first if there is none.
func part[T any](field **T) *T {
	if *field == nil {
		*field = new(T)
	}
	return *field
}

func (a *application) cpu() {
	cpu, given := part(&a.target.Spec.Domain.CPU), a.spec.CPU
	setTopology(cpu, given.Guest, a.preference)
	if given.MaxSockets != nil {
		cpu.MaxSockets = *given.MaxSockets
	}
	if given.Model != nil {
		cpu.Model = *given.Model
	}
	if given.DedicatedCPUPlacement != nil {
		cpu.DedicatedCPUPlacement = *given.DedicatedCPUPlacement
	}
	if given.IsolateEmulatorThread != nil {
		cpu.IsolateEmulatorThread = *given.IsolateEmulatorThread
	}
	fill(&cpu.NUMA, given.NUMA)
	fill(&cpu.Realtime, given.Realtime)
}

func (a *application) memory() {
	memory, given := part(&a.target.Spec.Domain.Memory), a.spec.Memory
	guest := given.Guest.DeepCopy()
	memory.Guest = &guest
	fill(&memory.Hugepages, given.Hugepages)
	fill(&memory.MaxGuest, given.MaxGuest)
	if p := int64(given.OvercommitPercent); p > 0 && p < 100 {
		resources := &a.target.Spec.Domain.Resources
		resources.Requests = maps.Clone(resources.Requests)
		if resources.Requests == nil {
			resources.Requests = corev1.ResourceList{}
		}
		// Whole percents first: the product of a size and 100 could overflow.
		size := guest.Value()
		requested := size/100*(100-p) + size%100*(100-p)/100
		resources.Requests[corev1.ResourceMemory] = *resource.NewQuantity(requested, guest.Format)
	}
}

// spreadRatio is the ratio of a spread topology unless the preference has another.
const spreadRatio = 2

// spread is a topology that is spread over sockets, cores and threads.
type spread struct {
	across v1beta1.SpreadAcross
	ratio  uint32
}

// spreadOf returns how a preference spreads vCPUs.
func spreadOf(p *v1beta1.VirtualMachinePreferenceSpec) spread {
	s := spread{across: v1beta1.SpreadAcrossSocketsCores, ratio: spreadRatio}
	if p.PreferSpreadSocketToCoreRatio != 0 {
		s.ratio = p.PreferSpreadSocketToCoreRatio
	}
	if o := p.CPU.SpreadOptions; o != nil {
		if o.Across != nil {
			s.across = *o.Across
		}
		if o.Ratio != nil && *o.Ratio != 0 {
			s.ratio = *o.Ratio
		}
	}
	return s
}

// topologyOf returns the preferred topology by its current name.
func topologyOf(p *v1beta1.VirtualMachinePreferenceSpec) v1beta1.PreferredCPUTopology {
	if p == nil || p.CPU == nil || p.CPU.PreferredCPUTopology == nil {
		return v1beta1.Sockets
	}
	switch t := *p.CPU.PreferredCPUTopology; t {
	case v1beta1.DeprecatedPreferCores:
		return v1beta1.Cores
	case v1beta1.DeprecatedPreferThreads:
		return v1beta1.Threads
	case v1beta1.DeprecatedPreferSpread:
		return v1beta1.Spread
	case v1beta1.DeprecatedPreferAny:
		return v1beta1.Any
	case v1beta1.DeprecatedPreferSockets:
		return v1beta1.Sockets
	default:
		return t
	}
}

// setTopology sets the number of vCPUs in the preferred topology.
func setTopology(cpu *v1.CPU, vCPUs uint32, p *v1beta1.VirtualMachinePreferenceSpec) {
	cpu.Sockets, cpu.Cores, cpu.Threads = 1, 1, 1
	if vCPUs <= 1 {
		return
	}
	switch topologyOf(p) {
	case v1beta1.Cores:
		cpu.Cores = vCPUs
	case v1beta1.Threads:
		cpu.Threads = vCPUs
	case v1beta1.Spread:
		switch s := spreadOf(p); s.across {
		case v1beta1.SpreadAcrossSocketsCoresThreads:
			cpu.Threads, cpu.Cores, cpu.Sockets = 2, s.ratio, vCPUs/2/s.ratio
		case v1beta1.SpreadAcrossCoresThreads:
			cpu.Threads, cpu.Cores = s.ratio, vCPUs/s.ratio
		default:
			cpu.Cores, cpu.Sockets = s.ratio, vCPUs/s.ratio
		}
	default:
		cpu.Sockets = vCPUs
	}
}
