// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// memoryRequest returns the calculation of the requested memory.
func memoryRequest(r template.Resources) template.Calculation {
	return r.Requests[corev1.ResourceMemory]
}

// A VMI with 8Gi and four cores requests more than 8Gi of its node. These are the terms of the request.
func ExampleComputeResources() {
	r, err := template.ComputeResources(template.Input{VMI: newVMI(cores(4), guest("8Gi"))})
	if err != nil {
		fmt.Println(err)
		return
	}
	memory := memoryRequest(r)
	for _, term := range memory.Terms {
		fmt.Println(term)
	}
	sum := render.Sum(memory.Terms)
	fmt.Println(sum.String(), "=", memory.Quantity.String())
	cpu := r.Requests[corev1.ResourceCPU]
	fmt.Println(cpu.Terms[0])
	// Output:
	// 8Gi guest memory (spec.domain.memory.guest)
	// 25Mi virt-launcher-monitor
	// 100Mi virt-launcher
	// 25Mi virtlogd
	// 40Mi virtqemud
	// 50Mi qemu
	// 32Mi virtual CPUs (spec.domain.cpu)
	// 8Mi I/O threads
	// 32Mi video memory (spec.domain.devices.autoattachGraphicsDevice)
	// 8504Mi = 8504Mi
	// 400m 4 virtual CPUs / allocation ratio 10 (spec.domain.cpu, Config.CPUAllocationRatio)
}

// A rendered Pod has the same terms.
func ExampleExplanation_At() {
	e, err := template.Default().Explain(render.LauncherPod, input(newVMI(cores(2), guest("1Gi"), hugepages("1Gi"))))
	if err != nil {
		fmt.Println(err)
		return
	}
	origins, err := e.At("spec.containers[compute].resources.requests[memory]")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(origins[0])
	// Output:
	// spec.containers[compute].resources.requests[memory]: stage resources, from spec.domain.memory.guest
	//   1Gi guest memory (spec.domain.memory.guest)
	//   -1Gi in hugepages (spec.domain.memory.hugepages.pageSize)
	//   25Mi virt-launcher-monitor
	//   100Mi virt-launcher
	//   25Mi virtlogd
	//   40Mi virtqemud
	//   50Mi qemu
	//   16Mi virtual CPUs (spec.domain.cpu)
	//   8Mi I/O threads
	//   32Mi video memory (spec.domain.devices.autoattachGraphicsDevice)
}
