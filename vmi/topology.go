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
	// amd64 is the default architecture of VMIs, and the only one with a time stamp
	// counter (TSC).
	amd64 = "amd64"
)

// TSCNeed is how much a VMI depends on the TSC frequency.
type TSCNeed int

const (
	// TSCNotRequired: any frequency is suitable.
	TSCNotRequired TSCNeed = iota
	// TSCForMigration: without a known frequency the VMI starts, but is not
	// migratable.
	TSCForMigration
	// TSCForBoot: without a known frequency the VMI cannot start.
	TSCForBoot
)

// String returns the need in words.
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

// TSCRequirement returns how much the VMI depends on the TSC frequency: to boot if it
// requires or forces the CPU feature invtsc, to migrate if it has Hyper-V
// reenlightenment. VMIs of another architecture than amd64 do not depend on it.
// (specs: VMI reconciliation 6)
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

// Node is the input of hints about one node.
type Node struct {
	// Name is the name of the Node.
	Name string
	// Labels are those of the Node; cpu-timer.node.kubevirt.io/tsc-frequency is read.
	Labels map[string]string
	// Schedulable is true if VMIs can be scheduled to the node: its label
	// kubevirt.io/schedulable is true.
	Schedulable bool
	// RunsVMIs is true if the node runs VMIs, which may migrate from it.
	RunsVMIs bool
}

// topologyHints returns status.topologyHints of a VMI: the TSC frequency that every node can provide,
// which is the lowest of all nodes that have one and are schedulable or run VMIs; or minimum,
// the cluster's configured minimumClusterTSCFrequency, unless it is nil. The result is nil if
// the VMI needs none.
//
// An error means that no frequency is available. Its effect depends on [TSCRequirement]: a VMI
// that requires the frequency to boot must wait.
func topologyHints(vmi *v1.VirtualMachineInstance, nodes []Node, minimum *int64) (*v1.TopologyHints, error) {
	need := TSCRequirement(vmi)
	if need == TSCNotRequired {
		return nil, nil
	}
	if minimum != nil {
		if *minimum <= 0 {
			return nil, fmt.Errorf("vmi: minimumClusterTSCFrequency: Invalid value: %d; set it to a frequency in Hz, or remove it", *minimum)
		}
		frequency := *minimum
		return &v1.TopologyHints{TSCFrequency: &frequency}, nil
	}
	var lowest int64
	for _, n := range nodes {
		if f := n.tscFrequency(); f > 0 && (n.Schedulable || n.RunsVMIs) && (lowest == 0 || f < lowest) {
			lowest = f
		}
	}
	if lowest == 0 {
		return nil, fmt.Errorf("vmi: VirtualMachineInstance %s/%s: a TSC frequency is %s, and no node that is schedulable or runs VMIs has label %s; "+
			"use nodes with an invariant TSC, or set minimumClusterTSCFrequency", vmi.Namespace, vmi.Name, need, tscFrequencyLabel)
	}
	return &v1.TopologyHints{TSCFrequency: &lowest}, nil
}

// tscFrequency returns the node's frequency in Hz; 0 if it is missing or invalid.
func (n Node) tscFrequency() int64 {
	f, err := strconv.ParseInt(n.Labels[tscFrequencyLabel], 10, 64)
	if err != nil || f < 0 {
		return 0
	}
	return f
}
