// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/volumeclaim"
)

const (
	dataVolumeKind = "DataVolume"
	cdiGroup       = "cdi.kubevirt.io/"
)

// importer returns the DataVolume that populates a claim, and its name even if it no longer
// exists. The name is empty if no DataVolume does: such a claim is ready as it is. A
// DataVolume that reuses the name of the claim's owner does not populate it.
func (s Storage) importer(claim *corev1.PersistentVolumeClaim) (dv *cdiv1.DataVolume, name string) {
	c := metav1.GetControllerOf(claim)
	if c == nil || c.Kind != dataVolumeKind || !strings.HasPrefix(c.APIVersion, cdiGroup) {
		return nil, ""
	}
	if dv = s.DataVolumes[c.Name]; dv != nil && dv.UID != c.UID {
		dv = nil
	}
	return dv, c.Name
}

// imports yields the DataVolumes that populate the claims of the launcher Pod, with the field
// that names the claim.
func imports(s Snapshot) iter.Seq2[string, *cdiv1.DataVolume] {
	return func(yield func(field string, dv *cdiv1.DataVolume) bool) {
		for i := range s.VMI.Spec.Volumes {
			name, field := claimName(&s.VMI.Spec.Volumes[i])
			claim := s.Storage.Claims[name]
			if field == "" || claim == nil {
				continue
			}
			if dv, _ := s.Storage.importer(claim); dv != nil && !yield(fmt.Sprintf("spec.volumes[%d].%s", i, field), dv) {
				return
			}
		}
	}
}

// importsDone requires that every claim of the launcher Pod is populated, or waits for its
// first consumer.
func importsDone(s Snapshot) *Wait {
	for field, dv := range imports(s) {
		if !imported(dv) && dv.Status.Phase != cdiv1.WaitForFirstConsumer {
			return notImported(s.VMI, field, dv)
		}
	}
	// A failed DataVolume fails the VMI, even if its volume is hotplugged.
	for i := range s.VMI.Spec.Volumes {
		if dv := s.Storage.dataVolumeOf(&s.VMI.Spec.Volumes[i]); dv != nil && dv.Status.Phase == cdiv1.Failed {
			return notImported(s.VMI, fmt.Sprintf("spec.volumes[%d]", i), dv)
		}
	}
	return nil
}

// notImported returns the wait for a DataVolume.
func notImported(vmi *v1.VirtualMachineInstance, field string, dv *cdiv1.DataVolume) *Wait {
	object := dataVolumeObject(vmi, dv.Name)
	until, by := finisher(dv.Status.Phase)
	return &Wait{
		Reason:  v1.VirtualMachineInstanceReasonNotAllDVsReady,
		Message: field + ": " + object + " is in phase " + stage(dv) + "; " + until + trouble(dv),
		Object:  object, Until: "its phase is Succeeded", Responsible: by,
		Condition: v1.VirtualMachineInstanceDataVolumesReady,
	}
}

// imported reports whether a VMI may use the content of the DataVolume. One in phase
// PendingPopulation is populated by its first Pod.
func imported(dv *cdiv1.DataVolume) bool {
	return dv.Status.Phase == cdiv1.Succeeded || dv.Status.Phase == cdiv1.PendingPopulation
}

// finisher returns what takes a DataVolume beyond a phase, and who must act.
func finisher(p cdiv1.DataVolumePhase) (until string, by handoff.Responsible) {
	switch p {
	case cdiv1.Failed:
		return "delete and recreate it with its claim", handoff.ByUser
	case cdiv1.Paused:
		return "finish its spec.checkpoints", handoff.ByUser
	case cdiv1.UploadReady:
		return "upload its content", handoff.ByUser
	default:
		return "the VirtualMachineInstance starts once it has succeeded", handoff.ByStorage
	}
}

// stage returns the phase of a DataVolume, with its progress if known.
func stage(dv *cdiv1.DataVolume) string {
	p := string(dv.Status.Phase)
	if p == "" {
		p = "(none)"
	}
	if progress := string(dv.Status.Progress); strings.HasSuffix(progress, "%") {
		p += " (" + progress + ")"
	}
	return p
}

