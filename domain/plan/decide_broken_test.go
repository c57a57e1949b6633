// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
)

// Missing resources become ready by themselves; those of an interrupted operation never do.
func TestDecide_S8BrokenNetwork(t *testing.T) {
	broken := &convert.Error{Object: "VirtualMachineInstance ns/guest", Reason: "its networks are not ready", Err: fmt.Errorf("network blue: %w", domain.ErrBroken)}
	waiting := &convert.Error{Object: "VirtualMachineInstance ns/guest", Reason: "its networks are not ready", Err: domain.ErrNotReady}
	offer := handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: here}
	for name, tt := range map[string]struct {
		snapshot plan.Snapshot
		phase    v1.VirtualMachineInstancePhase
		lease    handoff.State
	}{
		"offered, broken":   {plan.Snapshot{VMI: placed(v1.Scheduled, offer), PrepareError: broken}, v1.Failed, handoff.Released},
		"accepted, broken":  {plan.Snapshot{VMI: placed(v1.Scheduled, leased(offerHere, acceptHere)), PrepareError: broken}, v1.Failed, handoff.Released},
		"offered, waiting":  {plan.Snapshot{VMI: placed(v1.Scheduled, offer), PrepareError: waiting}, v1.Scheduled, handoff.Offered},
		"accepted, waiting": {plan.Snapshot{VMI: placed(v1.Scheduled, leased(offerHere, acceptHere)), PrepareError: waiting}, v1.Scheduled, handoff.Owned},
		"running, broken": {plan.Snapshot{VMI: placed(v1.Running, leased(offerHere, acceptHere, startedHere)),
			State: runs(domain.StatusRunning, domain.ReasonUnknown), PrepareError: broken}, v1.Running, handoff.Owned},
	} {
		t.Run(name, func(t *testing.T) {
			tt.snapshot.Node = here
			got, err := plan.Decide(proven(tt.snapshot), decideNow)
			if err != nil {
				t.Fatal(err)
			}
			lease, err := handoff.Of(got.VMI)
			if err != nil || got.VMI.Status.Phase != tt.phase || lease.State != tt.lease {
				t.Errorf("phase %s, lease %s, %v; want %s, %s", got.VMI.Status.Phase, lease.State, err, tt.phase, tt.lease)
			}
			for _, a := range got.Actions {
				if a.Operation.Verb == domain.Start {
					t.Error("the guest is started")
				}
			}
			warned := false
			for _, n := range got.Events {
				warned = warned || n.Warning && strings.Contains(n.Message, "network blue")
			}
			if want := tt.phase == v1.Failed; warned != want {
				t.Errorf("warning event: %t, want %t: %+v", warned, want, got.Events)
			}
		})
	}
	if errors.Is(waiting, domain.ErrBroken) {
		t.Error("waiting is broken")
	}
}

// A VMI that runs in another cluster must not be started here, whatever its phase.
func TestDecide_CreateMigrationTarget(t *testing.T) {
	g := placed(v1.Scheduled, handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: here})
	g.Annotations[v1.CreateMigrationTarget] = "true"
	got, err := plan.Decide(proven(plan.Snapshot{Node: here, VMI: g, Desired: &libvirtxml.Domain{Name: "ns_guest"}}), decideNow)
	if err != nil {
		t.Fatal(err)
	}
	l, err := handoff.Of(got.VMI)
	if err != nil || l.State != handoff.Offered || len(got.Actions) > 0 {
		t.Errorf("lease %+v, %v, actions %v; want it let alone", l, err, got.Actions)
	}
	reported := slices.ContainsFunc(got.VMI.Status.Conditions, func(c v1.VirtualMachineInstanceCondition) bool {
		return c.Type == v1.VirtualMachineInstanceSynchronized && strings.Contains(c.Message, v1.CreateMigrationTarget)
	})
	if !reported {
		t.Errorf("conditions %+v do not name the annotation", got.VMI.Status.Conditions)
	}
}
