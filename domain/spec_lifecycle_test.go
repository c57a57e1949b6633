// SPDX-License-Identifier: Apache-2.0

package domain_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

// owned is the lease of a guest that runs on this node, outside of any move.
var owned = leased(offerHere, acceptHere, startedHere)

// grantedGrace is the grace period that the domain carries; a negative one is none.
func grantedGrace(period time.Duration) func(*domain.State) {
	return func(s *domain.State) {
		s.Metadata.GracePeriod = &period
		if period < 0 {
			s.Metadata.GracePeriod = nil
		}
	}
}

func specGrace(seconds int64) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.TerminationGracePeriodSeconds = &seconds }
}

func edits(all ...func(*v1.VirtualMachineInstance)) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		for _, edit := range all {
			edit(vmi)
		}
	}
}

// lifecycleRow is a pair of states and what becomes of it.
type lifecycleRow struct {
	sight domain.Sight
	// phase and lease are the object's; without a phase there is none.
	phase v1.VirtualMachineInstancePhase
	lease handoff.Lease
	edit  func(*v1.VirtualMachineInstance)

	tasks     string
	wantPhase v1.VirtualMachineInstancePhase
	// requeue is when the guest is looked at again; zero where nothing is left to wait for.
	requeue time.Duration
}

// lifecycleRows are the state pairs of the specification. Where the lease replaces
// a rule of KubeVirt's, or we do something else, the row's name says what and its
// comment why.
var lifecycleRows = map[string]lifecycleRow{
	"R1: without an object and a known grace period a running guest is killed": {
		sight: domain.Sight{State: runs(domain.StatusRunning, "", grantedGrace(-1))},
		tasks: "Destroy", requeue: time.Second},
	"R1: one that was granted none is as well": {
		sight: domain.Sight{State: runs(domain.StatusRunning, "", grantedGrace(0))},
		tasks: "Destroy", requeue: time.Second},
	"R2: without an object what is left of a guest that is off goes": {
		sight: domain.Sight{State: runs(domain.StatusShutoff, domain.ReasonShutdown)},
		tasks: "Undefine, Cleanup"},
	"R4: a grace period of 3 s in the spec is asked with and looked at after": {
		sight: domain.Sight{State: runs(domain.StatusRunning, "")}, phase: v1.Running, lease: owned, edit: edits(beingDeleted, specGrace(3)),
		tasks: "SetMetadata, Shutdown", wantPhase: v1.Running, requeue: 3 * time.Second},
	"R5: 20 s after it was asked, a guest with 10 s is killed": {
		sight: domain.Sight{State: runs(domain.StatusRunning, "", askedAt(decideNow.Add(-20*time.Second)), graceUntil(decideNow.Add(-10*time.Second)))},
		phase: v1.Running, lease: owned, edit: edits(beingDeleted, specGrace(10)),
		tasks: "Destroy", wantPhase: v1.Running, requeue: time.Second},
	// KubeVirt does not look again by itself; we do at the deadline, which no event marks.
	"R7: a guest that shuts down is left alone until its time is up": {
		sight: domain.Sight{State: runs(domain.StatusShuttingDown, domain.ReasonUser, askedAt(decideNow.Add(-20*time.Second)), graceUntil(decideNow.Add(10*time.Second)))},
		phase: v1.Running, lease: owned, edit: beingDeleted,
		tasks: "", wantPhase: v1.Running, requeue: 10 * time.Second},
	"R8: without one in the spec the grace period the guest was started with counts": {
		sight: domain.Sight{State: runs(domain.StatusRunning, "", grantedGrace(2*time.Second))}, phase: v1.Running, lease: owned, edit: beingDeleted,
		tasks: "SetMetadata, Shutdown", wantPhase: v1.Running, requeue: 2 * time.Second},
	// The definition goes at once, as in KubeVirt; there the next pass starts the guest anew,
	// here this one does, since the start is still open and nobody was told that it ran.
	"R10: a domain that failed to start is undefined and started anew": {
		sight: with(domain.StatusShutoff, domain.ReasonFailed), phase: v1.Scheduled, lease: leased(offerHere, acceptHere),
		tasks: "Undefine, Start", wantPhase: v1.Scheduled},
	"R11: a running guest whose domain is off for no known reason has ended": {
		sight: with(domain.StatusShutoff, domain.ReasonUnknown), phase: v1.Running, lease: owned,
		tasks: "Undefine, Cleanup", wantPhase: v1.Failed},
	"R13: a guest torn apart by post-copy is killed without grace and has failed": {
		sight: with(domain.StatusPaused, domain.ReasonPostcopyFailed), phase: v1.Running, lease: owned,
		tasks: "Destroy", wantPhase: v1.Failed, requeue: time.Second},
	"R13: being deleted gives it no time either": {
		sight: with(domain.StatusPaused, domain.ReasonPostcopyFailed), phase: v1.Running, lease: owned, edit: beingDeleted,
		tasks: "Destroy", wantPhase: v1.Failed, requeue: time.Second},
	"R13: nor has it any without an object": {
		sight: domain.Sight{State: runs(domain.StatusPaused, domain.ReasonPostcopyFailed)},
		tasks: "Destroy, Undefine, Cleanup"},
	// Which half is the guest is the target's to say: what stands here may not be ended before.
	"R13: in a move its source asks the target instead": {
		sight: with(domain.StatusPaused, domain.ReasonPostcopyFailed, epoch(2)), phase: v1.Running, lease: moved(here, there, handoff.Begin),
		tasks: "", wantPhase: v1.Running, requeue: time.Second},
	"R13: in a move its target, where it ran last, waits for the rest of it": {
		sight: with(domain.StatusPaused, domain.ReasonPostcopyFailed, epoch(2)), phase: v1.Running, lease: moved(there, here, handoff.Begin),
		tasks: "", wantPhase: v1.Running, requeue: time.Second},
	"R13: once that is overdue the target takes it over": {
		sight: with(domain.StatusPaused, domain.ReasonPostcopyFailed, epoch(2)), phase: v1.Running, lease: late(stalled(moved(there, here, handoff.Begin))),
		tasks: "", wantPhase: v1.Running},
	"R13: and ends it": {
		sight: with(domain.StatusPaused, domain.ReasonPostcopyFailed, epoch(2)), phase: v1.Running, lease: moved(there, here, handoff.TakeOver),
		tasks: "Destroy", wantPhase: v1.Failed, requeue: time.Second},
	// KubeVirt undefines the domain alone, which leaves a guest running that nobody knows of.
	"R14: the guest of a final object is killed before its domain goes": {
		sight: with(domain.StatusRunning, ""), phase: v1.Succeeded, lease: owned,
		tasks: "Destroy", wantPhase: v1.Succeeded, requeue: time.Second},
	"R14: that of one that is being deleted as well is asked to shut down first": {
		sight: with(domain.StatusRunning, "", grantedGrace(4*time.Second)), phase: v1.Succeeded, lease: owned, edit: beingDeleted,
		tasks: "SetMetadata, Shutdown", wantPhase: v1.Succeeded, requeue: 4 * time.Second},
	// There is no launcher to be asked: the hypervisor itself knows whether the old guest runs.
	"R16: the guest of an earlier object of the name ends first, with the grace it carries": {
		sight: with(domain.StatusRunning, "", grantedGrace(4*time.Second), func(s *domain.State) { s.Metadata.UID = "older" }),
		phase: v1.Scheduled, lease: leased(offerHere),
		tasks: "SetMetadata, Shutdown", wantPhase: v1.Scheduled, requeue: 4 * time.Second},
	"R16: once it is off what is left of it goes": {
		sight: with(domain.StatusShutoff, domain.ReasonShutdown, func(s *domain.State) { s.Metadata.UID = "older" }),
		phase: v1.Scheduled, lease: leased(offerHere),
		tasks: "Undefine, Cleanup", wantPhase: v1.Scheduled},
	"R17: a guest first seen without a domain is started and stays Scheduled": {
		sight: desired, phase: v1.Scheduled, lease: leased(offerHere),
		tasks: "Start", wantPhase: v1.Scheduled},
	// What a launcher that is not there yet is in KubeVirt, files that are missing are here.
	"R19: while the node is not ready the guest stays Scheduled and is looked at again": {
		sight: domain.Sight{Obstacle: &domain.Error{Object: "node", Reason: "not ready"}}, phase: v1.Scheduled, lease: leased(offerHere, acceptHere),
		tasks: "", wantPhase: v1.Scheduled, requeue: 5 * time.Second},
	// KubeVirt fails a guest whose launcher does not answer, which may still run. Here silence
	// proves nothing: its owner stays, until the controller has evidence (package handoff).
	"R19: a guest whose hypervisor does not answer is neither failed nor touched": {
		sight: domain.Sight{State: runs(domain.StatusRunning, ""), SilentSince: decideNow.Add(-time.Hour)}, phase: v1.Running, lease: owned,
		tasks: "", wantPhase: v1.Running, requeue: 5 * time.Second},
	"R19: where the hypervisor answers that it has no domain a running guest has failed": {
		sight: desired, phase: v1.Running, lease: owned,
		tasks: "Cleanup", wantPhase: v1.Failed},
	"R25: a guest stopped by a disk is resumed at once for the first time": {
		sight: with(domain.StatusPaused, domain.ReasonIOError), phase: v1.Running, lease: owned,
		tasks: "SetMetadata, Resume", wantPhase: v1.Running, requeue: time.Second},
	"R25: again within 20 s, it waits no longer than 10 s after that": {
		sight: with(domain.StatusPaused, domain.ReasonIOError, resumed(4*time.Second, 10*time.Second)), phase: v1.Running, lease: owned,
		tasks: "", wantPhase: v1.Running, requeue: 6 * time.Second},
	"R28: a guest paused without the mark of a user is resumed": {
		sight: with(domain.StatusPaused, domain.ReasonUser), phase: v1.Running, lease: owned,
		tasks: "Resume", wantPhase: v1.Running, requeue: time.Second},
	"R28: one with the mark stays paused": {
		sight: with(domain.StatusPaused, domain.ReasonUser, onPurpose), phase: v1.Running, lease: owned,
		tasks: "", wantPhase: v1.Running},
	"R29: a guest that runs is not resumed, marked or not": {
		sight: with(domain.StatusRunning, "", onPurpose), phase: v1.Running, lease: owned,
		tasks: "", wantPhase: v1.Running},
	"R31: while a hotplugged volume is on its way the guest is not started": {
		sight: desired, phase: v1.Scheduled, lease: leased(offerHere, acceptHere), edit: arrivingVolume(v1.HotplugVolumeAttachedToNode),
		tasks: "", wantPhase: v1.Scheduled, requeue: time.Second},
	"R31: once it has arrived the guest is": {
		sight: desired, phase: v1.Scheduled, lease: leased(offerHere, acceptHere), edit: arrivingVolume(v1.HotplugVolumeMounted),
		tasks: "Start", wantPhase: v1.Scheduled},
	"R31: one that is not wanted any more holds up nothing": {
		sight: desired, phase: v1.Scheduled, lease: leased(offerHere, acceptHere),
		edit:  edits(arrivingVolume(v1.HotplugVolumeDetaching), func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Volumes = nil }),
		tasks: "Start", wantPhase: v1.Scheduled},
	// An event is a hint only, whatever it says: what counts is whether the domain is there.
	"R32: a domain that is gone has failed, unless its guest has moved away": {
		sight: desired, phase: v1.Running, lease: owned,
		tasks: "Cleanup", wantPhase: v1.Failed},
	"R32: one that has moved away has not": {
		sight: with(domain.StatusShutoff, domain.ReasonMigrated, epoch(2)), phase: v1.Running, lease: moved(here, there, handoff.Begin),
		tasks: "", wantPhase: v1.Running, requeue: time.Second},
}

