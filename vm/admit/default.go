// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"

	machine "github.com/virtloom/virtloom/vm"
	"github.com/virtloom/virtloom/vm/instancetype"
	guests "github.com/virtloom/virtloom/vmi/admit"
)

// Default returns the VM with its defaults. It does not count until no ref is left to be read; an error refuses the
// request. A VM that is being deleted is returned as it is.
func Default(in Input) (*v1.VirtualMachine, []instancetype.Ref, error) {
	if in.VM.DeletionTimestamp != nil {
		return in.VM, nil, nil
	}
	if errs := renamed(in.VM, in.Old); len(errs) > 0 {
		return nil, nil, errs.ToAggregate()
	}
	vm, missing, err := instancetype.Infer(in.VM, in.Objects)
	if err != nil || len(missing) > 0 {
		return nil, missing, err
	}
	if vm.Spec.Template == nil {
		return vm, nil, nil // it is invalid
	}
	found, missing, err := instancetype.Find(vm, in.Objects)
	if len(missing) > 0 {
		return nil, missing, nil
	}
	if err == nil && found.Preference != nil { // a preference that is not found is an error of Validate
		prefer(vm, found.Preference)
	}
	if in.Old == nil {
		identify(vm, in.Config)
	}
	shape(vm, in)
	return vm, nil, nil
}

// renamed refuses another name with the old revision, which would go on to be used.
func renamed(vm, old *v1.VirtualMachine) (errs field.ErrorList) {
	if old == nil {
		return nil
	}
	check := func(at, name, oldName, revision, oldRevision string) {
		if name != oldName && revision != "" && revision == oldRevision {
			errs = append(errs, field.Invalid(field.NewPath("spec", at, "revisionName"), revision,
				"the Matcher Name has been updated without updating the RevisionName (remove revisionName, or name a revision of "+name+")"))
		}
	}
	if m, o := vm.Spec.Instancetype, old.Spec.Instancetype; m != nil && o != nil {
		check("instancetype", m.Name, o.Name, m.RevisionName, o.RevisionName)
	}
	if m, o := vm.Spec.Preference, old.Spec.Preference; m != nil && o != nil {
		check("preference", m.Name, o.Name, m.RevisionName, o.RevisionName)
	}
	return errs
}

// prefer sets what the preference decides before there is a VMI.
func prefer(vm *v1.VirtualMachine, p *v1beta1.VirtualMachinePreferenceSpec) {
	spec := &vm.Spec.Template.Spec
	if p.PreferredArchitecture != nil && spec.Architecture == "" {
		spec.Architecture = *p.PreferredArchitecture
	}
	if p.Machine != nil && p.Machine.PreferredMachineType != "" && machineType(spec) == "" {
		spec.Domain.Machine = &v1.Machine{Type: p.Machine.PreferredMachineType}
	}
	if p.Volumes != nil && p.Volumes.PreferredStorageClassName != "" {
		preferClass(vm, p.Volumes.PreferredStorageClassName)
	}
}

// preferClass sets the storage class of the DataVolumes that have none.
func preferClass(vm *v1.VirtualMachine, class string) {
	for i := range vm.Spec.DataVolumeTemplates {
		dv := &vm.Spec.DataVolumeTemplates[i].Spec
		if dv.PVC != nil && dv.PVC.StorageClassName == nil {
			dv.PVC.StorageClassName = &class
		}
		if dv.Storage != nil && dv.Storage.StorageClassName == nil {
			dv.Storage.StorageClassName = &class
		}
	}
}

func machineType(spec *v1.VirtualMachineInstanceSpec) string {
	if spec.Domain.Machine == nil {
		return ""
	}
	return spec.Domain.Machine.Type
}

// identify gives a new VM the identity that its VMIs keep, and the metadata that its controller would store first.
func identify(vm *v1.VirtualMachine, c Config) {
	machine.Register(vm)
	domain := &vm.Spec.Template.Spec.Domain
	if domain.Firmware == nil {
		domain.Firmware = &v1.Firmware{}
	}
	if domain.Firmware.UUID == "" {
		domain.Firmware.UUID = c.VMIs.Request.FirmwareUUID
	}
	if domain.Firmware.Serial == "" {
		domain.Firmware.Serial = string(c.SerialNumber)
	}
}

// shape sets architecture and machine type, and the PCI topology of a new VM: what its VMIs must not get from a later
// configuration of the cluster.
func shape(vm *v1.VirtualMachine, in Input) {
	probe := &v1.VirtualMachineInstance{Spec: *vm.Spec.Template.Spec.DeepCopy()}
	guests.DefaultShape(probe, in.Config.VMIs)
	spec := &vm.Spec.Template.Spec
	spec.Architecture = probe.Spec.Architecture
	if machineType(spec) == "" {
		spec.Domain.Machine = &v1.Machine{Type: machineType(&probe.Spec)}
	}
	topology, there := probe.Annotations[v1.PciTopologyVersionAnnotation]
	meta := &vm.Spec.Template.ObjectMeta
	if _, set := meta.Annotations[v1.PciTopologyVersionAnnotation]; in.Old != nil || !there || set {
		return
	}
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	meta.Annotations[v1.PciTopologyVersionAnnotation] = topology
}
