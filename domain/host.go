// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"maps"
	"slices"
)

// Cell is one NUMA node of the host (libvirt: capabilities, topology, cell).
type Cell struct {
	// ID is the host's number of the node.
	ID uint `json:"id"`
	// MemoryKiB is the memory of the node.
	MemoryKiB uint64 `json:"memoryKiB"`
	// CPUs are the threads of the node.
	CPUs []HostCPU `json:"cpus"`
	// HugepagesKiB lists the sizes of the huge pages the node has.
	HugepagesKiB []uint64 `json:"hugepagesKiB"`
	// Distances holds the distance to each other node by its ID.
	Distances map[uint]uint `json:"distances"`
}

// HostCPU is one thread of the host.
type HostCPU struct {
	// ID is the host's number of the thread.
	ID uint `json:"id"`
	// Core is the number of its core.
	Core uint `json:"core"`
	// Socket is the number of its socket.
	Socket uint `json:"socket"`
}

// Host describes a node's hypervisor.
type Host struct {
	// Name is the node's host name as the hypervisor sees it.
	Name string
	// Arch is x86_64, aarch64 or s390x.
	Arch string
	// Hypervisor is its kind: QEMU or TEST.
	Hypervisor string
	// Version is the hypervisor's, LibraryVersion the daemon's, as major.minor.release.
	Version, LibraryVersion string
	// KVM says that hardware virtualization is usable.
	KVM bool
	// KVMReason is the evidence for KVM.
	KVMReason string
	// Emulator is the path of the emulator binary; empty if there is none.
	Emulator string
	// CPUs is the number of host CPUs, MemoryBytes the host's memory.
	CPUs        int
	MemoryBytes uint64
	// Cells is the NUMA topology, in ascending order of ID; empty if the hypervisor does
	// not report it.
	Cells []Cell
}

// Clone returns a copy that shares nothing with h.
func (h Host) Clone() Host {
	h.Cells = slices.Clone(h.Cells)
	for i := range h.Cells {
		c := &h.Cells[i]
		c.CPUs, c.HugepagesKiB, c.Distances = slices.Clone(c.CPUs), slices.Clone(c.HugepagesKiB), maps.Clone(c.Distances)
	}
	return h
}

// HostOfDomain is an ability of a hypervisor that consists of many, each with the domain of one VMI:
// they may differ from each other, and from that of the node.
type HostOfDomain interface {
	// HostOf describes the hypervisor that has the domain of that name, or is to start it; see
	// [Hypervisor].Host. Whether KVM is usable is that of now: it can become so. Without such a
	// hypervisor the error wraps ErrNotFound and [ErrNoHypervisor].
	HostOf(ctx context.Context, name string) (Host, error)
}
