// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"errors"
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration/placement"
)

// NoNodeError means that no node can ever match the target Pod.
type NoNodeError struct {
	// Fitness says why.
	Fitness placement.Fitness
}

// refusal decides what follows from checks, nodes and quotas that do not admit the migration.
type refusal struct{ *decision }

// Error returns why no node matches, and a remedy.
func (e *NoNodeError) Error() string {
	text := "no node can match the target Pod: " + e.Fitness.Text()
	if r := e.Fitness.Remedies(); len(r) > 0 {
		text += " (" + strings.Join(r, "; ") + ")"
	}
	return text
}

// refused handles the error of creating the target Pod or the claim that it needs.
func (d refusal) refused(err error) phase {
	if e := (*NoNodeError)(nil); errors.As(err, &e) {
		return d.noNode(e)
	}
	if e := (*placement.QuotaError)(nil); errors.As(err, &e) {
		return d.overQuota(e.Error(), e.Text())
	}
	switch {
	case errors.Is(err, ErrForeignPod):
		return stop(d).fail(cause{ReasonTargetPodForeign, err.Error()})
	case errors.Is(err, ErrRender):
		return stop(d).fail(cause{ReasonRender, err.Error()})
	case errors.Is(err, placement.ErrQuota):
		what := "the target Pod"
		if d.s.Failures[CreateClaim] != nil {
			what = "the claim with the VMI's state at the target"
		}
		return d.overQuota(err.Error(), "a ResourceQuota of the namespace has no room for "+what+" (raise the quota or free resources)")
	}
	what := "the target Pod cannot be created"
	if d.s.Failures[CreateClaim] != nil {
		what = "the claim with the VMI's state at the target cannot be created"
	}
	d.failing(ReasonCreateFailed, what, err)
	return d.plan.Status.Phase
}

// failing explains what a failing action prevents, in the words of its first failure. Later
// messages may differ in a port, an amount or a time; a status that followed them would
// trigger the next pass at once, forever.
func (d refusal) failing(r Reason, what string, err error) {
	text := what + ": " + err.Error()
	if c := Condition(d.s.Migration.Status, ConditionWaiting); c != nil && c.Reason == string(r) && strings.HasPrefix(c.Message, what+": ") {
		text, _, _ = strings.Cut(c.Message, "; "+string(handoff.ByController)+" has until ")
	}
	d.explain(handoff.ByController, r, text)
}

// overQuota waits for a change of the quota. KubeVirt's condition is written once, with all
// numbers of that moment; the waiting condition omits those that change with other
// workloads.
func (d refusal) overQuota(numbers, text string) phase {
	if Condition(d.plan.Status, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota) == nil {
		d.mark(v1.VirtualMachineInstanceMigrationRejectedByResourceQuota, ReasonQuota, numbers)
		d.emit(Event{Warning: true, OnVMI: true, Reason: EventCreateFailed, Message: numbers})
	}
	return d.stay(handoff.ByController, ReasonQuota, text)
}

// noNode fails, or waits for nodes for the configured time.
func (d refusal) noNode(e *NoNodeError) phase {
	since := d.now
	if c := Condition(d.s.Migration.Status, ConditionNoNode); c != nil {
		since = c.LastTransitionTime.Time
	}
	until := since.Add(d.s.Config.AwaitNodes)
	if !d.now.Before(until) {
		if e.hostModel() {
			d.emit(Event{Warning: true, OnVMI: true, Reason: eventNoSuitableNodes, Message: e.Error()})
		}
		return stop(d).fail(cause{ReasonNoNode, e.Error()})
	}
	d.mark(ConditionNoNode, ReasonNoNode, "no node matches the target Pod")
	d.plan.RequeueAt = until
	return d.stay(handoff.ByController, ReasonNoNode, e.Error()+"; waiting for a node until "+clock(until))
}

// hostModel reports whether nodes lack what a host-model CPU requires.
func (e *NoNodeError) hostModel() bool {
	return slices.ContainsFunc(e.Fitness.Excluded, func(x placement.Exclusion) bool {
		return x.Rule == placement.RuleNodeSelector && slices.ContainsFunc(x.What, func(label string) bool {
			return strings.HasPrefix(label, v1.SupportedHostModelMigrationCPU)
		})
	})
}
