// SPDX-License-Identifier: Apache-2.0

package xmlspec

import (
	k8sv1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
)

// Topology is the CPU topology that a spec requests. All fields are at least 1.
type Topology struct{ Sockets, Cores, Threads, MaxSockets uint32 }

// Count returns the number of CPUs at start.
func (t Topology) Count() uint64 { return uint64(t.Sockets) * uint64(t.Cores) * uint64(t.Threads) }

// Max returns the maximum number of CPUs, which hotplug can reach.
func (t Topology) Max() uint64 { return uint64(t.MaxSockets) * uint64(t.Cores) * uint64(t.Threads) }

// TopologyOf returns the topology of a spec. Without one, the number of sockets is the CPU limit,
// or else the CPU request, rounded up.
func TopologyOf(s *v1.DomainSpec) Topology {
	t := Topology{}
	if s.CPU != nil {
		t = Topology{s.CPU.Sockets, s.CPU.Cores, s.CPU.Threads, s.CPU.MaxSockets}
	}
	if t.Sockets == 0 && t.Cores == 0 && t.Threads == 0 {
		for _, l := range []k8sv1.ResourceList{s.Resources.Requests, s.Resources.Limits} {
			if q, ok := l[k8sv1.ResourceCPU]; ok && q.Value() > 0 {
				t.Sockets = uint32(min(q.Value(), 1<<16))
			}
		}
	}
	t.Sockets, t.Cores, t.Threads = max(t.Sockets, 1), max(t.Cores, 1), max(t.Threads, 1)
	t.MaxSockets = max(t.MaxSockets, t.Sockets)
	return t
}

// ACPIEnabled reports whether the spec enables ACPI, with the defaults of its architecture.
func ACPIEnabled(vmi *v1.VirtualMachineInstance) bool {
	return ACPI(vmi, vmi.Spec.Architecture != "s390x")
}

// ACPI reports whether the domain has ACPI. usual is the default of the architecture: like
// KubeVirt's API server, a spec that does not mention ACPI has it if that is the default, which it
// is not on s390x.
func ACPI(vmi *v1.VirtualMachineInstance, usual bool) bool {
	f := vmi.Spec.Domain.Features
	if f == nil || f.ACPI.Enabled == nil {
		return usual
	}
	return *f.ACPI.Enabled
}

// WholeBytes returns a quantity in bytes, rounded down.
func WholeBytes(q resource.Quantity) int64 {
	if n, whole := q.AsInt64(); whole {
		return n
	}
	return q.Value() - 1 // Value rounds up
}

// Mebibytes returns a quantity in MiB, rounded to the nearest; a positive one is at least 1.
func Mebibytes(q resource.Quantity) uint64 {
	switch b := WholeBytes(q); {
	case b <= 0:
		return 0
	case b < 1<<20:
		return 1
	default:
		return (uint64(b) + 1<<19) >> 20
	}
}

// GuestMemory returns the quantity that determines the guest's memory and its field path, nil if
// there is none.
func GuestMemory(vmi *v1.VirtualMachineInstance) (*resource.Quantity, string) {
	s := &vmi.Spec.Domain
	if s.Memory != nil && s.Memory.Guest != nil {
		return s.Memory.Guest, "spec.domain.memory.guest"
	}
	if q, ok := s.Resources.Requests[k8sv1.ResourceMemory]; ok {
		return &q, "spec.domain.resources.requests.memory"
	}
	if q, ok := s.Resources.Limits[k8sv1.ResourceMemory]; ok {
		return &q, "spec.domain.resources.limits.memory"
	}
	if s.Memory != nil && s.Memory.Hugepages != nil {
		if q, err := resource.ParseQuantity(s.Memory.Hugepages.PageSize); err == nil {
			return &q, "spec.domain.memory.hugepages.pageSize"
		}
	}
	return nil, ""
}

// DeviceResource returns the key of a device of the spec in facts: the resource, or claim/request.
func DeviceResource(name string, claim *v1.ClaimRequest) string {
	if name != "" || claim == nil {
		return name
	}
	return claim.ClaimName + "/" + claim.RequestName
}
