// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"
	"strconv"

	v1 "kubevirt.io/api/core/v1"
)

const (
	tscFrequencyLabel = v1.CPUTimerLabel + "tsc-frequency"
	// amd64 is the architecture of guests that name none, and the only one with a
	// time stamp counter.
	amd64 = "amd64"
)

// TSCNeed is how much a guest depends on the frequency of its time stamp counter.
type TSCNeed int

const (
	// TSCNotRequired: any frequency will do.
	TSCNotRequired TSCNeed = iota
	// TSCForMigration: without a known frequency the guest starts and cannot be
	// migrated.
	TSCForMigration
	// TSCForBoot: without a known frequency the guest cannot start.
	TSCForBoot
)

// String names the need in words.
func (n TSCNeed) String() string {
	switch n {
	case TSCForMigration:
		return "required for migration"
	case TSCForBoot:
		return "required for boot"
	default:
		return "not required"
	}
}

// TSCRequirement tells how much the guest depends on the frequency of its time
// stamp counter: to boot if it requires or forces the CPU feature invtsc, to
// migrate if it has Hyper-V reenlightenment. Guests of another architecture than
// amd64 do not depend on it. (specs: VMI reconciliation 6)
func TSCRequirement(vmi *v1.VirtualMachineInstance) TSCNeed {
	if arch := vmi.Spec.Architecture; arch != "" && arch != amd64 {
		return TSCNotRequired
	}
	cpu, features := vmi.Spec.Domain.CPU, vmi.Spec.Domain.Features
	if cpu != nil && slices.ContainsFunc(cpu.Features, func(f v1.CPUFeature) bool {
		return f.Name == "invtsc" && (f.Policy == "require" || f.Policy == "force")
	}) {
		return TSCForBoot
	}
	if features == nil || features.Hyperv == nil || features.Hyperv.Reenlightenment == nil {
		return TSCNotRequired
	}
	if on := features.Hyperv.Reenlightenment.Enabled; on != nil && *on {
		return TSCForMigration
	}
	return TSCNotRequired
}

// Node is what hints are made of.
type Node struct {
	// Name is the Node's.
	Name string
	// Labels are the Node's; cpu-timer.node.kubevirt.io/tsc-frequency is read.
	Labels map[string]string
	// Schedulable says that guests can be placed there: its label
	// kubevirt.io/schedulable is true.
	Schedulable bool
	// RunsGuests says that guests run there, and may come from there.
	RunsGuests bool
}

// Hints returns status.topologyHints of a guest: the frequency of the time stamp
// counter that every node can give it, which is the lowest of those nodes that have
// one and are schedulable or run guests; or minimum, the cluster's configured
// minimumClusterTSCFrequency, unless it is nil. Both are nil if the guest needs none.
//
// That there is none to be had is an error. What it means depends on
// [TSCRequirement]: a guest that needs it to boot must wait.
func Hints(vmi *v1.VirtualMachineInstance, nodes []Node, minimum *int64) (*v1.TopologyHints, error) {
	need := TSCRequirement(vmi)
	if need == TSCNotRequired {
		return nil, nil
	}
	if minimum != nil {
		if *minimum <= 0 {
			return nil, fmt.Errorf("vmi: minimumClusterTSCFrequency is %d; set it to a frequency in Hz, or remove it", *minimum)
		}
		frequency := *minimum
		return &v1.TopologyHints{TSCFrequency: &frequency}, nil
	}
	var lowest int64
	for _, n := range nodes {
		if f := n.tscFrequency(); f > 0 && (n.Schedulable || n.RunsGuests) && (lowest == 0 || f < lowest) {
			lowest = f
		}
	}
	if lowest == 0 {
		return nil, fmt.Errorf("vmi: guest %s/%s: a TSC frequency is %s, and no node that is schedulable or runs guests has label %s; "+
			"use nodes with an invariant TSC, or set minimumClusterTSCFrequency", vmi.Namespace, vmi.Name, need, tscFrequencyLabel)
	}
	return &v1.TopologyHints{TSCFrequency: &lowest}, nil
}

// tscFrequency is the node's own in Hz; 0 if it has none or it cannot be read.
func (n Node) tscFrequency() int64 {
	f, err := strconv.ParseInt(n.Labels[tscFrequencyLabel], 10, 64)
	if err != nil || f < 0 {
		return 0
	}
	return f
}
