// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"time"
)

// Domain is the counters of one running domain, since the start of its process.
type Domain struct {
	// Name and UUID identify the domain.
	Name, UUID string
	// CPUTime is the time that all its CPUs have run, VCPUs has the time of each.
	CPUTime time.Duration
	VCPUs   []VCPU
	// Memory has the statistics of the balloon device.
	Memory Memory
	// Disks and Interfaces are in the order of the domain.
	Disks      []Disk
	Interfaces []Interface
}

// VCPU is the counters of one virtual CPU.
type VCPU struct {
	// Time is how long it has run, Wait how long it has waited for a CPU of the host.
	Time, Wait time.Duration
}

// Memory is the statistics of a domain's memory, in bytes; zero if unknown.
type Memory struct {
	// Current is the memory of the guest, Resident the memory that its process uses on
	// the host.
	Current, Resident uint64
	// Available, Unused and Usable are the guest's own view.
	Available, Unused, Usable uint64
	// SwappedIn and SwappedOut are the amounts that the guest has swapped.
	SwappedIn, SwappedOut uint64
}

// Disk is the counters of a disk.
type Disk struct {
	// Target is the disk's target, vda; Alias the name in the spec, if it has one.
	Target, Alias string
	// ReadRequests and the fields after it count requests and bytes.
	ReadRequests, ReadBytes, WriteRequests, WriteBytes, FlushRequests uint64
	// Capacity is the size that the guest sees, Allocation the size on the host.
	Capacity, Allocation uint64
}

// Interface is the counters of a network interface.
type Interface struct {
	// Device is the host's device, Alias the name in the spec, if it has one.
	Device, Alias string
	// ReceivedBytes and the fields after it count the traffic as the guest sees it.
	ReceivedBytes, ReceivedPackets, ReceiveErrors, ReceiveDrops uint64
	SentBytes, SentPackets, SendErrors, SendDrops               uint64
}
