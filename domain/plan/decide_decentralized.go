// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// A VMI that migrates to another cluster or namespace becomes another object there. The
// object here ends when the other cluster reports the VMI; its report arrives in
// status.migrationState.targetState.

const (
	// reportWithin is how long the other cluster may take to report a VMI that has left:
	// KubeVirt's 60 seconds.
	reportWithin = time.Minute
	// reportRetry is the least delay before the report is checked again.
	reportRetry = 5 * time.Second
)

// departure is the holder's part of a migration to another cluster, which no lease of this one covers.
type departure struct{ *decision }

// left records that the VMI has left for another cluster.
func (d departure) left() {
	m := d.plan.VMI.Status.MigrationState
	if m.EndTimestamp == nil {
		at := d.now
		if !d.MigrationEnded.IsZero() && d.MigrationEnded.Before(at) {
			at = d.MigrationEnded
		}
		end := metav1.NewTime(at)
		m.EndTimestamp = &end
	}
	d.requeueAfter(reportRetry)
}

// departed reports whether the VMI has left for another cluster, so that this object and its
// domain have to end.
func (d departure) departed() bool {
	m := d.VMI.Status.MigrationState
	return d.VMI.IsMigrationSource() && !d.VMI.IsFinal() && m.SourceNode == d.Node && m.EndTimestamp != nil && !m.Failed &&
		(d.State == nil || !d.State.Alive()) && !d.Migrating && !d.MigrationActive
}

// leave ends this object once the other cluster has reported the VMI, or has not in time.
func (d departure) leave() error {
	m := d.plan.VMI.Status.MigrationState
	since := d.now.Sub(m.EndTimestamp.Time)
	switch t := m.TargetState; {
	case m.Completed, t.DomainDetected && t.DomainReadyTimestamp != nil:
		return d.end(v1.Succeeded, "the VMI has migrated to another cluster")
	case since >= 0 && since < reportWithin:
		d.requeueAfter(max(reportWithin-since, reportRetry))
		return nil
	}
	why := fmt.Sprintf("target cluster has not reported the VMI within %s after the migration", reportWithin)
	m.Failed, m.FailureReason = true, why
	ending(d).failed(vmistatus.ReasonGuestLost, why)
	return d.end(v1.Failed, why)
}

// end sets the final phase of the object and releases the VMI.
func (d departure) end(phase v1.VirtualMachineInstancePhase, why string) error {
	d.plan.VMI.Status.MigrationState.Completed = true
	vmistatus.SetPhase(d.plan.VMI, phase, d.now)
	events := []handoff.Kind{handoff.Release}
	if d.lease.State == handoff.Moving {
		// No other node of this cluster has taken the VMI over.
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
