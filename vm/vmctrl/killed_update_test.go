// SPDX-License-Identifier: Apache-2.0

package vmctrl_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
)

// growing returns a VM that runs and whose CPUs and memory may grow, without a controller.
func growing(w *world) *v1.VirtualMachine {
	stop := w.start()
	defer stop()
	vm := w.machine("vm", v1.RunStrategyAlways, func(vm *v1.VirtualMachine) {
		d := &vm.Spec.Template.Spec.Domain
		d.CPU = &v1.CPU{Sockets: 1, MaxSockets: 4}
		d.Memory.Guest, d.Memory.MaxGuest = new(resource.MustParse("1Gi")), new(resource.MustParse("4Gi"))
		d.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("1056Mi")}
		d.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m"), corev1.ResourceMemory: resource.MustParse("1088Mi")}
	})
	vmi := w.awaitVMI(vm)
	w.phase(vmi, v1.Running)
	w.change(vmi, false, func() {
		boot := *vmi.Spec.Domain.Memory.Guest
		vmi.Status.Memory = &v1.MemoryStatus{GuestAtBoot: &boot, GuestCurrent: &boot}
		vmi.Status.Conditions = append(vmi.Status.Conditions, v1.VirtualMachineInstanceCondition{Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue})
	})
	w.awaitStatus(vm, v1.VirtualMachineStatusRunning)
	return vm
}

// grow adds a socket, memory, a toleration, and the request of a volume.
func grow(w *world, vm *v1.VirtualMachine) {
	w.change(vm, false, func() {
		spec := &vm.Spec.Template.Spec
		spec.Domain.CPU.Sockets, spec.Domain.Memory.Guest = 2, new(resource.MustParse("1280Mi"))
		spec.Tolerations = []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}}
	})
	w.change(vm, true, func() {
		claim := &v1.PersistentVolumeClaimVolumeSource{PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "more"}}
		vm.Status.VolumeRequests = []v1.VirtualMachineVolumeRequest{{AddVolumeOptions: &v1.AddVolumeOptions{
			Name: "more", Disk: &v1.Disk{}, VolumeSource: &v1.HotplugVolumeSource{PersistentVolumeClaim: claim}}}}
	})
}

// grown is the VMI after that: each amount has grown once.
const grown = "sockets 2, guest 1280Mi, requests 200m 1312Mi, limits 300m 1344Mi, 1 tolerations, 1 volumes, 1 disks"

// size describes what a live update changes.
func size(spec *v1.VirtualMachineInstanceSpec) string {
	d := &spec.Domain
	requests, limits := d.Resources.Requests, d.Resources.Limits
	return fmt.Sprintf("sockets %d, guest %s, requests %s %s, limits %s %s, %d tolerations, %d volumes, %d disks", d.CPU.Sockets, d.Memory.Guest,
		requests.Cpu(), requests.Memory(), limits.Cpu(), limits.Memory(), len(spec.Tolerations), len(spec.Volumes), len(d.Devices.Disks))
}

func killedUpdating(w *world) {
	killed(w, path{
		begin: func(w *world) *v1.VirtualMachine {
			vm := growing(w)
			grow(w, vm)
			return vm
		},
		arrived: func(w *world, vm *v1.VirtualMachine) string {
			d := w.describe(vm)
			if got := size(&w.vmi(vm).Spec); got != grown {
				return "the VMI has " + got + ": " + d
			}
			if n := len(vm.Spec.Template.Spec.Volumes); n != 1 || len(vm.Status.VolumeRequests) > 0 {
				return fmt.Sprintf("the template has %d volumes, requests %v", n, vm.Status.VolumeRequests)
			}
			for _, c := range vm.Status.Conditions {
				if c.Type == v1.VirtualMachineRestartRequired || c.Type == v1.VirtualMachineFailure {
					return "the VM has condition " + string(c.Type) + ": " + d
				}
			}
			return ""
		},
		created: 1,
	})
}
