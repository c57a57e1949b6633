// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"errors"
	"fmt"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// DefaultSilentAfter is how long a node may send no heartbeat before it counts as
// unresponsive and its VMIs as lost: KubeVirt's heartbeat timeout.
const DefaultSilentAfter = 5 * time.Minute

// askAgain is the interval of queries for evidence about an unresponsive node.
const askAgain = time.Minute

// NeedsEvidence returns the unresponsive nodes for which Decide needs evidence that the domain
// does not run there. The usual result is nil.
//
// Evidence costs a read of the API server or a question to a fencing agent, so it is gathered for these
// nodes alone and not for every VMI in every pass. The answer only ever adds to a decision: without
// evidence Decide waits, however long that takes.
func (s Snapshot) NeedsEvidence() []string {
	l, err := handoff.Of(s.VMI)
	if err != nil {
		return nil
	}
	// The two cases exclude each other: a VMI of a stock agent has no lease that could be Lost.
	if node := doubted(l); s.silent(node) {
		return []string{node}
	}
	if s.stockAgent(l) && s.silent(l.Holder) {
		return []string{l.Holder}
	}
	return nil
}

// StockAgent reports whether the VMI was or may have been handed off to stock virt-handler, which reads KubeVirt's
// fields only. It may start a domain without having accepted the lease, so no deadline ends its wait; the domain ends
// with its Pod. As for KubeVirt, the absence of its Pods on an unresponsive node is evidence.
func (s Snapshot) StockAgent() bool {
	l, err := handoff.Of(s.VMI)
	return err == nil && s.stockAgent(l)
}

func (s Snapshot) stockAgent(l handoff.Lease) bool {
	if p := s.VMI.Status.Phase; p != v1.Scheduled && p != v1.Running {
		return false
	}
	// Offered is in doubt because stock virt-handler starts the domain upon label and phase, without a
	// write before it: whether it has done so is not visible until it reports.
	switch l.State {
	case handoff.Offered:
		return l.Cause == handoff.CauseStock || s.Stock[l.Holder]
	case handoff.Owned:
		return l.Cause == handoff.CauseStock
	default:
		return false
	}
}

// doubted returns the node whose report, or evidence about it, the lease needs in order to
// progress; empty if there is none. A missing Node object is no evidence about another cluster:
// its report is awaited, and delivered by the migration controller.
func doubted(l handoff.Lease) string {
	switch {
	case l.Target == handoff.Elsewhere && l.State != handoff.Lost:
		return ""
	case l.State == handoff.Lost:
		return l.Holder
	// The source is out of the question. Only the target can know whether the domain has arrived, so
	// it is the target's silence that blocks.
	case l.State == handoff.Fenced, l.State == handoff.Moving && l.Stalled:
		return l.Target
	}
	return ""
}

func (s Snapshot) silent(node string) bool {
	_, silent := s.Silent[node]
	return silent && node != ""
}

// unresponsiveNode decides about a VMI whose node is unresponsive.
type unresponsiveNode struct{ *decision }

// decide handles a VMI whose node is unresponsive, and reports whether it did: then the rest
// of the status is not computed. A VMI of a stock agent never becomes Lost, because such an
// agent cannot report its return.
func (d unresponsiveNode) decide() (bool, error) {
	l := d.lease
	switch {
	case d.stockAgent(d.lease):
		return d.stockGone()
	// Neither Lost nor fenced, whatever its state: see stockAgent. Its Pod's end fails it, elsewhere.
	case l.Cause == handoff.CauseStock:
		return false, nil
	case l.State == handoff.Fenced && l.Target == "":
		return true, d.giveUp("the node of the VirtualMachineInstance was fenced")
	case doubted(l) != "" && len(d.NeedsEvidence()) > 0:
		return true, d.judge(doubted(l))
	case d.silent(l.Holder):
		return d.suspect()
	}
	return false, nil
}