// trouble returns CDI's error message for a DataVolume, with a leading separator; empty if
// there is none.
func trouble(dv *cdiv1.DataVolume) string {
	for i := range dv.Status.Conditions {
		c := &dv.Status.Conditions[i]
		if c.Status == corev1.ConditionFalse && strings.HasPrefix(c.Reason, "Err") && c.Message != "" {
			return ": " + c.Message
		}
	}
	return ""
}

// firstConsumer reports whether a claim of the launcher Pod is provisioned only for a first
// consumer: that must be another Pod, because the claim is populated afterwards.
func firstConsumer(s Snapshot) bool {
	for _, dv := range imports(s) {
		if dv.Status.Phase == cdiv1.WaitForFirstConsumer {
			return true
		}
	}
	return false
}

// dataVolumes returns the DataVolumes of the VMI's volumes, hotplugged ones included, each
// once and in the order of the volumes: those that volumes name, and those that populate the
// claim that a volume names.
func dataVolumes(s Snapshot) []*cdiv1.DataVolume {
	var all []*cdiv1.DataVolume
	for i := range s.VMI.Spec.Volumes {
		if dv := s.Storage.dataVolumeOf(&s.VMI.Spec.Volumes[i]); dv != nil && !slices.Contains(all, dv) {
			all = append(all, dv)
		}
	}
	return all
}

// dataVolumeOf returns the DataVolume of a volume; nil if it has none.
func (s Storage) dataVolumeOf(v *v1.Volume) *cdiv1.DataVolume {
	if v.DataVolume != nil {
		return s.DataVolumes[v.DataVolume.Name]
	}
	claim := s.Claims[volumeclaim.Read(v)]
	if claim == nil || v.MemoryDump != nil {
		return nil
	}
	dv, _ := s.importer(claim)
	return dv
}

// importFailed returns a failed DataVolume of the VMI, or nil.
func importFailed(s Snapshot) *cdiv1.DataVolume {
	for _, dv := range dataVolumes(s) {
		if dv.Status.Phase == cdiv1.Failed {
			return dv
		}
	}
	return nil
}

// dataVolumesReady summarizes the Ready conditions of the VMI's DataVolumes. Without
// DataVolumes the condition is left unchanged.
func dataVolumesReady(s Snapshot) conditionChange {
	all := dataVolumes(s)
	if len(all) == 0 {
		return conditionChange{}
	}
	status := corev1.ConditionTrue
	var unready []string
	for _, dv := range all {
		is := readiness(dv)
		if is != corev1.ConditionTrue {
			unready = append(unready, dataVolumeObject(s.VMI, dv.Name))
		}
		if is == corev1.ConditionFalse || status == corev1.ConditionTrue {
			status = is
		}
	}
	c := &v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceDataVolumesReady, Status: status,
		Reason:  v1.VirtualMachineInstanceReasonAllDVsReady,
		Message: "All of the VMI's DVs are bound and not running",
	}
	if len(unready) > 0 {
		// Not their progress: it would cost one write of the VMI per percent.
		c.Reason = v1.VirtualMachineInstanceReasonNotAllDVsReady
		c.Message = "Not all of the VMI's DVs are ready: " + strings.Join(unready, ", ")
	}
	return conditionChange{Type: c.Type, Set: c}
}

// readiness returns the status of the Ready condition, Unknown if there is none.
func readiness(dv *cdiv1.DataVolume) corev1.ConditionStatus {
	for i := range dv.Status.Conditions {
		c := &dv.Status.Conditions[i]
		if c.Type == cdiv1.DataVolumeReady && (c.Status == corev1.ConditionTrue || c.Status == corev1.ConditionFalse) {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

// provisioning sets the Provisioning condition while claims are provisioned for a VMI without a
// Pod, and removes it once the VMI has one.
func provisioning(s Snapshot) conditionChange {
	change := conditionChange{Type: v1.VirtualMachineInstanceProvisioning}
	switch {
	case !unprocessed(s.VMI):
		change.Remove = true
	case firstConsumer(s) && importFailed(s) == nil:
		change.Set = &v1.VirtualMachineInstanceCondition{Type: change.Type, Status: corev1.ConditionTrue}
	}
	return change
}
