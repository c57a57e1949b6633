// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// agents are the node agents of the VMIs.
type agents struct{ *Sim }

// react lets the agents of the VMI's nodes act when it is their turn.
func (s agents) react(g *simulatedGuest) {
	lease, err := handoff.Of(g.VMI)
	if err != nil {
		s.fail(err)
		return
	}
	epoch := lease.Epoch
	switch lease.State {
	case handoff.Preparing:
		if s.byName[lease.Target] == nil {
			return // no agent prepares there
		}
		s.after(s.o.Latency.Prepare, func() {
			if s.step(g, handoff.Preparing, handoff.Event{Kind: handoff.Ready, Epoch: epoch, Node: lease.Target}) {
				g.VMI.Status.MigrationState.TargetNodeAddress = "target"
				s.react(g)
			}
		})
	case handoff.Prepared:
		s.after(s.o.Latency.Begin, func() {
			if s.step(g, handoff.Prepared, handoff.Event{Kind: handoff.Begin, Epoch: epoch, Node: lease.Holder}) {
				now := s.clock.stamp()
				g.VMI.Status.MigrationState.StartTimestamp = &now
				links(s).begin(g, lease.Holder, lease.Target)
			}
		})
	case handoff.Moving:
		s.moving(g, lease)
	case handoff.Arrived:
		s.after(s.o.Latency.TakeOver, func() { s.finalize(g) })
	}
}

// moving lets the source send the VMI, or abort as requested.
func (s agents) moving(g *simulatedGuest, lease handoff.Lease) {
	if s.byName[lease.Holder] == nil || g.landing {
		return // no agent sends it, or all of it was sent
	}
	if g.transfer == nil {
		links(s).begin(g, lease.Holder, lease.Target) // it was already under way at the start
	}
	if ms := g.VMI.Status.MigrationState; ms != nil && ms.AbortRequested {
		s.after(s.o.Latency.Begin, func() { s.revert(g, "the migration was aborted") })
	}
}

// step changes the lease as a node does, unless its state has changed, and reports whether it
// did.
func (s agents) step(g *simulatedGuest, from handoff.State, e handoff.Event) bool {
	lease, err := handoff.Of(g.VMI)
	if err != nil || lease.State != from || lease.Epoch != e.Epoch {
		s.fail(err)
		return false
	}
	next, _, err := handoff.Step(lease, e, s.clock.now)
	if err == nil {
		err = handoff.Put(g.VMI, next)
	}
	if err != nil {
		s.fail(fmt.Errorf("VMI %s: %w", g.key, err))
		return false
	}
	controller(s).changed(g)
	return true
}

// leased returns the VMI's lease, and whether it is in the state.
func (g *simulatedGuest) leased(in handoff.State) (handoff.Lease, bool) {
	lease, err := handoff.Of(g.VMI)
	return lease, err == nil && lease.State == in
}

// arrive ends a transfer: the target takes over.
func (s agents) arrive(g *simulatedGuest) {
	lease, moving := g.leased(handoff.Moving)
	switch {
	case !moving:
		return
	case g.transfer.to == nil:
		s.revert(g, fmt.Sprintf("node %q, the target of the VMI, does not exist", lease.Target))
		return
	}
	links(s).end(g)
	g.landing = true
	s.after(s.o.Latency.TakeOver, func() {
		g.landing = false
		if s.step(g, handoff.Moving, handoff.Event{Kind: handoff.TakeOver, Epoch: lease.Epoch, Node: lease.Target}) {
			s.ledger.arrived(s.Sim, g, lease.Holder, lease.Target)
			g.VMI.Status.EvacuationNodeName = ""
			delete(g.VMI.Annotations, v1.EvictionSourceAnnotation)
			evacuator(s).reconsider(g, s.clock.now.Add(s.o.Latency.Watch))
			s.react(g)
		}
	})
}

// finalize completes the migration at the target.
func (s agents) finalize(g *simulatedGuest) {
	lease, arrived := g.leased(handoff.Arrived)
	if !arrived || !s.step(g, handoff.Arrived, handoff.Event{Kind: handoff.Finalize, Epoch: lease.Epoch, Node: lease.Holder}) {
		return
	}
	s.close(g, "")
}

// revert ends a transfer without success: the VMI stays.
func (s agents) revert(g *simulatedGuest, why string) {
	lease, moving := g.leased(handoff.Moving)
	if !moving || g.transfer == nil {
		return
	}
	links(s).end(g)
	if s.step(g, handoff.Moving, handoff.Event{Kind: handoff.Revert, Epoch: lease.Epoch, Node: lease.Holder, Message: why}) {
		s.close(g, why)
	}
}

// close completes the VMI's migration state.
func (s agents) close(g *simulatedGuest, failure string) {
	ms := g.VMI.Status.MigrationState
	if ms == nil {
		ms = &v1.VirtualMachineInstanceMigrationState{}
		g.VMI.Status.MigrationState = ms
	}
	now := metav1.NewTime(s.clock.now).Rfc3339Copy()
	ms.EndTimestamp, ms.Completed = &now, true
	ms.Failed, ms.FailureReason = failure != "", failure
	s.ledger.moved(g)
	controller(s).changed(g)
}