// resumed says how long ago the guest was resumed after an error of a disk, and how
// long it is left alone after that.
func resumed(ago, delay time.Duration) func(*domain.State) {
	return func(s *domain.State) {
		at := decideNow.Add(-ago)
		s.Metadata.ResumedAt, s.Metadata.ResumeDelay = &at, delay
	}
}

// arrivingVolume plugs a volume that has come as far as that phase.
func arrivingVolume(p v1.VolumePhase) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "plugged"})
		vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus,
			v1.VolumeStatus{Name: "plugged", Phase: p, HotplugVolume: &v1.HotplugVolumeStatus{}})
	}
}

func TestLifecycle(t *testing.T) {
	for name, tt := range lifecycleRows {
		t.Run(name, func(t *testing.T) {
			if tt.phase != "" {
				tt.sight.VMI = placed(tt.phase, tt.lease)
				if tt.edit != nil {
					tt.edit(tt.sight.VMI)
				}
			}
			plan, l := decide(t, tt.sight)
			if plan.VMI != nil {
				commanded(t, plan, l)
				if got := plan.VMI.Status.Phase; got != tt.wantPhase {
					t.Errorf("phase %s, want %s", got, tt.wantPhase)
				}
			}
			if got := verbs(plan); got != tt.tasks {
				t.Errorf("tasks %q, want %q", got, tt.tasks)
			}
			got := time.Duration(0)
			if plan.RequeueAt != nil {
				got = plan.RequeueAt.Sub(decideNow)
			}
			if tt.requeue != 0 && got != tt.requeue {
				t.Errorf("it is looked at again in %s, want %s", got, tt.requeue)
			}
		})
	}
}

