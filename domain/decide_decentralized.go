// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// A guest that moves to another cluster or namespace becomes another object there. The
// one here ends when the other reports the guest; what it reports arrives in
// status.migrationState.targetState.

const (
	// reportWithin is how long the other cluster may take to report a guest that has
	// left: KubeVirt's 60 seconds.
	reportWithin = time.Minute
	// reportRetry is the least time after which that is looked at again.
	reportRetry = 5 * time.Second
)

// left notes that the guest has left for another cluster.
func (d *decision) left() {
	m := d.plan.VMI.Status.MigrationState
	if m.EndTimestamp == nil {
		at := d.now
		if !d.MoveEnded.IsZero() && d.MoveEnded.Before(at) {
			at = d.MoveEnded
		}
		end := metav1.NewTime(at)
		m.EndTimestamp = &end
	}
	d.again(reportRetry)
}

// departed tells whether the guest has left for another cluster, and this object with
// what is left of it has to end.
func (d *decision) departed() bool {
	m := d.VMI.Status.MigrationState
	return d.VMI.IsMigrationSource() && !d.VMI.IsFinal() && m.SourceNode == d.Node && m.EndTimestamp != nil && !m.Failed &&
		(d.State == nil || !d.State.Alive()) && !d.Moving && !d.MoveActive
}

// leave ends this object once the guest is known to run in the other cluster, or nothing
// is heard of it.
func (d *decision) leave() error {
	m := d.plan.VMI.Status.MigrationState
	since := d.now.Sub(m.EndTimestamp.Time)
	switch t := m.TargetState; {
	case m.Completed, t.DomainDetected && t.DomainReadyTimestamp != nil:
		return d.end(v1.Succeeded, "the guest has moved to another cluster")
	case since >= 0 && since < reportWithin:
		d.again(max(reportWithin-since, reportRetry))
		return nil
	}
	why := fmt.Sprintf("the other cluster has not reported the guest within %s of its leaving", reportWithin)
	m.Failed, m.FailureReason = true, why
	d.tell(true, NoticeGuestLost, why)
	return d.end(v1.Failed, why)
}

// end gives the object its final phase and lets go of the guest.
func (d *decision) end(phase v1.VirtualMachineInstancePhase, why string) error {
	d.plan.VMI.Status.MigrationState.Completed = true
	vmistatus.SetPhase(d.plan.VMI, phase, d.now)
	events := []handoff.Kind{handoff.Release}
	if d.lease.State == handoff.Moving {
		// The guest has not come to another node of this object.
		events = []handoff.Kind{handoff.Revert, handoff.Release}
	}
	for _, kind := range events {
		if err := d.step(handoff.Event{Kind: kind, Message: why}); err != nil {
			return err
		}
	}
	d.clear(why)
	return nil
}
