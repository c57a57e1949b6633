// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"crypto/sha1"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vm/instancetype"
)

// start creates the VMI, and the revision that remembers what it was made from.
func (d *decision) start() {
	switch {
	case d.foreign != "":
		d.fail(reasonFailedCreate, fmt.Sprintf("Failure while starting VMI: VirtualMachineInstance %s/%s exists and is controlled by %s; delete it, or rename the VirtualMachine",
			d.VM.Namespace, d.VM.Name, d.foreign))
		return
	case d.VMI != nil: // it is being deleted
		d.wait(Wait{Reason: "VMITerminating", Object: "VirtualMachineInstance " + d.VMI.Namespace + "/" + d.VMI.Name, Responsible: ByController,
			Message: "a VirtualMachineInstance of this name is being deleted", Until: "it is deleted"})
		return
	case d.changesSpec():
		// The VMI belongs to a generation, which only the stored spec has.
		d.wait(Wait{Reason: "WaitingForSpec", Object: vmObject(d.VM), Responsible: ByController, Message: "the spec is not stored yet", Until: "the cache observes the write"})
		return
	case d.VM.Annotations[v1.ImmediateDataVolumeCreation] == "false" && !d.provisioned():
		return
	case conditionTrue(d.VM, v1.VirtualMachineManualRecoveryRequired):
		d.wait(Wait{Reason: string(v1.VirtualMachineManualRecoveryRequired), Object: vmObject(d.VM), Responsible: ByUser,
			Message: "the VMI ended during the migration of its volumes", Until: "the volumes of the template are corrected"})
		return
	}
	dropCondition(d.plan.VM, v1.VirtualMachineRestartRequired)
	vmi, err := d.newVMI()
	if err != nil {
		d.fail(reasonFailedCreate, "Failure while starting VMI: "+err.Error())
		d.announce(reasonFailedCreate, "Error creating virtual machine instance: "+err.Error())
		return
	}
	if err := d.storeRevision(); err != nil {
		d.fail(reasonFailedCreate, "Failure while starting VMI: "+err.Error())
		return
	}
	d.do(Action{Verb: CreateVMI, Name: vmi.Name, VMI: vmi, If: Precondition{OwnerLive: true}, Why: fmt.Sprintf("the run strategy is %s", d.strategy),
		Fault:  Failure{reasonFailedCreate, "Failure while starting VMI: "},
		Done:   &Event{Reason: "SuccessfulCreate", Message: "Started the virtual machine by creating the new virtual machine instance " + vmi.Name},
		Failed: &Event{Warning: true, Reason: reasonFailedCreate, Message: "Error creating virtual machine instance: "}})
}

// newVMI returns the VMI made from the template.
func (d *decision) newVMI() (*v1.VirtualMachineInstance, error) {
	template := d.VM.Spec.Template.DeepCopy()
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.VM.Namespace, Name: d.VM.Name, Labels: template.ObjectMeta.Labels, Annotations: template.ObjectMeta.Annotations,
			Finalizers:      append(template.ObjectMeta.Finalizers, v1.VirtualMachineControllerFinalizer),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d.VM, v1.VirtualMachineGroupVersionKind)}},
		Spec: template.Spec,
	}
	slices.Sort(vmi.Finalizers)
	vmi.Finalizers = slices.Compact(vmi.Finalizers)
	vmi.Status.VirtualMachineRevisionName = startRevisionName(d.VM)
	annotate(&vmi.ObjectMeta, v1.VirtualMachineGenerationAnnotation, fmt.Sprint(d.VM.Generation))
	if d.strategy == v1.RunStrategyWaitAsReceiver {
		annotate(&vmi.ObjectMeta, v1.CreateMigrationTarget, "true")
	}
	if r := d.request(); d.startRequested() && r.Data[v1.StartRequestDataPausedKey] == v1.StartRequestDataPausedTrue {
		vmi.Spec.StartStrategy = new(v1.StartStrategyPaused)
	}
	d.dropDump(&vmi.Spec)
	if err := instancetype.Complete(&vmi.Spec, d.definitions, d.Config.Cluster); err != nil {
		return nil, err
	}
	if err := instancetype.ToVMI(d.VM, vmi, d.definitions); err != nil {
		return nil, fmt.Errorf("Failed to apply instancetype: %w", err) //nolint:staticcheck // KubeVirt's words
	}
	return vmi, nil
}

// dropDump removes the volume of a memory dump that is complete.
func (d *decision) dropDump(spec *v1.VirtualMachineInstanceSpec) {
	r := d.VM.Status.MemoryDumpRequest
	if r == nil || r.Phase == v1.MemoryDumpAssociating || r.Phase == v1.MemoryDumpInProgress {
		return
	}
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v v1.Volume) bool { return v.Name == r.ClaimName })
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

// syncedAnnotations follow the template while the VMI runs.
var syncedAnnotations = []string{"descheduler.alpha.kubernetes.io/evict", "descheduler.alpha.kubernetes.io/prefer-no-eviction"}

const skipBackupHooks = "kubevirt.io/skip-backup-hooks"

// syncMetadata copies the annotations that a running VMI follows.
func (d *decision) syncMetadata() {
	if d.vmi == nil || d.vmi.DeletionTimestamp != nil {
		return
	}
	follow := func(key string, from map[string]string) {
		if value, set := from[key]; set {
			annotate(&d.next.ObjectMeta, key, value)
		} else {
			delete(d.next.Annotations, key)
		}
	}
	for _, key := range syncedAnnotations {
		follow(key, d.VM.Spec.Template.ObjectMeta.Annotations)
	}
	follow(skipBackupHooks, d.VM.Annotations)
}

// keepTopology copies the PCI topology of the VMI to the template, so that devices keep their addresses.
func (d *decision) keepTopology() {
	if d.vmi == nil || d.vmi.Annotations[v1.PciTopologyVersionAnnotation] == "" {
		return
	}
	meta := &d.plan.VM.Spec.Template.ObjectMeta
	if meta.Annotations[v1.PciTopologyVersionAnnotation] != "" {
		return
	}
	meta.Annotations = maps.Clone(meta.Annotations)
	for _, key := range []string{v1.PciTopologyVersionAnnotation, v1.PciInterfaceSlotCountAnnotation} {
		if value := d.vmi.Annotations[key]; value != "" {
			annotate(meta, key, value)
		}
	}
}