func TestTheOwnerByLabelsAlone(t *testing.T) {
	// Without a lease the guest was placed by a stock virt-controller.
	for name, tt := range map[string]struct {
		label, status string
		want          domain.Role
		tasks         string
	}{
		"R26: label and status.nodeName name another node: what runs here is ended": {there, there, domain.RoleNone, "Destroy, Undefine, Cleanup"},
		"R26: the label names this node":                                            {here, there, domain.RoleHolder, ""},
		"R26: no label, and status.nodeName names this node":                        {"", here, domain.RoleHolder, ""},
		"R26: both name this node":                                                  {here, here, domain.RoleHolder, ""},
		// KubeVirt lets both nodes act for such a guest, so that it might run twice.
		"R26: only status.nodeName names this node: the guest is neither run nor ended": {there, here, domain.RoleNone, ""},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-1", Labels: map[string]string{}}}
			vmi.Status.Phase, vmi.Status.NodeName = v1.Running, tt.status
			if tt.label != "" {
				vmi.Labels[v1.NodeNameLabel] = tt.label
			}
			plan, _ := decide(t, domain.Sight{VMI: vmi, State: runs(domain.StatusRunning, "", epoch(0))})
			if plan.Role != tt.want || verbs(plan) != tt.tasks {
				t.Errorf("this node is %s with tasks %q, want %s with %q", plan.Role, verbs(plan), tt.want, tt.tasks)
			}
		})
	}
}

