// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"crypto/sha1"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

// defaults are what the object needs before anything is done for it.
type defaults struct{ *decision }

// complete sets what Register sets, and the firmware UUID that all VMIs of the VM share.
func (d defaults) complete() {
	vm := d.plan.VM
	Register(vm)
	if vm.Spec.Template == nil {
		d.fail(reasonFailedCreate, errNoTemplate.Error())
		return
	}
	identify(&vm.Spec.Template.Spec, vm.Name)
}

// Register sets the finalizer of the controller, and the API versions that it observed. A webhook that does so on creation
// saves the controller a write for each VM.
func Register(vm *v1.VirtualMachine) {
	if !slices.Contains(vm.Finalizers, v1.VirtualMachineControllerFinalizer) {
		vm.Finalizers = append(vm.Finalizers, v1.VirtualMachineControllerFinalizer)
	}
	if vm.Annotations[v1.ControllerAPILatestVersionObservedAnnotation] != v1.ApiLatestVersion {
		annotate(&vm.ObjectMeta, v1.ControllerAPILatestVersionObservedAnnotation, v1.ApiLatestVersion)
		annotate(&vm.ObjectMeta, v1.ControllerAPIStorageVersionObservedAnnotation, v1.ApiStorageVersion)
	}
}

var errNoTemplate = errors.New("spec.template: missing virtual machine template")

// identify sets the firmware UUID of a VM that has none.
func identify(spec *v1.VirtualMachineInstanceSpec, vm string) {
	if spec.Domain.Firmware == nil {
		spec.Domain.Firmware = &v1.Firmware{}
	}
	if spec.Domain.Firmware.UUID == "" {
		spec.Domain.Firmware.UUID = legacyUUID(vm)
	}
}

// legacyNamespace is the name space of firmware UUIDs.
var legacyNamespace = [16]byte{0x6a, 0x1a, 0x24, 0xa1, 0x40, 0x61, 0x46, 0x07, 0x8b, 0xf4, 0xa3, 0x96, 0x3d, 0x0c, 0x58, 0x95}

// legacyUUID returns the firmware UUID of a VM without one: version 5 of its name, which is what its VMIs always had.
func legacyUUID(name string) types.UID {
	sum := sha1.Sum(append(legacyNamespace[:], name...)) //nolint:gosec // a UUID of version 5 is SHA-1
	u := sum[:16]
	u[6], u[8] = u[6]&0x0f|0x50, u[8]&0x3f|0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]))
}

// followedAnnotations are those of the template that a VMI follows.
var followedAnnotations = []string{"descheduler.alpha.kubernetes.io/evict", "descheduler.alpha.kubernetes.io/prefer-no-eviction"}

const skipBackupHooks = "kubevirt.io/skip-backup-hooks"

// followAnnotations copies to a VMI the annotations of its VM that it follows.
func followAnnotations(vmi *v1.VirtualMachineInstance, vm *v1.VirtualMachine) {
	if vmi == nil || vmi.DeletionTimestamp != nil {
		return
	}
	follow := func(key string, from map[string]string) {
		if value, set := from[key]; set {
			annotate(&vmi.ObjectMeta, key, value)
		} else {
			delete(vmi.Annotations, key)
		}
	}
	for _, key := range followedAnnotations {
		follow(key, vm.Spec.Template.ObjectMeta.Annotations)
	}
	follow(skipBackupHooks, vm.Annotations)
}

// keepTopology copies the PCI topology of a VMI to the template of its VM, so that devices keep their addresses.
func keepTopology(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) {
	if vmi == nil || vmi.Annotations[v1.PciTopologyVersionAnnotation] == "" {
		return
	}
	meta := &vm.Spec.Template.ObjectMeta
	if meta.Annotations[v1.PciTopologyVersionAnnotation] != "" {
		return
	}
	meta.Annotations = maps.Clone(meta.Annotations)
	for _, key := range []string{v1.PciTopologyVersionAnnotation, v1.PciInterfaceSlotCountAnnotation} {
		if value := vmi.Annotations[key]; value != "" {
			annotate(meta, key, value)
		}
	}
}
