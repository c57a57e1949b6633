// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmidefaults"
)

var machineRules = []Rule{
	{"architecture", checkArchitecture, false},
	{"machine-type", checkMachineType, false},
	{"cpu-model", checkCPUModel, true},
	{"cpu-features", checkCPUFeatures, true},
	{"cpu-features", checkPolicies, false},
	{"reboot-policy", checkRebootPolicy, false},
}

// cpuRules are about the number of CPUs.
var cpuRules = []Rule{
	{"cpu-topology", checkTopology, true},
	{"max-sockets", checkMaxSockets, false},
	{"dedicated-cpus", checkDedicated, true},
	{"own-cpus", checkEmulatorThread, true},
	{"own-cpus", checkOwnCPUs, false},
	{"numa", checkNUMA, false},
	{"io-threads", checkIOThreads, true},
	{"io-threads", checkThreadPool, false},
}

func checkArchitecture(k *checker) {
	if !vmidefaults.Supported(k.arch) {
		k.invalid(atSpec.child("architecture"), k.arch, "is not supported", "use amd64, arm64 or s390x")
	}
}

func checkMachineType(k *checker) {
	if k.domain.Machine == nil || k.domain.Machine.Type == "" || k.domain.Machine.Type == k.config.cluster().MachineOf(k.arch) {
		return
	}
	patterns := k.config.EmulatedMachines[k.arch]
	if patterns == nil {
		patterns = vmidefaults.TraitsOf(k.arch).Machines
	}
	machine := k.domain.Machine.Type
	if !slices.ContainsFunc(patterns, func(p string) bool { ok, err := path.Match(p, machine); return ok && err == nil }) {
		k.invalid(atDomain.child("machine.type"), machine, "is not supported on "+k.arch+" in this cluster", "use a type that matches "+strings.Join(patterns, " or "))
	}
}

// countGuestCPUs returns the number of CPUs of a topology, 0 if none is set. It saturates beyond any machine.
func countGuestCPUs(cpu *v1.CPU) int64 {
	count, given := int64(1), false
	for _, n := range []uint32{cpu.Sockets, cpu.Cores, cpu.Threads} {
		if n > 0 {
			count, given = min(count*int64(n), MaxCPUs+1), true
		}
	}
	if !given {
		return 0
	}
	return count
}

func checkTopology(k *checker) {
	cpu := k.domain.CPU
	if cpu == nil {
		return
	}
	count := countGuestCPUs(cpu)
	if count > MaxCPUs {
		k.invalid(atCPU, fmt.Sprintf("%d sockets of %d cores of %d threads", cpu.Sockets, cpu.Cores, cpu.Threads),
			fmt.Sprintf("exceeds the maximum of %d CPUs", MaxCPUs), "use a smaller topology")
	}
}

func checkMaxSockets(k *checker) {
	if cpu := k.domain.CPU; cpu != nil && cpu.MaxSockets > 0 && cpu.MaxSockets < max(cpu.Sockets, 1) {
		k.invalid(atCPU.child("maxSockets"), cpu.MaxSockets, fmt.Sprintf("must not be below the %d sockets of the VMI", max(cpu.Sockets, 1)),
			"increase it, or remove it")
	}
}

func checkCPUModel(k *checker) {
	if cpu := k.domain.CPU; cpu != nil && cpu.Model != "" {
		k.labelPart(atCPU.child("model"), v1.CPUModelLabel, cpu.Model, "use a CPU model of libvirt, host-model or host-passthrough")
	}
}

// labelPart reports an invalid suffix of a label key.
func (k *checker) labelPart(at *fieldPath, prefix, s, remedy string) {
	if !Plain(s) {
		k.problem(at, s, LabelKey(prefix+s), remedy)
	}
}

func checkCPUFeatures(k *checker) {
	if k.domain.CPU == nil {
		return
	}
	for i, f := range k.domain.CPU.Features {
		k.labelPart(atCPU.child("features").index(i).child("name"), v1.CPUFeatureLabel, f.Name, "use a CPU feature of libvirt, such as aes")
	}
}

func checkPolicies(k *checker) {
	if k.domain.CPU == nil {
		return
	}
	taken, at := names{}, atCPU.child("features")
	for i, f := range k.domain.CPU.Features {
		taken.take(k, at.index(i).child("name"), f.Name)
		oneOf(k, at.index(i).child("policy"), f.Policy, "force", "require", "optional", "disable", "forbid")
	}
}

