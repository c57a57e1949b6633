// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

const (
	dataVolumeKind = "DataVolume"
	cdiGroup       = "cdi.kubevirt.io/"
)

// importer returns the DataVolume that fills a claim, and the name it has or had. The
// name is empty where none does: such a claim is as ready as it will ever be. A
// DataVolume that took the name of the one that owns the claim does not fill it.
func (s Snapshot) importer(claim *corev1.PersistentVolumeClaim) (dv *cdiv1.DataVolume, name string) {
	c := metav1.GetControllerOf(claim)
	if c == nil || c.Kind != dataVolumeKind || !strings.HasPrefix(c.APIVersion, cdiGroup) {
		return nil, ""
	}
	if dv = s.Storage.DataVolumes[c.Name]; dv != nil && dv.UID != c.UID {
		dv = nil
	}
	return dv, c.Name
}

// imports returns the DataVolumes that fill the claims the guest's Pod needs, by the
// field that names the claim.
func (s Snapshot) imports(yield func(field string, dv *cdiv1.DataVolume) bool) {
	for i := range s.VMI.Spec.Volumes {
		name, field := ClaimName(&s.VMI.Spec.Volumes[i])
		claim := s.Storage.Claims[name]
		if field == "" || claim == nil {
			continue
		}
		if dv, _ := s.importer(claim); dv != nil && !yield(fmt.Sprintf("spec.volumes[%d].%s", i, field), dv) {
			return
		}
	}
}

// importsDone requires that every claim the guest's Pod needs is filled, or waits for
// a Pod to be.
func importsDone(s Snapshot) *Wait {
	for field, dv := range s.imports {
		if !imported(dv) && dv.Status.Phase != cdiv1.WaitForFirstConsumer {
			return s.notImported(field, dv)
		}
	}
	// With one that has failed the guest fails as well, also if it is to be plugged later.
	for i := range s.VMI.Spec.Volumes {
		if dv := s.dataVolumeOf(&s.VMI.Spec.Volumes[i]); dv != nil && dv.Status.Phase == cdiv1.Failed {
			return s.notImported(fmt.Sprintf("spec.volumes[%d]", i), dv)
		}
	}
	return nil
}

// notImported is the wait for a DataVolume.
func (s Snapshot) notImported(field string, dv *cdiv1.DataVolume) *Wait {
	object := s.dataVolumeObject(dv.Name)
	until, by := finisher(dv.Status.Phase)
	return &Wait{
		Reason:  v1.VirtualMachineInstanceReasonNotAllDVsReady,
		Message: field + ": " + object + " is in phase " + stage(dv) + "; " + until + trouble(dv),
		Object:  object, Until: "its phase is Succeeded", By: by,
		Condition: v1.VirtualMachineInstanceDataVolumesReady,
	}
}

// imported tells whether what the DataVolume fills may be used by a guest. One that
// waits for its population is filled by the first Pod.
func imported(dv *cdiv1.DataVolume) bool {
	return dv.Status.Phase == cdiv1.Succeeded || dv.Status.Phase == cdiv1.PendingPopulation
}

// finisher says what takes a DataVolume on from a phase, and whose turn it is.
func finisher(p cdiv1.DataVolumePhase) (until string, by Actor) {
	switch p {
	case cdiv1.Failed:
		return "delete it and its claim and create it anew", ByUser
	case cdiv1.Paused:
		return "finish its spec.checkpoints", ByUser
	case cdiv1.UploadReady:
		return "upload its content", ByUser
	default:
		return "the guest starts when it has succeeded", ByStorage
	}
}

// stage is the phase of a DataVolume, with its progress where it is known.
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

// trouble is what CDI says keeps a DataVolume from getting on, with a separator in
// front.
func trouble(dv *cdiv1.DataVolume) string {
	for i := range dv.Status.Conditions {
		c := &dv.Status.Conditions[i]
		if c.Status == corev1.ConditionFalse && strings.HasPrefix(c.Reason, "Err") && c.Message != "" {
			return ": " + c.Message
		}
	}
	return ""
}

