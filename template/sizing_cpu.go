// SPDX-License-Identifier: Apache-2.0

package template

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	fieldCPU     = "spec.domain.cpu"
	fieldThreads = "spec.domain.ioThreads.supplementalPoolThreadCount"
	fieldParity  = "metadata.annotations[" + v1.EmulatorThreadCompleteToEvenParity + "]"

	nanosPerCPU   = 1e9
	nanosPerMilli = 1e6
)

// dedicatedCPU requests whole CPUs: one per virtual CPU and supplemental I/O thread, one or two for the emulator.
func (s *sizing) dedicatedCPU() {
	cpu := s.vmi.Spec.Domain.CPU
	request, limit := s.dedicatedToGuest(cpu)
	threads := supplementalThreads(s.vmi)
	var more []render.Term
	if threads != 0 {
		more = append(more, cpuTerm("supplemental I/O threads", threads, fieldThreads))
	}
	if cpu.IsolateEmulatorThread {
		more = append(more, cpuTerm("emulator thread", 1, fieldCPU+".isolateEmulatorThread"))
		_, even := s.vmi.Annotations[v1.EmulatorThreadCompleteToEvenParity]
		if even && (limit.Quantity.Value()+threads)%2 == 0 {
			more = append(more, cpuTerm("emulator thread, to an even number", 1, fieldParity))
		}
	}
	request.add(more...)
	limit.add(more...)
	s.requests[corev1.ResourceCPU], s.limits[corev1.ResourceCPU] = request, limit
}

// dedicatedToGuest returns request and limit for the virtual CPUs: the topology, otherwise the VMI's own amounts, otherwise
// one, which is virt-launcher's default.
func (s *sizing) dedicatedToGuest(cpu *v1.CPU) (request, limit Calculation) {
	n := vCPUs(cpu)
	request, limit = s.requests[corev1.ResourceCPU], s.limits[corev1.ResourceCPU]
	switch {
	case n == 0 && !limit.Quantity.IsZero():
		return limit.clone(), limit
	case n == 0 && !request.Quantity.IsZero():
		return request, request.clone()
	}
	request = Calculation{}
	request.add(cpuTerm("virtual CPUs", max(n, 1), fieldCPU))
	return request, request.clone()
}

// sharedCPU requests a fraction of a CPU per virtual CPU and supplemental I/O thread.
func (s *sizing) sharedCPU() {
	n := int64(1)
	if cpu := s.vmi.Spec.Domain.CPU; cpu != nil {
		n = vCPUs(cpu)
	}
	threads := supplementalThreads(s.vmi)
	if n+threads == 0 {
		return
	}
	limit, limited := s.limits[corev1.ResourceCPU]
	request, requested := s.requests[corev1.ResourceCPU]
	if !requested {
		request = s.sharedRequest(n, threads)
		if limited && request.Quantity.Cmp(limit.Quantity) > 0 {
			request.add(difference("down to the limit", &limit.Quantity, &request.Quantity, limitField(corev1.ResourceCPU)))
		}
		s.requests[corev1.ResourceCPU] = request
	}
	if from, wanted := s.limitsCPU(); wanted && !limited {
		limit.add(cpuTerm("virtual CPUs", n, fieldCPU+", "+from))
		if threads != 0 {
			limit.add(cpuTerm("supplemental I/O threads", threads, fieldThreads))
		}
		if request.Quantity.Cmp(limit.Quantity) > 0 {
			limit.add(difference("up to the request", &request.Quantity, &limit.Quantity, requestField(corev1.ResourceCPU)))
		}
		s.limits[corev1.ResourceCPU] = limit
	}
}

// sharedRequest divides CPUs by the allocation ratio and rounds the sum up to a billionth of a CPU.
func (s *sizing) sharedRequest(n, threads int64) Calculation {
	ratio := int64(s.config.CPUAllocationRatio)
	share := func(cpus int64) int64 { return (cpus*nanosPerCPU + ratio - 1) / ratio }
	divided := func(what string) string { return what + " / allocation ratio " + strconv.FormatInt(ratio, 10) }
	const from = ", Config.CPUAllocationRatio"
	var request Calculation
	if n != 0 {
		request.add(render.Term{
			Name: divided(counted(n, "virtual CPU")), Amount: nanoCPUs(share(n)), From: fieldCPU + from,
		})
	}
	if threads != 0 {
		request.add(render.Term{
			Name: divided(counted(threads, "supplemental I/O thread")), Amount: nanoCPUs(share(n+threads) - share(n)), From: fieldThreads + from,
		})
	}
	return request
}

// difference returns the term that turns the amount have into want.
func difference(name string, want, have *resource.Quantity, from string) render.Term {
	q := want.DeepCopy()
	q.Sub(*have)
	return render.Term{Name: name, Amount: q, From: from}
}

func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.FormatInt(n, 10) + " " + what + "s"
}

func cpuTerm(name string, n int64, from string) render.Term {
	return render.Term{Name: name, Amount: *resource.NewQuantity(n, resource.DecimalSI), From: from}
}

func nanoCPUs(n int64) resource.Quantity {
	if n%nanosPerMilli == 0 {
		return *resource.NewMilliQuantity(n/nanosPerMilli, resource.DecimalSI)
	}
	return *resource.NewScaledQuantity(n, resource.Nano)
}

// vCPUs multiplies the topology. Unset factors are ignored; without any there are no virtual CPUs. The result saturates at
// maxCPUs plus one, which validate.Resources rejects.
func vCPUs(cpu *v1.CPU) int64 {
	product, set := int64(1), false
	for _, factor := range [...]uint32{cpu.Cores, cpu.Sockets, cpu.Threads} {
		if factor != 0 {
			product, set = min(product*int64(factor), maxCPUs+1), true
		}
	}
	if !set {
		return 0
	}
	return product
}

// supplementalThreads returns the number of I/O threads with their own CPUs.
func supplementalThreads(vmi *v1.VirtualMachineInstance) int64 {
	domain := &vmi.Spec.Domain
	if domain.IOThreadsPolicy == nil || *domain.IOThreadsPolicy != v1.IOThreadsPolicySupplementalPool ||
		domain.IOThreads == nil || domain.IOThreads.SupplementalPoolThreadCount == nil {
		return 0
	}
	return int64(*domain.IOThreads.SupplementalPoolThreadCount)
}
