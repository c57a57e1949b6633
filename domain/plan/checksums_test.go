// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"strings"
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// TestTarget_OtherImage: the target of a migration waits for the checksums of its images, for a while, and refuses others.
func TestTarget_OtherImage(t *testing.T) {
	of := func(sum uint32) status.Checksums { return status.Checksums{Disks: map[string]uint32{"root": sum}} }
	for name, tt := range map[string]struct {
		snapshot plan.Snapshot
		state    handoff.State
		event    bool
	}{
		"the same":        {plan.Snapshot{Checksums: of(1)}, handoff.Prepared, false},
		"another":         {plan.Snapshot{Checksums: of(2)}, handoff.Preparing, true},
		"not known":       {plan.Snapshot{}, handoff.Prepared, false},
		"not known yet":   {plan.Snapshot{VerifyUntil: decideNow.Add(time.Second)}, handoff.Preparing, false},
		"not known again": {plan.Snapshot{VerifyUntil: decideNow}, handoff.Prepared, false},
	} {
		t.Run(name, func(t *testing.T) {
			tt.snapshot.VMI = placed(v1.Running, handoff.Lease{State: handoff.Preparing, Epoch: 1, Holder: there, Target: here, Tag: job}, func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{}}}}
				vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "root", ContainerDiskVolume: &v1.ContainerDiskInfo{Checksum: 1}}}
			})
			tt.snapshot.TargetEndpoint = listening
			got, l := decide(t, tt.snapshot)
			if l.State != tt.state {
				t.Errorf("the lease is %s, want %s", l.State, tt.state)
			}
			if waits := l.State == handoff.Preparing; waits != (got.RequeueAt != nil) {
				t.Errorf("decides again at %v", got.RequeueAt)
			}
			why := got.VMI.Status.MigrationState.FailureReason
			if tt.event != (len(got.Events) == 1 && got.Events[0].Warning) || tt.event != strings.Contains(why, "checksum 2, but the VMI runs with 1") {
				t.Errorf("events %+v, reason %q", got.Events, why)
			}
		})
	}
}
