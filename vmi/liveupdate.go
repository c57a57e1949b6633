// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// evaluateAgain is when an evaluator that does not say when is asked again.
const evaluateAgain = 10 * time.Second

// conditionChange is what shall become of one condition of a guest. The zero value
// of Set and Remove means that it stays as it is.
type conditionChange struct {
	// Type is the condition's.
	Type v1.VirtualMachineInstanceConditionType
	// Set replaces the condition; its times are those of the one who applies it.
	Set *v1.VirtualMachineInstanceCondition
	// Remove takes the condition away.
	Remove bool
	// Labels are labels of the guest that go with it.
	Labels map[string]string
	// RequeueAt is when to ask again; zero if nothing changes with time.
	RequeueAt time.Time
}

// apply edits the guest, which must be a copy.
func (c conditionChange) apply(vmi *v1.VirtualMachineInstance, now time.Time) {
	switch {
	case c.Set != nil:
		vmistatus.SetCondition(vmi, *c.Set, now)
	case c.Remove:
		vmistatus.RemoveCondition(vmi, c.Type)
	}
	for key, value := range c.Labels {
		if vmi.Labels == nil {
			vmi.Labels = map[string]string{}
		}
		vmi.Labels[key] = value
	}
}

// hotVCPUChange asks for another number of CPUs than the guest has. The node takes
// the condition away.
func hotVCPUChange(vmi *v1.VirtualMachineInstance) conditionChange {
	change := conditionChange{Type: v1.VirtualMachineInstanceVCPUChange}
	has, want := vmi.Status.CurrentCPUTopology, vmi.Spec.Domain.CPU
	if has == nil || want == nil || want.MaxSockets == 0 || conditionOf(vmi, change.Type) != nil {
		return change
	}
	if vcpus(has.Cores, has.Sockets, has.Threads) == vcpus(want.Cores, want.Sockets, want.Threads) {
		return change
	}
	change.Set = &v1.VirtualMachineInstanceCondition{Type: change.Type, Status: corev1.ConditionTrue}
	return change
}

// vcpus counts CPUs; what is not said is one.
func vcpus(cores, sockets, threads uint32) uint64 {
	return uint64(max(cores, 1)) * uint64(max(sockets, 1)) * uint64(max(threads, 1))
}

// hotMemoryChange asks for another amount of memory than the guest was last given.
// A condition that is False tells of a change that failed, and keeps it from being
// asked for again. The label keeps the cluster's ratio of now, by which the
// migration's target is sized.
func hotMemoryChange(vmi *v1.VirtualMachineInstance, ratio string) conditionChange {
	change := conditionChange{Type: v1.VirtualMachineInstanceMemoryChange}
	has, want := vmi.Status.Memory, vmi.Spec.Domain.Memory
	if has == nil || want == nil || want.Guest == nil || want.MaxGuest == nil || conditionOf(vmi, change.Type) != nil {
		return change
	}
	given := has.GuestRequested
	if given == nil {
		given = has.GuestAtBoot
	}
	if given == nil || want.Guest.Cmp(*given) == 0 {
		return change // without a word on what it was given there is nothing to compare
	}
	change.Set = &v1.VirtualMachineInstanceCondition{Type: change.Type, Status: corev1.ConditionTrue}
	if ratio != "" {
		change.Labels = map[string]string{v1.MemoryHotplugOverheadRatioLabel: ratio}
	}
	return change
}

// volumesChange asks for a migration to other volumes: some claim of the spec is
// none that the guest comes from.
func volumesChange(vmi *v1.VirtualMachineInstance) conditionChange {
	change := conditionChange{Type: v1.VirtualMachineInstanceVolumesChange}
	if len(vmi.Status.MigratedVolumes) == 0 || conditionOf(vmi, change.Type) != nil {
		return change
	}
	sources := map[string]bool{}
	for i := range vmi.Status.MigratedVolumes {
		if info := vmi.Status.MigratedVolumes[i].SourcePVCInfo; info != nil {
			sources[info.ClaimName] = true
		}
	}
	for i := range vmi.Spec.Volumes {
		if claim := writableClaim(&vmi.Spec.Volumes[i]); claim != "" && !sources[claim] {
			change.Set = &v1.VirtualMachineInstanceCondition{
				Type: change.Type, Status: corev1.ConditionTrue, Message: "migrate volumes",
			}
			return change
		}
	}
	return change
}