// stockGone fails a VMI whose stock node is unresponsive and has no live Pod of it, as KubeVirt does.
func (d unresponsiveNode) stockGone() (bool, error) {
	node := d.lease.Holder
	if !d.silent(node) {
		return false, nil
	}
	e, found := d.Evidence[node]
	if !found || e.Kind == handoff.NodeGone { // a machine may outlive its Node object, and the domain runs in its Pod
		d.requeue(d.now.Add(askAgain))
		return false, nil
	}
	why := fmt.Sprintf("node %s has been unresponsive since %s and does not run the VirtualMachineInstance: %s, %s",
		node, d.Silent[node].UTC().Format(time.RFC3339), e.Kind, e.Detail)
	// The lease is of this controller's making, and no node has accepted it. Released, it cannot be
	// accepted by the agent should that return after all.
	if d.lease.State == handoff.Offered && d.lease.Cause != handoff.CauseStock {
		if err := d.step(handoff.Event{Kind: handoff.Release, Message: why}); err != nil {
			return false, err
		}
	}
	d.setPhase(v1.Failed)
	d.plan.VMI.Status.Reason = ReasonNodeUnresponsive
	problem(d).report(ReasonNodeUnresponsive, why)
	return true, nil
}

// suspect marks the lease of an unresponsive holder as Lost. A migration that has not begun is
// canceled first, once its deadline has passed: until then others handle it.
func (d unresponsiveNode) suspect() (bool, error) {
	switch l := d.lease; l.State {
	case handoff.Preparing, handoff.Prepared:
		// A node that is busy with a migration may miss heartbeats. While the step has time left, the
		// target, the migration controller and the source itself can still end it in order.
		if l.Deadline != nil && !l.Overdue(d.now) {
			d.requeue(l.Deadline.Time)
			return false, nil
		}
		why := fmt.Sprintf("source node %s is unresponsive", l.Holder)
		if err := d.step(handoff.Event{Kind: handoff.Cancel, Tag: l.Tag, Message: why}); err != nil {
			return false, err
		}
	case handoff.Owned, handoff.Moving, handoff.Arrived, handoff.Releasing:
		// The source has said that it cannot know where the domain is. Its silence adds nothing to that,
		// and Lost would hide that the target is to answer: see doubted.
		if l.Stalled {
			return false, nil
		}
	default:
		return false, nil
	}
	node := d.lease.Holder
	// Lost takes nothing away from the holder, which may return and continue as before. But it has to
	// store that first, so that from the deadline of Lost on evidence about it stays true.
	if err := d.step(handoff.Event{Kind: handoff.Suspect, Node: node}); err != nil {
		return false, err
	}
	if at := d.next.Deadline; at != nil {
		d.requeue(at.Time)
	}
	problem(d).report(ReasonNodeUnresponsive, fmt.Sprintf(
		"node %s has been unresponsive since %s; it keeps the VirtualMachineInstance until it returns or is fenced",
		node, d.Silent[node].UTC().Format(time.RFC3339)))
	return true, nil
}

// judge fences the node if there is evidence; otherwise the lease stays unchanged.
func (d unresponsiveNode) judge(node string) error {
	e, found := d.Evidence[node]
	if !found {
		d.requeue(d.now.Add(askAgain))
		if l := d.lease; l.Deadline != nil && l.Deadline.After(d.now) {
			d.requeue(l.Deadline.Time)
		}
		return nil
	}
	why := fmt.Sprintf("node %s does not run the VirtualMachineInstance: %s, %s", node, e.Kind, e.Detail)
	switch err := d.step(handoff.Event{Kind: handoff.Fence, Node: node, Evidence: &e, Message: why}); {
	// The holder may act for handoff.ActWithin after its last answer from the API server. Evidence
	// from before that is no evidence: the domain could have been started since.
	case errors.Is(err, handoff.ErrTooEarly):
		d.requeue(d.now.Add(askAgain))
		if l := d.lease.Deadline; l != nil {
			d.requeue(l.Time)
		}
		return nil
	case err != nil:
		return err
	}
	// The fenced node was the source of a migration. To give up now would release a VMI whose domain
	// may run at the target; the target is asked first, and takes over or declines.
	if d.next.Target != "" { // the domain may have arrived there
		at := d.now.Add(askAgain)
		if d.next.Deadline != nil {
			at = d.next.Deadline.Time
		}
		d.requeue(at)
		return nil
	}
	return d.giveUp(why)
}

// giveUp fails a VMI whose domain is known to run nowhere. Like KubeVirt, this controller does
// not restart it: its owner may.
func (d unresponsiveNode) giveUp(why string) error {
	if err := d.step(handoff.Event{Kind: handoff.Release, Message: why}); err != nil {
		return err
	}
	if d.VMI.IsFinal() {
		return nil
	}
	d.setPhase(v1.Failed)
	d.plan.VMI.Status.Reason = ReasonNodeUnresponsive
	problem(d).report(ReasonNodeUnresponsive, why)
	return nil
}
