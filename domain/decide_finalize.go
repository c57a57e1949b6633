// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/handoff"
)

// finalize lets the guest go if it is held, and does what waited for the guest to arrive, then stores that the migration is
// complete. That it is done is kept in the domain, as the lease's epoch, so that a crash
// in between repeats it and one that is known to be done is not done again. What fails
// is tried until its time is up, then told, and holds up nothing any more.
func (d *decision) finalize() error {
	if d.letGo() {
		return nil
	}
	overdue := d.lease.Overdue(d.now)
	if d.meta.Epoch != d.lease.Epoch && !overdue {
		ready, err := d.waited()
		if !ready || err != nil {
			return err
		}
		d.remember("what waited for its arrival is done", func(md *Metadata) { md.Held = false })
		d.again(0)
		return nil
	}
	if err := d.step(handoff.Event{Kind: handoff.Finalize}); err != nil {
		return err
	}
	if overdue && len(d.Troubles) > 0 {
		d.tell(true, string(v1.SyncFailed), "the migration is complete, although not all could be done that waited for it: "+troublesText(d.Troubles))
	}
	d.settleCPUs()
	d.settleMemory()
	d.settleVolumes()
	delete(d.plan.VMI.Annotations, v1.CreateMigrationTarget)
	d.complete()
	return nil
}

// complete says that the migration that brought the guest needs nothing more. It has
// succeeded even if the guest has ended since.
func (d *decision) complete() {
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

// waited are the tasks that wait for the guest's arrival. It is not ready while it is
// not known how the guest shall be and that matters.
func (d *decision) waited() (ready bool, err error) {
	cpus, memory := conditionOf(d.VMI, v1.VirtualMachineInstanceVCPUChange) != nil, d.memoryDue()
	if (cpus || memory) && d.State.Domain != nil {
		if d.Desired == nil {
			d.again(obstacleRetry)
			return false, nil
		}
		if err := d.plug(cpus && d.overCPUs() == "", memory && d.overMemory() == ""); err != nil {
			return false, err
		}
	}
	d.refreshLinks()
	d.syncTime("it stood still at the switch")
	return true, nil
}

// memoryDue tells whether memory is to be plugged at the end of the migration.
func (d *decision) memoryDue() bool {
	c := conditionOf(d.VMI, v1.VirtualMachineInstanceMemoryChange)
	return c != nil && c.Status == corev1.ConditionTrue
}

// plug lets the guest have the CPUs and the memory for which it was migrated.
func (d *decision) plug(cpus, memory bool) error {
	applied, err := LastApplied(d.meta)
	if err != nil {
		return err
	}
	diffs, err := Diff(d.Desired, applied, d.State.Domain)
	if err != nil {
		return fmt.Errorf("domain: compare %s: %w", d.State.Name, err)
	}
	for _, diff := range diffs {
		if diff.Class != Live || diff.Operation == nil {
			continue
		}
		_, isMemory := diff.Operation.Device.(*libvirtxml.DomainMemorydev)
		if cpus && diff.Operation.Verb == SetVCPUs || memory && isMemory {
			d.do(Task{Verb: TaskApply, Operation: *diff.Operation, Needed: true, Why: diff.String()})
		}
	}
	return nil
}

// refreshLinks takes links down and up again where the network of the guest is another
// one now and the guest shall ask for its address anew: those of binding plugins whose
// migration method is link-refresh.
func (d *decision) refreshLinks() {
	if d.State.Domain == nil || d.State.Domain.Devices == nil {
		return
	}
	for i := range d.State.Domain.Devices.Interfaces {
		card := &d.State.Domain.Devices.Interfaces[i]
		if !d.refreshes(nameOf(card.Alias)) {
			continue
		}
		for _, state := range []v1.InterfaceState{v1.InterfaceStateLinkDown, v1.InterfaceStateLinkUp} {
			changed := *card
			changed.Link = &libvirtxml.DomainInterfaceLink{State: string(state)}
			d.do(Task{
				Verb: TaskApply, Needed: true, Why: "the guest shall ask for its address again",
				Operation: Operation{Verb: UpdateDevice, Domain: d.State.Name, Device: &changed},
			})
		}
	}
}

// refreshes tells whether the link of the interface is refreshed after a migration. One
// that shall be down stays so. What the spec says counts, not the card: a crash in
// between may have left that down.
func (d *decision) refreshes(name string) bool {
	return slices.ContainsFunc(d.VMI.Spec.Domain.Devices.Interfaces, func(in v1.Interface) bool {
		return in.Name == name && in.State != v1.InterfaceStateLinkDown && in.Binding != nil &&
			slices.Contains(d.Facts.Cluster.RefreshedBindings, in.Binding.Name)
	})
}
