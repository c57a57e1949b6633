// SPDX-License-Identifier: Apache-2.0

// Package liveupdate brings a running VirtualMachineInstance (VMI) to what the template of its VirtualMachine has by now,
// without a restart: CPU sockets, memory, affinity, node selector and tolerations.
//
// It takes effective specs, those after instance type and preference are applied. [Blocked] returns which change needs a restart after
// all, [Apply] makes the others, all or none. What else needs a restart is decided by package restart.
package liveupdate

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// Conflict is why a change has to wait: reason and message of a condition.
type Conflict struct{ Reason, Message string }

// Options are what a live update depends on besides the specs.
type Options struct {
	// CPURatio is the number of vCPUs that share a CPU; zero means ten. (KubeVirt: cpuAllocationRatio)
	CPURatio int64
	// Migrating is true while a migration of the VMI runs.
	Migrating bool
}

// Blocked returns why a change of CPU or memory cannot be made live, as a message of condition RestartRequired; empty if it
// can, or there is none.
func Blocked(vmi *v1.VirtualMachineInstance, current *v1.VirtualMachineInstanceSpec) string {
	if why := blockedCPU(vmi.Spec.Domain.CPU, current); why != "" {
		return why
	}
	return blockedMemory(vmi, current)
}

// Apply returns the VMI with the changes that the current spec of the template has. If one of them has to wait, it returns the conflict
// and no VMI: its message names what blocks all of them. Neither argument is modified; the result may share parts of current.
func Apply(vmi *v1.VirtualMachineInstance, current *v1.VirtualMachineInstanceSpec, o Options) (*v1.VirtualMachineInstance, *Conflict) {
	u := update{Options: o, vmi: vmi.DeepCopy(), current: current}
	for _, change := range []func() *Conflict{u.cpu, u.placement, u.tolerations, u.memory} {
		if conflict := change(); conflict != nil {
			return nil, conflict
		}
	}
	return u.vmi, nil
}

// update changes one VMI.
type update struct {
	Options
	vmi     *v1.VirtualMachineInstance
	current *v1.VirtualMachineInstanceSpec
}

func (u update) cpu() *Conflict {
	has, want := u.vmi.Spec.Domain.CPU, u.current.Domain.CPU
	switch {
	case has == nil || want == nil || has.Sockets == want.Sockets:
		return nil
	case vmistatus.IsTrue(u.vmi, v1.VirtualMachineInstanceVCPUChange):
		return &Conflict{"HotPlugCPUError", "another CPU hotplug is in progress"}
	case u.Migrating:
		return &Conflict{"HotPlugCPUError", "CPU hotplug is not allowed while VMI is migrating"}
	}
	added := (vCPUs(want) - vCPUs(has)) * (1000 / cmp.Or(u.CPURatio, 10))
	has.Sockets = want.Sockets
	delta := *resource.NewMilliQuantity(added, resource.DecimalSI)
	own, template := u.vmi.Spec.Domain.Resources, u.current.Domain.Resources
	grow(own.Requests, template.Requests, corev1.ResourceCPU, delta)
	grow(own.Limits, template.Limits, corev1.ResourceCPU, delta)
	return nil
}

func vCPUs(c *v1.CPU) int64 {
	return int64(max(c.Sockets, 1)) * int64(max(c.Cores, 1)) * int64(max(c.Threads, 1))
}

// grow adds to a quantity of the VMI, if the template has one too.
func grow(own, template corev1.ResourceList, name corev1.ResourceName, delta resource.Quantity) {
	if _, set := template[name]; !set || own == nil {
		return
	}
	q := own[name]
	q.Add(delta)
	own[name] = q
}

func (u update) placement() *Conflict {
	spec := &u.vmi.Spec
	if equality.Semantic.DeepEqual(spec.Affinity, u.current.Affinity) && equality.Semantic.DeepEqual(spec.NodeSelector, u.current.NodeSelector) {
		return nil
	}
	if u.Migrating {
		return &Conflict{"AffinityChangeError", "Node affinity should not be changed during VMI migration"}
	}
	spec.Affinity, spec.NodeSelector = u.current.Affinity, u.current.NodeSelector
	return nil
}

func (u update) tolerations() *Conflict {
	if equality.Semantic.DeepEqual(u.vmi.Spec.Tolerations, u.current.Tolerations) {
		return nil
	}
	if u.Migrating {
		return &Conflict{"TolerationsChangeError", "tolerations should not be changed during VMI migration"}
	}
	u.vmi.Spec.Tolerations = u.current.Tolerations
	return nil
}

func (u update) memory() *Conflict {
	has, want, ok := memoryChange(u.vmi, u.current)
	switch {
	case !ok || has.Equal(*want):
		return nil
	case vmistatus.IsTrue(u.vmi, v1.VirtualMachineInstanceMemoryChange):
		return &Conflict{"HotPlugMemoryError", "another memory hotplug is in progress"}
	case u.Migrating:
		return &Conflict{"HotPlugMemoryError", "memory hotplug is not allowed while VMI is migrating"}
	}
	guest := want.DeepCopy()
	u.vmi.Spec.Domain.Memory.Guest = &guest
	delta := want.DeepCopy()
	delta.Sub(*u.vmi.Status.Memory.GuestCurrent)
	own := &u.vmi.Spec.Domain.Resources
	if q, set := own.Requests[corev1.ResourceMemory]; set && !q.IsZero() {
		q.Add(delta)
		if q.Cmp(guest) < 0 {
			q = guest.DeepCopy()
		}
		own.Requests[corev1.ResourceMemory] = q
	}
	grow(own.Limits, u.current.Domain.Resources.Limits, corev1.ResourceMemory, delta)
	return nil
}
