// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

// StepFunc is told that the migration of a guest has reached a step on this node. What
// the agent does for that guest does not go on before it returns, which it should when
// ctx ends. A step may be reached more than once: an agent looks again.
type StepFunc func(ctx context.Context, vmi types.NamespacedName, step domain.MigrationStep)

// step tells that steps have been reached.
func (r *Reconciler) step(ctx context.Context, key types.NamespacedName, reached ...domain.MigrationStep) {
	if r.OnStep == nil {
		return
	}
	for _, s := range reached {
		r.OnStep(ctx, key, s)
	}
}

// leases are the lease as the pass has found it, and as it wants it; both are zero
// where there is none to be read.
func (v view) leases() (was, want handoff.Lease) {
	if v.vmi == nil || v.plan.VMI == nil {
		return was, want
	}
	was, wasErr := handoff.Of(v.vmi)
	want, wantErr := handoff.Of(v.plan.VMI)
	if wasErr != nil || wantErr != nil {
		return handoff.Lease{}, handoff.Lease{}
	}
	return was, want
}

// part is what a node is to a guest in a change of its lease.
type part int

const (
	holds part = iota + 1
	awaits
	receives
)

// edge is a change of a lease, seen by one of its nodes. Whence a guest comes that the
// node receives makes no difference.
type edge struct {
	part     part
	from, to handoff.State
}

// reached are the steps reached when an edge is decided, and when it is stored.
type reached struct{ decided, stored []domain.MigrationStep }

var edges = map[edge]reached{
	{holds, handoff.Prepared, handoff.Moving}:     {[]domain.MigrationStep{domain.SourceAsked}, []domain.MigrationStep{domain.SourceBegun}},
	{holds, handoff.Preparing, handoff.Owned}:     {nil, []domain.MigrationStep{domain.SourceReverted}},
	{holds, handoff.Prepared, handoff.Owned}:      {nil, []domain.MigrationStep{domain.SourceReverted}},
	{holds, handoff.Moving, handoff.Owned}:        {nil, []domain.MigrationStep{domain.SourceReverted}},
	{awaits, handoff.Preparing, handoff.Prepared}: {nil, []domain.MigrationStep{domain.TargetReady}},
	{part: receives, to: handoff.Arrived}:         {[]domain.MigrationStep{domain.TargetArrived}, []domain.MigrationStep{domain.TargetTaken}},
	{part: receives, to: handoff.Owned}:           {[]domain.MigrationStep{domain.TargetArrived}, []domain.MigrationStep{domain.TargetTaken, domain.TargetCompleted}},
	{holds, handoff.Arrived, handoff.Owned}:       {[]domain.MigrationStep{domain.TargetFinalizing}, []domain.MigrationStep{domain.TargetCompleted}},
}

// stepsOf are the steps that a change of the lease means for the node.
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

// noticed are the steps that are reached by what was seen, when nothing is stored.
func (v view) noticed(node string) []domain.MigrationStep {
	was, want := v.leases()
	switch steps := stepsOf(node, was, want); {
	case len(steps.decided) > 0:
		return steps.decided
	case was.Target == node && was.Switching() && v.sight.State != nil:
		return []domain.MigrationStep{domain.TargetDetected}
	case v.left(node) && len(v.plan.Tasks) > 0:
		return []domain.MigrationStep{domain.SourceLeft}
	}
	return nil
}

// left tells whether the guest has moved from the node to another one.
func (v view) left(node string) bool {
	if v.vmi == nil || v.plan.Role != domain.RoleNone {
		return false
	}
	m := v.vmi.Status.MigrationState
	l, err := handoff.Of(v.vmi)
	return err == nil && m != nil && m.SourceNode == node && l.Holder != "" && l.Holder != node
}
