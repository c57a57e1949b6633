// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"errors"
	"fmt"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// DefaultSilentAfter is how long a node may give no sign of life before its guests
// count as lost: KubeVirt's heartbeat timeout.
const DefaultSilentAfter = 5 * time.Minute

// askAgain is how soon evidence about a silent node is asked for again.
const askAgain = time.Minute

// NeedsEvidence names the silent nodes of which Decide would like to know whether the
// guest is known not to run there. A nil result is the usual one.
func (s Snapshot) NeedsEvidence() []string {
	l, err := handoff.Of(s.VMI)
	if err != nil {
		return nil
	}
	if node := doubted(l); s.silent(node) {
		return []string{node}
	}
	if s.stockAgent(l) && s.silent(l.Holder) {
		return []string{l.Holder}
	}
	return nil
}

// StockAgent reports whether the guest was handed over to KubeVirt's own agent, or one that may be: what that does is
// told in KubeVirt's own fields alone. It may boot a guest that has accepted nothing, so no deadline ends its wait, and
// it ends with its Pod: that no Pod of it is left on a silent node is evidence, as it is for KubeVirt.
func (s Snapshot) StockAgent() bool {
	l, err := handoff.Of(s.VMI)
	return err == nil && s.stockAgent(l)
}

func (s Snapshot) stockAgent(l handoff.Lease) bool {
	if p := s.VMI.Status.Phase; p != v1.Scheduled && p != v1.Running {
		return false
	}
	switch l.State {
	case handoff.Offered:
		return l.Cause == handoff.CauseStock || s.Stock[l.Holder]
	case handoff.Owned:
		return l.Cause == handoff.CauseStock
	default:
		return false
	}
}

// doubted is the node that a lease cannot go on without a word from, or evidence
// about; empty if there is none. That no node has the name of another cluster is no
// evidence: its word is awaited, and brought by who migrates the guest.
func doubted(l handoff.Lease) string {
	switch {
	case l.Target == handoff.Elsewhere && l.State != handoff.Lost:
		return ""
	case l.State == handoff.Lost:
		return l.Holder
	case l.State == handoff.Fenced, l.State == handoff.Moving && l.Stalled:
		return l.Target
	}
	return ""
}

func (s Snapshot) silent(node string) bool {
	_, silent := s.Silent[node]
	return silent && node != ""
}

// silence deals with a guest whose node says nothing any more, and reports whether
// it did: then the rest of the status waits. A guest that a stock node agent runs is never Lost, as such an agent
// cannot say that it is back.
func (d *decision) silence() (bool, error) {
	l := d.lease
	switch {
	case d.stockAgent(d.lease):
		return d.stockGone()
	case l.Cause == handoff.CauseStock:
		return false, nil
	case l.State == handoff.Fenced && l.Target == "":
		return true, d.giveUp("the node that had the guest was found gone")
	case doubted(l) != "" && len(d.NeedsEvidence()) > 0:
		return true, d.judge(doubted(l))
	case d.silent(l.Holder):
		return d.suspect()
	}
	return false, nil
}

// stockGone ends the guest of a stock node that is silent and has no live Pod of it any more, as KubeVirt does.
func (d *decision) stockGone() (bool, error) {
	node := d.lease.Holder
	if !d.silent(node) {
		return false, nil
	}
	e, found := d.Evidence[node]
	if !found || e.Kind == handoff.NodeGone { // a machine may outlive its Node object, and the guest is in its Pod
		d.requeue(d.now.Add(askAgain))
		return false, nil
	}
	why := fmt.Sprintf("node %s gives no sign of life since %s, and does not run the guest: %s, %s",
		node, d.Silent[node].UTC().Format(time.RFC3339), e.Kind, e.Detail)
	if d.lease.State == handoff.Offered && d.lease.Cause != handoff.CauseStock {
		if err := d.step(handoff.Event{Kind: handoff.Release, Message: why}); err != nil {
			return false, err
		}
	}
	d.setPhase(v1.Failed)
	d.plan.VMI.Status.Reason = ReasonNodeUnresponsive
	d.complain(ReasonNodeUnresponsive, why)
	return true, nil
}

// suspect marks the guest of a silent holder as lost. A move that has not begun is
// called off before, once it is overdue: until then others see to it.
func (d *decision) suspect() (bool, error) {
	switch l := d.lease; l.State {
	case handoff.Preparing, handoff.Prepared:
		if l.Deadline != nil && !l.Overdue(d.now) {
			d.requeue(l.Deadline.Time)
			return false, nil
		}
		why := fmt.Sprintf("source node %s is silent", l.Holder)
		if err := d.step(handoff.Event{Kind: handoff.Cancel, Tag: l.Tag, Message: why}); err != nil {
			return false, err
		}
	case handoff.Owned, handoff.Moving, handoff.Arrived, handoff.Releasing:
		if l.Stalled {
			return false, nil
		}
	default:
		return false, nil
	}
	node := d.lease.Holder
	if err := d.step(handoff.Event{Kind: handoff.Suspect, Node: node}); err != nil {
		return false, err
	}
	if at := d.next.Deadline; at != nil {
		d.requeue(at.Time)
	}
	d.complain(ReasonNodeUnresponsive, fmt.Sprintf(
		"node %s gives no sign of life since %s; the guest stays its own until the node returns, or is known to be gone",
		node, d.Silent[node].UTC().Format(time.RFC3339)))
	return true, nil
}

// judge fences the node if there is evidence; else the guest stays where it may be.
func (d *decision) judge(node string) error {
	e, found := d.Evidence[node]
	if !found {
		d.requeue(d.now.Add(askAgain))
		if l := d.lease; l.Deadline != nil && l.Deadline.After(d.now) {
			d.requeue(l.Deadline.Time)
		}
		return nil
	}
	why := fmt.Sprintf("node %s does not run the guest: %s, %s", node, e.Kind, e.Detail)
	switch err := d.step(handoff.Event{Kind: handoff.Fence, Node: node, Evidence: &e, Message: why}); {
	case errors.Is(err, handoff.ErrTooEarly):
		d.requeue(d.now.Add(askAgain))
		if l := d.lease.Deadline; l != nil {
			d.requeue(l.Time)
		}
		return nil
	case err != nil:
		return err
	}
	if d.next.Target != "" { // the guest may have arrived there
		at := d.now.Add(askAgain)
		if d.next.Deadline != nil {
			at = d.next.Deadline.Time
		}
		d.requeue(at)
		return nil
	}
	return d.giveUp(why)
}

// giveUp ends a guest that is known to run nowhere. Like KubeVirt, this controller
// does not start it again: who made it may.
func (d *decision) giveUp(why string) error {
	if err := d.step(handoff.Event{Kind: handoff.Release, Message: why}); err != nil {
		return err
	}
	if d.VMI.IsFinal() {
		return nil
	}
	d.setPhase(v1.Failed)
	d.plan.VMI.Status.Reason = ReasonNodeUnresponsive
	d.complain(ReasonNodeUnresponsive, why)
	return nil
}

// requeue asks to be run again at the time, or before.
func (d *decision) requeue(at time.Time) {
	if d.plan.RequeueAt == nil || at.Before(*d.plan.RequeueAt) {
		d.plan.RequeueAt = &at
	}
}
