// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"time"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// stray decides about domains and files that are not those of a VMI of this node.
type stray struct{ *decision }

// orphan stops a domain without an object, gracefully for the grace period in its metadata.
// Without one it is force-stopped, as in KubeVirt, unless all of its metadata is lost.
func (d stray) orphan(why string) {
	// A domain that is paused for a switch may run elsewhere, or have run there since: it must
	// not be resumed, which a graceful shutdown would require.
	if d.State == nil || !d.State.Alive() || source(d).handingOver() || d.State.Held() {
		d.clear(why)
		return
	}
	// The object is gone, and with it the grace period of its spec: the metadata has a copy for this
	// case. A domain whose metadata is damaged may be anything, and gets the benefit of the doubt.
	period := time.Duration(0)
	switch {
	case d.meta.GracePeriod != nil:
		period = *d.meta.GracePeriod
	case d.unmarked:
		period = DefaultGrace
	}
	ending(d).shutdown(period, why)
}

// foreign ensures that a VMI that is not this node's does not run here.
func (d stray) foreign() {
	if (d.Migrating || d.MigrationActive) && !d.executes() && (d.State == nil || !d.torn()) {
		// The VMI has migrated: the hypervisor is about to end the domain here by itself.
		d.requeueAfter(pollMigration)
		return
	}
	if d.disputed() {
		d.requeueAfter(prepareRetry)
		return
	}
	d.clear("the VMI is not assigned to this node")
}

// disputed reports whether, without a lease, KubeVirt's label and status.nodeName name two
// nodes, this one by the latter. KubeVirt lets both act; that might start the VMI twice, and
// stopping it here might leave none.
func (d stray) disputed() bool {
	_, leased := d.VMI.Annotations[handoff.Annotation]
	return !leased && d.lease.Holder != "" && d.lease.Holder != d.Node && d.VMI.Status.NodeName == d.Node
}

// executes reports whether the domain's CPUs run here.
func (d stray) executes() bool {
	return d.State != nil && d.State.Alive() && d.State.Status != domain.StatusPaused
}

// earlier reports on a VMI that is offered to this node that a domain of an earlier object
// with its name has not ended, so that the offer does not appear to be ignored. The two may
// have the same disks.
func (d stray) earlier() error {
	lease, err := handoff.Of(d.VMI)
	if err != nil || handoff.RoleOf(lease, d.Node) != handoff.RoleOffered || d.VMI.DeletionTimestamp != nil || d.VMI.IsFinal() {
		return nil //nolint:nilerr // the earlier domain ends whatever the lease says
	}
	report(d).outOfSync(status.ReasonNotReady, fmt.Sprintf("VirtualMachineInstance %s/%s: the domain of an earlier object with this name (UID %s) still runs on node %s and is being stopped",
		d.VMI.Namespace, d.VMI.Name, d.State.Metadata.UID, d.Node))
	d.requeueAfter(prepareRetry)
	return nil
}

// cleanupOrphans removes the files of earlier VMIs with this name, unless a domain may still
// use them.
func (d stray) cleanupOrphans() {
	if !d.SilentSince.IsZero() {
		return
	}
	// A cache that lags may not show a VMI that exists, and its files would be deleted under it.
	if d.StateUnknown != nil {
		d.requeueAfter(prepareRetry)
		return
	}
	for _, uid := range d.OrphanedUIDs {
		if d.VMI != nil && d.VMI.UID == uid || d.State != nil && d.State.Metadata.UID == uid {
			continue
		}
		d.do(action.Action{Verb: action.Cleanup, UID: uid, Why: "their VMI does not exist"})
	}
}
