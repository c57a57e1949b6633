// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/diff"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// finalization completes what a migration to this node has left to do.
type finalization struct{ *decision }

// finalize resumes a held domain, carries out the changes that wait for the end of the
// migration, and then stores that it is complete. The lease's epoch in the domain's metadata
// records that the changes are done, so that a crash in between repeats them and later passes
// do not. Failed ones are retried until the deadline, then reported in an event.
func (d finalization) finalize() error {
	if pause(d).letGo() {
		return nil
	}
	overdue := d.lease.Overdue(d.now)
	if d.meta.Epoch != d.lease.Epoch && !overdue {
		ready, err := d.waited()
		if !ready || err != nil {
			return err
		}
		d.remember("the pending changes are done", func(md *domain.Metadata) { md.Held = false })
		d.requeueAfter(0)
		return nil
	}
	if err := d.step(handoff.Event{Kind: handoff.Finalize}); err != nil {
		return err
	}
	if overdue && len(d.Failures) > 0 {
		d.emit(true, string(v1.SyncFailed), "Migration completed, but pending changes have failed: "+status.FailuresText(d.Failures))
	}
	d.settleCPUs()
	d.settleMemory()
	d.settleVolumes()
	delete(d.plan.VMI.Annotations, v1.CreateMigrationTarget)
	d.complete()
	return nil
}

// complete marks the migration to this node as complete. It has succeeded even if the domain
// has ended since.
func (d finalization) complete() {
	m := d.plan.VMI.Status.MigrationState
	if d.lease.State != handoff.Arrived || m == nil || m.Completed {
		return
	}
	m.Completed = true
	if m.EndTimestamp == nil {
		now := metav1.NewTime(d.now)
		m.EndTimestamp = &now
	}
}

// waited adds the actions that wait for the domain's arrival. It is not ready while they
// depend on the wanted domain and that is unknown.
func (d finalization) waited() (ready bool, err error) {
	cpus, memory := vmistatus.Condition(d.VMI, v1.VirtualMachineInstanceVCPUChange) != nil, d.memoryDue()
	if (cpus || memory) && d.State.Domain != nil {
		if d.Desired == nil {
			d.requeueAfter(prepareRetry)
			return false, nil
		}
		if err := d.plug(cpus && d.overCPUs() == "", memory && d.overMemory() == ""); err != nil {
			return false, err
		}
	}
	d.refreshLinks()
	pause(d).syncTime("the domain was paused at the switch")
	return true, nil
}

// memoryDue reports whether memory is to be hotplugged at the end of the migration.
func (d finalization) memoryDue() bool {
	c := vmistatus.Condition(d.VMI, v1.VirtualMachineInstanceMemoryChange)
	return c != nil && c.Status == corev1.ConditionTrue
}

// plug hotplugs the CPUs and the memory for which the VMI was migrated.
func (d finalization) plug(cpus, memory bool) error {
	applied, err := diff.LastApplied(d.meta)
	if err != nil {
		return err
	}
	diffs, err := diff.Compare(d.Desired, applied, d.State.Domain)
	if err != nil {
		return fmt.Errorf("plan: compare %s: %w", d.State.Name, err)
	}
	for _, found := range diffs {
		if found.Class == diff.Live && (cpus && pluggedCPUs(found) || memory && pluggedMemory(found)) {
			d.do(action.Action{Verb: action.Apply, Operation: *found.Operation, Needed: true, Why: found.String()})
		}
	}
	return nil
}

// refreshLinks takes the links of binding plugins whose migration method is link-refresh down
// and up again, so that the guest renews its address in the new network.
func (d finalization) refreshLinks() {
	if d.State.Domain == nil || d.State.Domain.Devices == nil {
		return
	}
	for i := range d.State.Domain.Devices.Interfaces {
		card := &d.State.Domain.Devices.Interfaces[i]
		if !d.refreshes(xmlspec.NameOf(card.Alias)) {
			continue
		}
		for _, state := range []v1.InterfaceState{v1.InterfaceStateLinkDown, v1.InterfaceStateLinkUp} {
			changed := *card
			changed.Link = &libvirtxml.DomainInterfaceLink{State: string(state)}
			d.do(action.Action{
				Verb: action.Apply, Needed: true, Why: "the guest has to renew its address",
				Operation: domain.Operation{Verb: domain.UpdateDevice, Domain: d.State.Name, Device: &changed},
			})
		}
	}
}

// refreshes reports whether the link of the interface is refreshed after a migration. One that
// is down in the spec stays down. The state in the domain does not count: a crash in between
// may have left it down.
func (d finalization) refreshes(name string) bool {
	return slices.ContainsFunc(d.VMI.Spec.Domain.Devices.Interfaces, func(in v1.Interface) bool {
		return in.Name == name && in.State != v1.InterfaceStateLinkDown && in.Binding != nil &&
			slices.Contains(d.Facts.Cluster.RefreshedBindings, in.Binding.Name)
	})
}
