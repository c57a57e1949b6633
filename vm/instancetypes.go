// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"errors"

	v1 "kubevirt.io/api/core/v1"
	api "kubevirt.io/api/instancetype"

	"github.com/virtloom/virtloom/vm/instancetype"
)

// instanceTypes are instance type and preference of the VM, and their revisions.
type instanceTypes struct{ *decision }

// resolve reads instance type and preference, and stores their revisions.
func (d instanceTypes) resolve() {
	change, missing, err := instancetype.Sync(d.plan.VM, d.Objects, d.Config.Policy, d.Config.Cluster)
	if err != nil {
		d.unusable(err)
		return
	}
	if d.plan.Need = missing; len(missing) > 0 {
		return
	}
	if change.Expanded != nil {
		d.plan.VM.Spec = change.Expanded.Spec
		d.plan.VM.Status.InstancetypeRef, d.plan.VM.Status.PreferenceRef = nil, nil
		d.halted = true
		return
	}
	for _, rev := range change.Create {
		d.do(Action{Verb: CreateRevision, Name: rev.Name, Revision: rev, Why: "instance types and preferences in use do not change",
			Fault: Failure{reasonFailedCreate, "error encountered while storing instancetype.kubevirt.io controllerRevisions: "}})
	}
	d.definitions = change.Definitions
	d.plan.VM.Status.InstancetypeRef, d.plan.VM.Status.PreferenceRef = change.InstancetypeRef, change.PreferenceRef
	d.deleteUnused()
}

// unusable reports why instance type or preference cannot be used. Creations that failed are events too.
func (d instanceTypes) unusable(err error) {
	e := &instancetype.Error{Reason: "UnsupportedSyncError", Message: "unsupported error: " + err.Error()}
	errors.As(err, &e)
	d.fail(e.Reason, e.Message)
	if e.Reason == reasonFailedCreate {
		d.warnOnce(e.Reason, e.Message)
	}
}

// deleteUnused deletes revisions of instance types and preferences that nothing refers to any more. The spec that a running VMI was
// started with may refer to an older one.
func (d instanceTypes) deleteUnused() {
	if d.vmi != nil {
		return
	}
	used := map[string]bool{}
	for _, st := range []*v1.VirtualMachineStatus{&d.VM.Status, &d.plan.VM.Status} {
		for _, ref := range []*v1.InstancetypeStatusRef{st.InstancetypeRef, st.PreferenceRef} {
			if ref != nil && ref.ControllerRevisionRef != nil {
				used[ref.ControllerRevisionRef.Name] = true
			}
		}
	}
	for _, rev := range d.Revisions {
		if rev.Labels[api.ControllerRevisionObjectVersionLabel] != "" && !used[rev.Name] {
			d.do(Action{Verb: DeleteRevision, Name: rev.Name, If: Precondition{UID: rev.UID}, Why: "nothing refers to it",
				Fault: Failure{reasonFailedCreate, "error encountered cleaning controllerRevision " + rev.Name + ": "}})
		}
	}
}
