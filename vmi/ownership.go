// SPDX-License-Identifier: Apache-2.0

package vmi

import "github.com/virtloom/virtloom/handoff"

// ownership moves the lease of the VMI, except for offers.
type ownership struct{ *decision }

func (d ownership) held() bool { return d.lease.Holder != "" }

func (d ownership) switching() bool { return d.pod == nil && d.lease.Switching() }

// released reports whether virtloom's lease is released: the domain has ended.
func (d ownership) released() bool {
	return d.lease.State == handoff.Released && d.lease.Cause != handoff.CauseStock
}

func (d ownership) keep() error { return handoff.Put(d.plan.VMI, d.lease) }

// claim claims a VMI that has its Pod. A migration target belongs to its source until it
// has arrived.
func (d ownership) claim() error {
	if receiver(d.VMI) {
		return nil
	}
	return d.step(handoff.Event{Kind: handoff.Claim})
}

// release releases a lease that no node has accepted.
func (d ownership) release(why string) error {
	switch d.lease.State {
	case handoff.Unclaimed, handoff.Claimed, handoff.Offered:
		if receiver(d.VMI) {
			return nil
		}
		return d.step(handoff.Event{Kind: handoff.Release, Message: why})
	}
	return nil
}