func TestPhaseByDomain(t *testing.T) {
	noACPI := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Features = &v1.Features{ACPI: v1.FeatureState{Enabled: new(bool)}}
	}
	failedPostCopy := func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{Failed: true, Mode: v1.MigrationPostCopy}
	}
	waiting := func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.WaitingForSync }
	for name, tt := range map[string]struct {
		state *domain.State
		edit  func(*v1.VirtualMachineInstance)
		want  v1.VirtualMachineInstancePhase
	}{
		"R20: the target of another cluster waits on, whatever is missing":      {nil, waiting, v1.WaitingForSync},
		"R22: killed, without ACPI, after a post-copy migration that failed":    {runs(domain.StatusShutoff, domain.ReasonDestroyed), edits(noACPI, failedPostCopy), v1.Failed},
		"R22: killed, without ACPI":                                             {runs(domain.StatusShutoff, domain.ReasonDestroyed), noACPI, v1.Succeeded},
		"R23: off by a crash":                                                   {runs(domain.StatusShutoff, domain.ReasonCrashed), edits(), v1.Failed},
		"R23: off by a panic":                                                   {runs(domain.StatusShutoff, domain.ReasonPanicked), edits(), v1.Failed},
		"R23: kept after a panic":                                               {runs(domain.StatusCrashed, domain.ReasonPanicked), edits(), v1.Failed},
		"R23: off by shutting down":                                             {runs(domain.StatusShutoff, domain.ReasonShutdown), edits(), v1.Succeeded},
		"R23: off by having moved":                                              {runs(domain.StatusShutoff, domain.ReasonMigrated), edits(), v1.Running},
		"R13: a guest that lost its memory has failed, though its process runs": {runs(domain.StatusPaused, domain.ReasonPostcopyFailed), edits(), v1.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := placed(v1.Running, owned, tt.edit)
			if got := domain.Phase(vmi, tt.state); got != tt.want {
				t.Errorf("phase %s, want %s", got, tt.want)
			}
		})
	}
}