// checkDedicated rejects dedicated CPUs that a node would not assign: it assigns whole CPUs with equal request and limit
// only. Requests may be unset if there is a topology, from which the Pod of an existing VMI has its CPUs.
func checkDedicated(k *checker) {
	cpu := k.domain.CPU
	if cpu == nil || !cpu.DedicatedCPUPlacement || k.existing && countGuestCPUs(cpu) > 0 {
		return
	}
	request, limit := k.domain.Resources.Requests.Cpu(), k.domain.Resources.Limits.Cpu()
	atRequest, atLimit := atResources.child("requests.cpu"), atResources.child("limits.cpu")
	k.whole(atRequest, request)
	k.whole(atLimit, limit)
	if !request.IsZero() && !limit.IsZero() && request.Cmp(*limit) != 0 {
		k.invalid(atRequest, brief(request.String()), "dedicated CPUs must be equal to the limit of "+limit.String(), "use the same amount")
	}
	if count := countGuestCPUs(cpu); count > 0 && !limit.IsZero() && limit.Value() != count {
		k.invalid(atLimit, brief(limit.String()), fmt.Sprintf("must be equal to the %d dedicated CPUs of the topology", count), "use the same amount, or remove one of them")
	}
}

func (k *checker) whole(at *fieldPath, cpus *resource.Quantity) {
	if cpus.MilliValue()%1000 != 0 {
		k.invalid(at, brief(cpus.String()), "dedicated CPUs must be a whole number", "use a whole number")
	}
}

const ownCPUsReason, ownCPUsRemedy = "requires dedicated CPUs", "set spec.domain.cpu.dedicatedCpuPlacement, or remove it"

func checkEmulatorThread(k *checker) {
	if cpu := k.domain.CPU; cpu != nil && cpu.IsolateEmulatorThread && !cpu.DedicatedCPUPlacement {
		k.invalid(atCPU.child("isolateEmulatorThread"), true, ownCPUsReason, ownCPUsRemedy)
	}
}

func checkOwnCPUs(k *checker) {
	cpu := k.domain.CPU
	if cpu == nil || cpu.DedicatedCPUPlacement {
		return
	}
	if cpu.Realtime != nil {
		k.invalid(atCPU.child("realtime"), cpu.Realtime.Mask, ownCPUsReason, ownCPUsRemedy)
	}
	if cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil {
		k.invalid(atCPU.child("numa.guestMappingPassthrough"), "{}", ownCPUsReason, ownCPUsRemedy)
	}
}

func checkNUMA(k *checker) {
	cpu := k.domain.CPU
	if cpu == nil || cpu.NUMA == nil || cpu.NUMA.GuestMappingPassthrough == nil {
		return
	}
	at := atCPU.child("numa.guestMappingPassthrough")
	if k.domain.Memory == nil || k.domain.Memory.Hugepages == nil {
		k.invalid(at, "{}", "requires huge pages", "set spec.domain.memory.hugepages, or remove it")
	}
	if k.arch == vmidefaults.S390X {
		k.invalid(at, "{}", "NUMA is not supported on s390x", "remove it")
	}
}

// maxThreads is the maximum of the domain converter.
const maxThreads = 1024

// checkIOThreads rejects threads that the domain converter does not support, or for which no Pod can have CPUs.
func checkIOThreads(k *checker) {
	most := uint32(maxThreads)
	if k.existing {
		most = MaxCPUs
	}
	if t := k.domain.IOThreads; t != nil && t.SupplementalPoolThreadCount != nil && *t.SupplementalPoolThreadCount > most {
		k.invalid(atDomain.child("ioThreads.supplementalPoolThreadCount"), *t.SupplementalPoolThreadCount,
			fmt.Sprintf("exceeds the maximum of %d", most), "use fewer threads")
	}
}

func checkThreadPool(k *checker) {
	at := atDomain.child("ioThreadsPolicy")
	p, threads := k.domain.IOThreadsPolicy, k.domain.IOThreads
	if p != nil {
		oneOf(k, at, *p, v1.IOThreadsPolicyShared, v1.IOThreadsPolicyAuto, v1.IOThreadsPolicySupplementalPool)
	}
	at = atDomain.child("ioThreads.supplementalPoolThreadCount")
	pool := p != nil && *p == v1.IOThreadsPolicySupplementalPool
	counted := threads != nil && threads.SupplementalPoolThreadCount != nil
	switch {
	case pool && !counted:
		k.required(at, "the policy requires a number of threads", "set it to at least 1")
	case pool && *threads.SupplementalPoolThreadCount == 0:
		k.invalid(at, 0, "must be positive", "set it to at least 1")
	}
}

func checkRebootPolicy(k *checker) {
	if p := k.domain.RebootPolicy; p != nil {
		oneOf(k, atDomain.child("rebootPolicy"), *p, v1.RebootPolicyReboot, v1.RebootPolicyTerminate)
	}
}
