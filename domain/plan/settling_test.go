// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// TestDecide_ContainersJustStarted: a node that is quicker than the containers of the launcher Pod waits for what they provide, and
// neither writes nor reports that, unless it takes long.
func TestDecide_ContainersJustStarted(t *testing.T) {
	image := &convert.Error{Object: "VirtualMachineInstance ns/guest", Field: "spec.domain.firmware.kernelBoot.container.kernelPath",
		Reason: "cannot extract", Err: fmt.Errorf("kernel-boot.sock: %w", domain.ErrNotReady)}
	started := func(ago ...time.Duration) (all []corev1.ContainerStatus) {
		for i, d := range ago {
			all = append(all, corev1.ContainerStatus{Name: fmt.Sprint("c", i), State: corev1.ContainerState{
				Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(decideNow.Add(-d))}}})
		}
		return all
	}
	target := handoff.Lease{State: handoff.Preparing, Epoch: 1, Holder: there, Target: here, Tag: job}
	for name, tt := range map[string]struct {
		lease      handoff.Lease
		containers []corev1.ContainerStatus
		err        error
		waits      bool
	}{
		"offered":                      {leased(offerHere), started(time.Second), image, true},
		"one has started late":         {leased(offerHere), started(time.Hour, time.Second), image, true},
		"accepted":                     {leased(offerHere, acceptHere), started(0), image, true},
		"migration":                    {target, started(time.Second), image, true},
		"offered, long ago":            {leased(offerHere), started(time.Hour, time.Minute), image, false},
		"migration, long ago":          {target, started(time.Minute), image, false},
		"in the future":                {leased(offerHere), started(-time.Hour), image, false},
		"none has started":             {leased(offerHere), []corev1.ContainerStatus{{Name: "compute"}}, image, false},
		"nothing that comes by itself": {leased(offerHere), started(0), errors.New("disk full"), false},
		"broken":                       {target, started(0), domain.ErrBroken, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := proven(plan.Snapshot{Node: here, VMI: placed(v1.Scheduled, tt.lease), PrepareError: tt.err})
			if tt.lease.State == handoff.Preparing {
				s.VMI.Status.Phase, s.VMI.Status.MigrationState = v1.Running, &v1.VirtualMachineInstanceMigrationState{MigrationUID: job, TargetNode: here}
			}
			s.Pods[0].Status.ContainerStatuses = tt.containers
			got, err := plan.Decide(s, decideNow)
			if err != nil {
				t.Fatal(err)
			}
			if writes := !reflect.DeepEqual(got.VMI, s.VMI); writes == tt.waits || len(got.Events) > 0 || len(got.Actions) > 0 {
				t.Errorf("it writes: %t, status %+v, events %v, actions %v", writes, got.VMI.Status, got.Events, got.Actions)
			}
			if got.RequeueAt == nil || tt.waits && got.RequeueAt.After(decideNow.Add(time.Second)) {
				t.Errorf("it looks again at %v", got.RequeueAt)
			}
		})
	}
}

// TestDecide_ReportedWaitRemains: a wait that is reported already is neither reported anew nor taken back because a container starts
// again, but only once it is over.
func TestDecide_ReportedWaitRemains(t *testing.T) {
	vmi := placed(v1.Scheduled, leased(offerHere))
	vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{
		Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse, Reason: status.ReasonNotReady, Message: "no socket",
	}}
	s := proven(plan.Snapshot{Node: here, VMI: vmi, PrepareError: fmt.Errorf("no socket of another kind: %w", domain.ErrNotReady)})
	s.Pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
		Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(decideNow)}}}}
	got, err := plan.Decide(s, decideNow)
	if err != nil || !reflect.DeepEqual(got.VMI, vmi) {
		t.Errorf("%v, conditions %+v", err, got.VMI.Status.Conditions)
	}
}

// TestDecide_MissingVolumeRequeues: no event reports that a plugged volume is there at last.
func TestDecide_MissingVolumeRequeues(t *testing.T) {
	s := with(domain.StatusRunning, "")
	s.Facts.Missing = map[string]string{"plugged": "no disk.img"}
	s.VMI = placed(v1.Running, leased(offerHere, acceptHere, startedHere), arrivingVolume(v1.HotplugVolumeAttachedToNode))
	if got, _ := decide(t, s); got.RequeueAt == nil {
		t.Error("nobody looks again")
	}
}
