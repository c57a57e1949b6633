// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
)

// StepFunc is called when the migration of a VMI reaches a step on this node. The agent's work on
// that VMI continues when it returns, which it should when ctx ends. A step may be reported more
// than once: an agent repeats passes.
type StepFunc func(ctx context.Context, vmi types.NamespacedName, step plan.MigrationStep)

// step reports steps to OnStep.
func (r actor) step(ctx context.Context, key types.NamespacedName, reached ...plan.MigrationStep) {
	if r.OnStep == nil {
		return
	}
	for _, s := range reached {
		r.OnStep(ctx, key, s)
	}
}

// leaseChange returns the lease as the pass has found it, and as it is planned; both are zero where
// there is no readable lease.
func (v pass) leaseChange() (was, want handoff.Lease) {
	if v.vmi == nil || v.plan.VMI == nil {
		return was, want
	}
	want, err := handoff.Of(v.plan.VMI)
	if err != nil || v.leaseErr != nil {
		return handoff.Lease{}, handoff.Lease{}
	}
	return v.lease, want
}

// part is the role of a node in a change of its VMI's lease.
type part int

const (
	holds part = iota + 1
	awaits
	receives
)

// edge is a change of a lease, seen by one of its nodes. The source makes no difference to a node
// that receives.
type edge struct {
	part     part
	from, to handoff.State
}

// reached are the steps reached when an edge is decided, and when it is stored.
type reached struct{ decided, stored []plan.MigrationStep }

var edges = map[edge]reached{
	{holds, handoff.Prepared, handoff.Moving}:     {[]plan.MigrationStep{plan.SourceAsked}, []plan.MigrationStep{plan.SourceBegun}},
	{holds, handoff.Preparing, handoff.Owned}:     {nil, []plan.MigrationStep{plan.SourceReverted}},
	{holds, handoff.Prepared, handoff.Owned}:      {nil, []plan.MigrationStep{plan.SourceReverted}},
	{holds, handoff.Moving, handoff.Owned}:        {nil, []plan.MigrationStep{plan.SourceReverted}},
	{awaits, handoff.Preparing, handoff.Prepared}: {nil, []plan.MigrationStep{plan.TargetReady}},
	{part: receives, to: handoff.Arrived}:         {[]plan.MigrationStep{plan.TargetArrived}, []plan.MigrationStep{plan.TargetTaken}},
	{part: receives, to: handoff.Owned}:           {[]plan.MigrationStep{plan.TargetArrived}, []plan.MigrationStep{plan.TargetTaken, plan.TargetCompleted}},
	{holds, handoff.Arrived, handoff.Owned}:       {[]plan.MigrationStep{plan.TargetFinalizing}, []plan.MigrationStep{plan.TargetCompleted}},
}

// stepsOf returns the steps that a change of the lease means for the node.
func stepsOf(node string, was, want handoff.Lease) reached {
	e := edge{from: was.State, to: want.State}
	switch {
	case was.Target == node && want.Holder == node:
		e.part, e.from = receives, ""
	case was.Target == node:
		e.part = awaits
	case was.Holder == node:
		e.part = holds
	}
	return edges[e]
}

// noticed returns the steps reached by observation, when nothing is stored.
func (v pass) noticed(node string) []plan.MigrationStep {
	was, want := v.leaseChange()
	switch steps := stepsOf(node, was, want); {
	case len(steps.decided) > 0:
		return steps.decided
	case was.Target == node && was.Switching() && v.snapshot.State != nil:
		return []plan.MigrationStep{plan.TargetDetected}
	case v.left(node) && len(v.plan.Actions) > 0:
		return []plan.MigrationStep{plan.SourceLeft}
	}
	return nil
}

// left reports whether the guest has migrated from the node to another one.
func (v pass) left(node string) bool {
	if v.vmi == nil || v.plan.Role != handoff.RoleNone {
		return false
	}
	m := v.vmi.Status.MigrationState
	return m != nil && m.SourceNode == node && v.lease.Holder != "" && v.lease.Holder != node
}
