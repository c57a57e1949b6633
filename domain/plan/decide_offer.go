// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/diff"
	"github.com/virtloom/virtloom/handoff"
)

// offer decides for the node that the VMI is offered to.
type offer struct{ *decision }

// decide accepts the VMI, unless it is being deleted or cannot run here.
func (d offer) decide() error {
	if d.VMI.DeletionTimestamp != nil || d.VMI.IsFinal() {
		d.clear("the offered VMI is being deleted or is final")
		return nil
	}
	if d.State != nil && !d.begun(d.lease.Epoch) {
		d.clear("a domain of an earlier handoff exists")
		d.requeueAfter(pollMigration)
		return nil
	}
	d.notReceived()
	d.prove()
	if d.State == nil {
		d.defined()
	}
	if !d.hopeless() && report(d).hindered(d.State == nil) {
		return nil
	}
	if err := d.step(handoff.Event{Kind: handoff.Accept}); err != nil {
		return err
	}
	if d.hopeless() {
		d.lease = d.next
		return holder(d).withoutGuest()
	}
	if d.State != nil {
		return nil // the lease was lost, not the domain: its state decides in the next pass
	}
	return d.start()
}

// notReceived prevents the start of a VMI that runs in another cluster and is to be received
// from there, which this node does not support (kubevirt.io/create-migration-target).
func (d offer) notReceived() {
	if d.VMI.Annotations[v1.CreateMigrationTarget] != "true" || d.State != nil {
		return
	}
	d.PrepareError = &convert.Error{
		Object: "VirtualMachineInstance " + d.VMI.Namespace + "/" + d.VMI.Name,
		Field:  "metadata.annotations[" + v1.CreateMigrationTarget + "]",
		Reason: fmt.Sprintf("receiving a VMI from another cluster is not supported on node %s", d.Node),
		Remedy: "receive it on a node with virt-handler, or recreate it without the annotation once it runs nowhere else",
		Err:    domain.ErrUnsupported,
	}
}

// defined makes the lack of a definition the PrepareError of a start: the caller has not done what
// [Preparations] asks for.
func (d offer) defined() {
	if d.PrepareError != nil || d.Desired != nil {
		return
	}
	d.PrepareError = &convert.Error{
		Object: "VirtualMachineInstance " + d.VMI.Namespace + "/" + d.VMI.Name,
		Reason: fmt.Sprintf("its domain is not prepared on node %s", d.Node), Err: domain.ErrNotReady,
	}
}

// start defines and starts the domain. The metadata in its definition has the epoch of the
// start, and the data that is needed once the object is gone.
func (d offer) start() error {
	if d.State != nil && d.State.Reason == domain.ReasonFailed {
		d.apply(domain.Undefine, "the last start has failed")
	}
	command, _ := d.next.Command(handoff.CommandStart)
	paused := d.VMI.Spec.StartStrategy != nil && *d.VMI.Spec.StartStrategy == v1.StartStrategyPaused
	d.meta = domain.Metadata{} // the metadata of an earlier attempt is void
	period := d.grace()
	def := *d.Desired
	d.meta = domain.Metadata{
		Namespace: d.VMI.Namespace, Name: d.VMI.Name, UID: d.VMI.UID, Epoch: d.next.Epoch,
		GracePeriod: &period, Paused: paused, DiskBytes: convergence(d).sizes(),
	}
	if err := errors.Join(d.meta.Put(&def), diff.Stamp(&def)); err != nil {
		return fmt.Errorf("plan: start %s: %w", def.Name, err)
	}
	d.do(action.Action{Verb: action.Apply, Why: "the VMI is assigned to this node", Command: command, Operation: domain.Operation{
		Verb: domain.Start, Domain: def.Name, Definition: &def, Paused: paused,
	}})
	return nil
}