// writableClaim is the claim that a volume writes to; empty if there is none.
func writableClaim(v *v1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.DataVolume != nil:
		return v.DataVolume.Name
	case v.MemoryDump != nil:
		return v.MemoryDump.ClaimName
	default:
		return ""
	}
}

// migrationRequired says whether the guest must be migrated. That it must is not
// taken back while a cause remains, and not looked at while it migrates.
func migrationRequired(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, e MigrationEvaluator, now time.Time) conditionChange {
	change := conditionChange{Type: v1.VirtualMachineInstanceMigrationRequired}
	if underWay(vmi.Status.MigrationState) {
		return change
	}
	if e == nil {
		e = MigrationEvaluatorFunc(EvaluateNetworks)
	}
	verdict, was := e.Evaluate(vmi, pod, now), conditionOf(vmi, change.Type)
	if verdict.Status != corev1.ConditionTrue && verdict.Status != corev1.ConditionFalse {
		change.Remove = was != nil
		return change
	}
	if was != nil && was.Status == corev1.ConditionTrue {
		return change
	}
	if verdict.Status == corev1.ConditionFalse {
		change.RequeueAt = verdict.DueAt
		if !change.RequeueAt.After(now) {
			change.RequeueAt = now.Add(evaluateAgain)
		}
	}
	if to := verdict.condition(); was == nil || was.Status != to.Status || was.Reason != to.Reason {
		change.Set = to
	}
	return change
}

// condition is the verdict, True or False, as the guest's object tells it.
func (v Verdict) condition() *v1.VirtualMachineInstanceCondition {
	c := &v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceMigrationRequired, Status: v.Status,
		Reason: v1.VirtualMachineInstanceReasonAutoMigrationDueToLiveUpdate, Message: v.Reason,
	}
	if v.Status == corev1.ConditionFalse {
		c.Reason = v1.VirtualMachineInstanceReasonAutoMigrationPending
	}
	if v.Interface != "" {
		c.Message = "interface " + v.Interface + ": " + v.Reason
	}
	return c
}

// underWay tells whether a migration has started and not ended.
func underWay(m *v1.VirtualMachineInstanceMigrationState) bool {
	return m != nil && m.StartTimestamp != nil && m.EndTimestamp == nil && !m.Completed && !m.Failed
}

// evictionRequested says whether the guest was asked to leave its node.
func evictionRequested(vmi *v1.VirtualMachineInstance) conditionChange {
	change := conditionChange{Type: v1.VirtualMachineInstanceEvictionRequested}
	was := conditionOf(vmi, change.Type)
	switch {
	case !vmi.IsMarkedForEviction():
		change.Remove = was != nil
	case was == nil || was.Status != corev1.ConditionTrue:
		change.Set = &v1.VirtualMachineInstanceCondition{
			Type: change.Type, Status: corev1.ConditionTrue, Reason: v1.VirtualMachineInstanceReasonEvictionRequested,
			Message: "the guest was asked to leave node " + vmi.Status.EvacuationNodeName,
		}
	}
	return change
}

// conditionOf is the guest's condition of a type; nil if it has none.
func conditionOf(vmi *v1.VirtualMachineInstance, t v1.VirtualMachineInstanceConditionType) *v1.VirtualMachineInstanceCondition {
	for i := range vmi.Status.Conditions {
		if vmi.Status.Conditions[i].Type == t {
			return &vmi.Status.Conditions[i]
		}
	}
	return nil
}