// firstConsumer reports whether a claim that the guest's Pod needs is provisioned only
// once a Pod uses it: the guest must not be that Pod, as the claim is filled after.
func (s Snapshot) firstConsumer() bool {
	for _, dv := range s.imports {
		if dv.Status.Phase == cdiv1.WaitForFirstConsumer {
			return true
		}
	}
	return false
}

// dataVolumes are the DataVolumes of the guest's volumes, of plugged ones too, each
// once and in the order of the volumes: those that volumes name, and those that fill
// the claim that a volume names.
func (s Snapshot) dataVolumes() []*cdiv1.DataVolume {
	var all []*cdiv1.DataVolume
	for i := range s.VMI.Spec.Volumes {
		if dv := s.dataVolumeOf(&s.VMI.Spec.Volumes[i]); dv != nil && !slices.Contains(all, dv) {
			all = append(all, dv)
		}
	}
	return all
}

// dataVolumeOf is the DataVolume of a volume; nil if it has none.
func (s Snapshot) dataVolumeOf(v *v1.Volume) *cdiv1.DataVolume {
	if v.DataVolume != nil {
		return s.Storage.DataVolumes[v.DataVolume.Name]
	}
	claim := s.Storage.Claims[sourceClaim(v)]
	if claim == nil || v.MemoryDump != nil {
		return nil
	}
	dv, _ := s.importer(claim)
	return dv
}

// importFailed returns a DataVolume of the guest that has failed, or nil.
func (s Snapshot) importFailed() *cdiv1.DataVolume {
	for _, dv := range s.dataVolumes() {
		if dv.Status.Phase == cdiv1.Failed {
			return dv
		}
	}
	return nil
}

// dataVolumesReady sums the Ready conditions of the guest's DataVolumes up. Of a guest
// without any, whatever is said stays.
func dataVolumesReady(s Snapshot) conditionChange {
	all := s.dataVolumes()
	if len(all) == 0 {
		return conditionChange{}
	}
	status := corev1.ConditionTrue
	var unready []string
	for _, dv := range all {
		is := readiness(dv)
		if is != corev1.ConditionTrue {
			unready = append(unready, s.dataVolumeObject(dv.Name))
		}
		if is == corev1.ConditionFalse || status == corev1.ConditionTrue {
			status = is
		}
	}
	c := &v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceDataVolumesReady, Status: status,
		Reason:  v1.VirtualMachineInstanceReasonAllDVsReady,
		Message: "All of the guest's DataVolumes are ready",
	}
	if len(unready) > 0 {
		// Not their progress: it would be one write of the guest per percent.
		c.Reason = v1.VirtualMachineInstanceReasonNotAllDVsReady
		c.Message = "Not all of the guest's DataVolumes are ready: see " + strings.Join(unready, ", ")
	}
	return conditionChange{Type: c.Type, Set: c}
}

// readiness is the status of the Ready condition, Unknown if it has none.
func readiness(dv *cdiv1.DataVolume) corev1.ConditionStatus {
	for i := range dv.Status.Conditions {
		c := &dv.Status.Conditions[i]
		if c.Type == cdiv1.DataVolumeReady && (c.Status == corev1.ConditionTrue || c.Status == corev1.ConditionFalse) {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

// provisioning says that claims are provisioned for a guest that has no Pod yet. It is
// taken back when the guest has one.
func provisioning(s Snapshot) conditionChange {
	change := conditionChange{Type: v1.VirtualMachineInstanceProvisioning}
	switch {
	case !unprocessed(s.VMI):
		change.Remove = true
	case s.firstConsumer() && s.importFailed() == nil:
		change.Set = &v1.VirtualMachineInstanceCondition{Type: change.Type, Status: corev1.ConditionTrue}
	}
	return change
}
