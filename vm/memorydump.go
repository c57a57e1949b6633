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

// memoryDump carries out the request of a memory dump into a claim.
type memoryDump struct{ *decision }

// sync attaches the volume of a requested memory dump, and detaches it afterwards. The claim says what it holds before it is
// detached. The template keeps the volume until the request is removed.
func (d memoryDump) sync() {
	r := d.VM.Status.MemoryDumpRequest
	if r == nil {
		return
	}
	template := &d.plan.VM.Spec.Template.Spec
	switch r.Phase {
	case v1.MemoryDumpAssociating:
		if inPhase(d.vmi, v1.Running) && d.vmi.DeletionTimestamp == nil {
			addDump(template, r.ClaimName)
			addDump(&d.next.Spec, r.ClaimName)
		}
	case v1.MemoryDumpUnmounting, v1.MemoryDumpFailed:
		if d.describe(r) {
			d.detach(r.ClaimName)
		}
	case v1.MemoryDumpDissociating:
		d.detach(r.ClaimName)
		dropDump(template, r.ClaimName)
	}
}

func (d memoryDump) detach(claim string) {
	if running(d.vmi) {
		dropDump(&d.next.Spec, claim)
	}
}

// describe writes to the claim what it holds; false if it does not exist.
func (d memoryDump) describe(r *v1.VirtualMachineMemoryDumpRequest) bool {
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

func addDump(spec *v1.VirtualMachineInstanceSpec, claim string) {
	if hasVolume(spec, claim) {
		return
	}
	source := &v1.MemoryDumpVolumeSource{PersistentVolumeClaimVolumeSource: v1.PersistentVolumeClaimVolumeSource{Hotpluggable: true}}
	source.ClaimName = claim
	spec.Volumes = append(spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{MemoryDump: source}})
}

// dropDump removes the volume of a dump; another one of that name is no dump and stays.
func dropDump(spec *v1.VirtualMachineInstanceSpec, name string) {
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v v1.Volume) bool { return v.Name == name && v.MemoryDump != nil })
}

// dropEndedDump removes the volume of a memory dump that is complete from the spec of a new VMI.
func dropEndedDump(spec *v1.VirtualMachineInstanceSpec, r *v1.VirtualMachineMemoryDumpRequest) {
	if r == nil || r.Phase == v1.MemoryDumpAssociating || r.Phase == v1.MemoryDumpInProgress {
		return
	}
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v v1.Volume) bool { return v.Name == r.ClaimName })
}

// advanceDump returns the request in its next phase if the one before is over; nil once it is fulfilled. It may modify the request.
func advanceDump(r *v1.VirtualMachineMemoryDumpRequest, template *v1.VirtualMachineInstanceTemplateSpec, vmi *v1.VirtualMachineInstance) *v1.VirtualMachineMemoryDumpRequest {
	switch {
	case r == nil || template == nil:
	case r.Remove && r.Phase != v1.MemoryDumpDissociating:
		r.Phase = v1.MemoryDumpDissociating // sync acts on the stored phase
	default:
		if done := followDump(r, volumeStatus(vmi, r.ClaimName), hasVolume(&template.Spec, r.ClaimName)); done {
			return nil
		}
	}
	return r
}

// followDump advances a request by the status of its volume in the VMI, nil if it is not attached, and by whether the template has the
// volume. It reports whether the request is fulfilled.
func followDump(r *v1.VirtualMachineMemoryDumpRequest, attached *v1.VolumeStatus, inTemplate bool) bool {
	switch r.Phase {
	case v1.MemoryDumpAssociating:
		if inTemplate {
			r.Phase = v1.MemoryDumpInProgress
		}
	case v1.MemoryDumpInProgress:
		copyDump(r, attached)
	case v1.MemoryDumpUnmounting:
		if attached == nil {
			r.Phase = v1.MemoryDumpCompleted
		}
	case v1.MemoryDumpDissociating:
		return attached == nil && !inTemplate
	}
	return false
}

// copyDump copies what the VMI reports about a dump.
func copyDump(r *v1.VirtualMachineMemoryDumpRequest, status *v1.VolumeStatus) {
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

// volumeStatus returns the status of a volume of a VMI; nil if there is none.
func volumeStatus(vmi *v1.VirtualMachineInstance, name string) *v1.VolumeStatus {
	if vmi == nil {
		return nil
	}
	for i := range vmi.Status.VolumeStatus {
		if vmi.Status.VolumeStatus[i].Name == name {
			return &vmi.Status.VolumeStatus[i]
		}
	}
	return nil
}
