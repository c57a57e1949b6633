// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"slices"

	v1 "kubevirt.io/api/core/v1"
)

const (
	// dumpAnnotation on a claim names the file of the memory dump in it.
	dumpAnnotation = "kubevirt.io/memory-dump"
	dumpFailed     = "Memory dump failed"
)

// dumpMemory attaches the volume of a requested memory dump, and detaches it afterwards. The claim says what it holds before it is
// detached. The template keeps the volume until the request is removed.
func (d *decision) dumpMemory() {
	r := d.VM.Status.MemoryDumpRequest
	if r == nil {
		return
	}
	template := &d.plan.VM.Spec.Template.Spec
	switch r.Phase {
	case v1.MemoryDumpAssociating:
		if d.phase(v1.Running) && d.vmi.DeletionTimestamp == nil {
			addDump(template, r.ClaimName)
			addDump(&d.next.Spec, r.ClaimName)
		}
	case v1.MemoryDumpUnmounting, v1.MemoryDumpFailed:
		if d.describeDump(r) {
			d.detachDump(r.ClaimName)
		}
	case v1.MemoryDumpDissociating:
		d.detachDump(r.ClaimName)
		dropVolume(template, r.ClaimName)
	}
}

func addDump(spec *v1.VirtualMachineInstanceSpec, claim string) {
	if hasVolume(spec, claim) {
		return
	}
	source := &v1.MemoryDumpVolumeSource{PersistentVolumeClaimVolumeSource: v1.PersistentVolumeClaimVolumeSource{Hotpluggable: true}}
	source.ClaimName = claim
	spec.Volumes = append(spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{MemoryDump: source}})
}

// dropVolume removes the volume of a dump; another one of that name is no dump and stays.
func dropVolume(spec *v1.VirtualMachineInstanceSpec, name string) {
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v v1.Volume) bool { return v.Name == name && v.MemoryDump != nil })
}

func (d *decision) detachDump(claim string) {
	if d.vmi != nil && d.vmi.DeletionTimestamp == nil && !d.vmi.IsFinal() {
		dropVolume(&d.next.Spec, claim)
	}
}

// describeDump writes to the claim what it holds; false if it does not exist.
func (d *decision) describeDump(r *v1.VirtualMachineMemoryDumpRequest) bool {
	content := dumpFailed
	if r.Phase == v1.MemoryDumpUnmounting {
		if r.FileName == nil {
			return true
		}
		content = *r.FileName
	}
	claim := d.Claims[r.ClaimName]
	if claim == nil {
		d.fail("MemoryDumpError", "PersistentVolumeClaim "+d.VM.Namespace+"/"+r.ClaimName+" of the memory dump does not exist; create it, or remove the memory dump")
		return false
	}
	if claim.Annotations[dumpAnnotation] != content {
		claim = claim.DeepCopy()
		annotate(&claim.ObjectMeta, dumpAnnotation, content)
		d.do(Action{Verb: PatchClaim, Name: claim.Name, Claim: claim, If: Precondition{UID: claim.UID, ResourceVersion: claim.ResourceVersion},
			Why: "it says what it holds", Fault: Failure{"MemoryDumpError", "Error encountered while handling the memory dump: "}})
	}
	return true
}

// dumpStatus advances the request from what the VMI reports.
func (d *decision) dumpStatus() {
	r := d.plan.VM.Status.MemoryDumpRequest
	if r == nil || d.VM.Spec.Template == nil {
		return
	}
	if r.Remove && r.Phase != v1.MemoryDumpDissociating {
		r.Phase = v1.MemoryDumpDissociating
		return // the parts act on the stored phase
	}
	d.advanceDump(r)
}

// advanceDump enters the next phase if the one before is over.
func (d *decision) advanceDump(r *v1.VirtualMachineMemoryDumpRequest) {
	status := d.volumeStatus(r.ClaimName)
	in := hasVolume(&d.VM.Spec.Template.Spec, r.ClaimName)
	switch r.Phase {
	case v1.MemoryDumpAssociating:
		if in {
			r.Phase = v1.MemoryDumpInProgress
		}
	case v1.MemoryDumpInProgress:
		followDump(r, status)
	case v1.MemoryDumpUnmounting:
		if status == nil {
			r.Phase = v1.MemoryDumpCompleted
		}
	case v1.MemoryDumpDissociating:
		if status == nil && !in {
			d.plan.VM.Status.MemoryDumpRequest = nil
		}
	}
}

// followDump copies what the VMI reports about a dump.
func followDump(r *v1.VirtualMachineMemoryDumpRequest, status *v1.VolumeStatus) {
	if status == nil || status.MemoryDumpVolume == nil {
		return
	}
	info := status.MemoryDumpVolume
	r.StartTimestamp = info.StartTimestamp
	switch status.Phase {
	case v1.MemoryDumpVolumeCompleted:
		r.Phase, r.EndTimestamp, r.FileName = v1.MemoryDumpUnmounting, info.EndTimestamp, new(info.TargetFileName)
	case v1.MemoryDumpVolumeFailed:
		r.Phase, r.EndTimestamp, r.Message = v1.MemoryDumpFailed, info.EndTimestamp, status.Message
	}
}

// volumeStatus returns the status of a volume of the VMI; nil if there is none.
func (d *decision) volumeStatus(name string) *v1.VolumeStatus {
	if d.vmi == nil {
		return nil
	}
	for i := range d.vmi.Status.VolumeStatus {
		if d.vmi.Status.VolumeStatus[i].Name == name {
			return &d.vmi.Status.VolumeStatus[i]
		}
	}
	return nil
}
