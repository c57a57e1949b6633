// SPDX-License-Identifier: Apache-2.0

package domain_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

// What waits comes by itself; what was begun and not finished never does.
func TestS8AHalfMadeNetworkFailsAGuestThatIsToStart(t *testing.T) {
	broken := &domain.Error{Object: "VirtualMachineInstance ns/guest", Reason: "its networks are not ready", Err: fmt.Errorf("network blue: %w", domain.ErrBroken)}
	waiting := &domain.Error{Object: "VirtualMachineInstance ns/guest", Reason: "its networks are not ready", Err: domain.ErrNotReady}
	offer := handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: here}
	for name, tt := range map[string]struct {
		sight domain.Sight
		phase v1.VirtualMachineInstancePhase
		lease handoff.State
	}{
		"offered, broken":   {domain.Sight{VMI: placed(v1.Scheduled, offer), Obstacle: broken}, v1.Failed, handoff.Released},
		"accepted, broken":  {domain.Sight{VMI: placed(v1.Scheduled, leased(offerHere, acceptHere)), Obstacle: broken}, v1.Failed, handoff.Released},
		"offered, waiting":  {domain.Sight{VMI: placed(v1.Scheduled, offer), Obstacle: waiting}, v1.Scheduled, handoff.Offered},
		"accepted, waiting": {domain.Sight{VMI: placed(v1.Scheduled, leased(offerHere, acceptHere)), Obstacle: waiting}, v1.Scheduled, handoff.Owned},
		"running, broken": {domain.Sight{VMI: placed(v1.Running, leased(offerHere, acceptHere, startedHere)),
			State: runs(domain.StatusRunning, domain.ReasonUnknown), Obstacle: broken}, v1.Running, handoff.Owned},
	} {
		t.Run(name, func(t *testing.T) {
			tt.sight.Node = here
			plan, err := domain.Decide(proven(tt.sight), decideNow)
			if err != nil {
				t.Fatal(err)
			}
			lease, err := handoff.Of(plan.VMI)
			if err != nil || plan.VMI.Status.Phase != tt.phase || lease.State != tt.lease {
				t.Errorf("phase %s, lease %s, %v; want %s, %s", plan.VMI.Status.Phase, lease.State, err, tt.phase, tt.lease)
			}
			for _, task := range plan.Tasks {
				if task.Operation.Verb == domain.Start {
					t.Error("the guest is started")
				}
			}
			told := false
			for _, n := range plan.Notices {
				told = told || n.Warning && strings.Contains(n.Message, "network blue")
			}
			if want := tt.phase == v1.Failed; told != want {
				t.Errorf("told of it: %t, want %t: %+v", told, want, plan.Notices)
			}
		})
	}
	if errors.Is(waiting, domain.ErrBroken) {
		t.Error("waiting is broken")
	}
}

// A guest that runs in another cluster must not be started here, whatever its phase
// seems to ask for.
func TestAGuestThatIsToBeReceivedIsNotStarted(t *testing.T) {
	g := placed(v1.Scheduled, handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: here})
	g.Annotations[v1.CreateMigrationTarget] = "true"
	plan, err := domain.Decide(proven(domain.Sight{Node: here, VMI: g, Desired: &libvirtxml.Domain{Name: "ns_guest"}}), decideNow)
	if err != nil {
		t.Fatal(err)
	}
	l, err := handoff.Of(plan.VMI)
	if err != nil || l.State != handoff.Offered || len(plan.Tasks) > 0 {
		t.Errorf("lease %+v, %v, tasks %v; want it let alone", l, err, plan.Tasks)
	}
	told := slices.ContainsFunc(plan.VMI.Status.Conditions, func(c v1.VirtualMachineInstanceCondition) bool {
		return c.Type == v1.VirtualMachineInstanceSynchronized && strings.Contains(c.Message, v1.CreateMigrationTarget)
	})
	if !told {
		t.Errorf("conditions %+v do not tell", plan.VMI.Status.Conditions)
	}
}
