// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
	"github.com/virtloom/virtloom/internal/volumeclaim"
)

// evaluateAgain is the default interval for an evaluator that returns no DueAt.
const evaluateAgain = 10 * time.Second

// conditionChange is the change of one condition of a VMI. If neither Set nor Remove is set,
// the condition is left unchanged.
type conditionChange struct {
	// Type is the type of the condition.
	Type v1.VirtualMachineInstanceConditionType
	// Set replaces the condition; apply sets its timestamps.
	Set *v1.VirtualMachineInstanceCondition
	// Remove removes the condition.
	Remove bool
	// Labels are labels of the VMI to set with it.
	Labels map[string]string
	// RequeueAt is when to evaluate again; zero if nothing changes with time.
	RequeueAt time.Time
}

// apply modifies the VMI, which must be a copy.
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

// hotVCPUChange requests another number of CPUs than the domain has. The node agent removes
// the condition.
func hotVCPUChange(vmi *v1.VirtualMachineInstance) conditionChange {
	change := conditionChange{Type: v1.VirtualMachineInstanceVCPUChange}
	has, want := vmi.Status.CurrentCPUTopology, vmi.Spec.Domain.CPU
	if has == nil || want == nil || want.MaxSockets == 0 || vmistatus.Condition(vmi, change.Type) != nil {
		return change
	}
	if vcpus(has.Cores, has.Sockets, has.Threads) == vcpus(want.Cores, want.Sockets, want.Threads) {
		return change
	}
	change.Set = &v1.VirtualMachineInstanceCondition{Type: change.Type, Status: corev1.ConditionTrue}
	return change
}

// vcpus returns the number of CPUs; a zero factor counts as one.
func vcpus(cores, sockets, threads uint32) uint64 {
	return uint64(max(cores, 1)) * uint64(max(sockets, 1)) * uint64(max(threads, 1))
}

// hotMemoryChange requests another amount of memory than was last requested for the domain.
// A condition with status False records a failed change, which is not requested again. The
// label stores the cluster's current ratio, which sizes the migration's target.
func hotMemoryChange(vmi *v1.VirtualMachineInstance, ratio string) conditionChange {
	change := conditionChange{Type: v1.VirtualMachineInstanceMemoryChange}
	has, want := vmi.Status.Memory, vmi.Spec.Domain.Memory
	if has == nil || want == nil || want.Guest == nil || want.MaxGuest == nil || vmistatus.Condition(vmi, change.Type) != nil {
		return change
	}
	given := has.GuestRequested
	// A VMI that started before its agent recorded requests has the amount at boot only.
	if given == nil {
		given = has.GuestAtBoot
	}
	if given == nil || want.Guest.Cmp(*given) == 0 {
		return change // without a recorded amount there is nothing to compare
	}
	change.Set = &v1.VirtualMachineInstanceCondition{Type: change.Type, Status: corev1.ConditionTrue}
	if ratio != "" {
		change.Labels = map[string]string{v1.MemoryHotplugOverheadRatioLabel: ratio}
	}
	return change
}

// volumesChange requests a migration to other volumes if a claim of the spec is not among the
// source claims.
func volumesChange(vmi *v1.VirtualMachineInstance) conditionChange {
	change := conditionChange{Type: v1.VirtualMachineInstanceVolumesChange}
	if len(vmi.Status.MigratedVolumes) == 0 || vmistatus.Condition(vmi, change.Type) != nil {
		return change
	}
	sources := map[string]bool{}
	for i := range vmi.Status.MigratedVolumes {
		if info := vmi.Status.MigratedVolumes[i].SourcePVCInfo; info != nil {
			sources[info.ClaimName] = true
		}
	}
	for i := range vmi.Spec.Volumes {
		if claim := volumeclaim.Written(&vmi.Spec.Volumes[i]); claim != "" && !sources[claim] {
			change.Set = &v1.VirtualMachineInstanceCondition{
				Type: change.Type, Status: corev1.ConditionTrue, Message: "migrate volumes",
			}
			return change
		}
	}
	return change
}

// migrationRequired computes the MigrationRequired condition. True is kept while a cause
// remains, and not evaluated during a migration.
func migrationRequired(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, e MigrationEvaluator, now time.Time) conditionChange {
	change := conditionChange{Type: v1.VirtualMachineInstanceMigrationRequired}
	if underWay(vmi.Status.MigrationState) {
		return change
	}
	if e == nil {
		e = MigrationEvaluatorFunc(evaluateNetworks)
	}
	verdict, was := e.Evaluate(vmi, pod, now), vmistatus.Condition(vmi, change.Type)
	if verdict.Status != corev1.ConditionTrue && verdict.Status != corev1.ConditionFalse {
		change.Remove = was != nil
		return change
	}
	// True is not withdrawn by a verdict False, which only says that the change is not due yet: the
	// migration that True has requested may have been created by now.
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

// condition returns the verdict, True or False, as a condition.
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

// underWay reports whether a migration has started and not ended.
func underWay(m *v1.VirtualMachineInstanceMigrationState) bool {
	return m != nil && m.StartTimestamp != nil && m.EndTimestamp == nil && !m.Completed && !m.Failed
}

// evictionRequested computes the EvictionRequested condition.
func evictionRequested(vmi *v1.VirtualMachineInstance) conditionChange {
	change := conditionChange{Type: v1.VirtualMachineInstanceEvictionRequested}
	was := vmistatus.Condition(vmi, change.Type)
	switch {
	case !vmi.IsMarkedForEviction():
		change.Remove = was != nil
	case was == nil || was.Status != corev1.ConditionTrue:
		change.Set = &v1.VirtualMachineInstanceCondition{
			Type: change.Type, Status: corev1.ConditionTrue, Reason: v1.VirtualMachineInstanceReasonEvictionRequested,
			Message: "the VirtualMachineInstance was requested to leave node " + vmi.Status.EvacuationNodeName,
		}
	}
	return change
}
