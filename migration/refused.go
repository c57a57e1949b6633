// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"errors"
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
)

// NoNodeError means that no node can ever match the target Pod.
type NoNodeError struct {
	// Fitness tells why.
	Fitness Fitness
}

// Error explains why no node matches, and what would help.
func (e *NoNodeError) Error() string {
	text := "no node can match the target Pod: " + e.Fitness.Text()
	if r := e.Fitness.Remedies(); len(r) > 0 {
		text += " (" + strings.Join(r, "; ") + ")"
	}
	return text
}

// refused judges why the target Pod, or the claim that it needs, could not be made.
func (d *decision) refused(err error) phase {
	if e := (*NoNodeError)(nil); errors.As(err, &e) {
		return d.noNode(e)
	}
	if e := (*QuotaError)(nil); errors.As(err, &e) {
		return d.overQuota(e.Error(), e.Text())
	}
	switch {
	case errors.Is(err, ErrForeignPod):
		return d.fail(cause{ReasonTargetPodForeign, err.Error()})
	case errors.Is(err, ErrRender):
		return d.fail(cause{ReasonRender, err.Error()})
	case errors.Is(err, ErrQuota):
		what := "the target Pod"
		if d.s.Failures[CreateClaim] != nil {
			what = "the claim with the guest's state at the target"
		}
		return d.overQuota(err.Error(), "a ResourceQuota of the namespace has no room for "+what+" (it must be raised, or others must end)")
	}
	what := "the target Pod cannot be made"
	if d.s.Failures[CreateClaim] != nil {
		what = "the claim with the guest's state at the target cannot be made"
	}
	d.failing(ReasonCreateFailed, what, err)
	return d.plan.Status.Phase
}

// failing explains what an action that fails keeps from being so, in the words of its first
// failure. Those of a later one may differ in a port, in an amount or in a time, and a status that
// followed them would be an event that repeats the pass at once, for ever.
func (d *decision) failing(r Reason, what string, err error) {
	text := what + ": " + err.Error()
	if c := Condition(d.s.Migration.Status, ConditionWaiting); c != nil && c.Reason == string(r) && strings.HasPrefix(c.Message, what+": ") {
		text, _, _ = strings.Cut(c.Message, "; "+string(OwnerController)+" has until ")
	}
	d.explain(OwnerController, r, text)
}

// overQuota waits for a change of the quota. KubeVirt's condition is written once, with
// all numbers of that moment; what the migration waits for is told without those that
// change as others come and go.
func (d *decision) overQuota(numbers, text string) phase {
	if Condition(d.plan.Status, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota) == nil {
		d.mark(v1.VirtualMachineInstanceMigrationRejectedByResourceQuota, ReasonQuota, numbers)
		d.tell(Event{Warning: true, OnVMI: true, Reason: EventCreateFailed, Message: numbers})
	}
	return d.stay(OwnerController, ReasonQuota, text)
}

// noNode fails, or waits for nodes as long as it is configured.
func (d *decision) noNode(e *NoNodeError) phase {
	since := d.now
	if c := Condition(d.s.Migration.Status, ConditionNoNode); c != nil {
		since = c.LastTransitionTime.Time
	}
	until := since.Add(d.s.Config.AwaitNodes)
	if !d.now.Before(until) {
		if e.hostModel() {
			d.tell(Event{Warning: true, OnVMI: true, Reason: EventNoSuitableNodes, Message: e.Error()})
		}
		return d.fail(cause{ReasonNoNode, e.Error()})
	}
	d.mark(ConditionNoNode, ReasonNoNode, "no node matches the target Pod")
	d.plan.Wake = until
	return d.stay(OwnerController, ReasonNoNode, e.Error()+"; nodes are waited for until "+clock(until))
}

// hostModel reports whether nodes lack what a guest with the CPU of its host needs.
func (e *NoNodeError) hostModel() bool {
	return slices.ContainsFunc(e.Fitness.Excluded, func(x Exclusion) bool {
		return x.Rule == RuleNodeSelector && slices.ContainsFunc(x.What, func(label string) bool {
			return strings.HasPrefix(label, v1.SupportedHostModelMigrationCPU)
		})
	})
}
