// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// owned is the lease of a VMI that runs on this node, outside of any migration.
var owned = leased(offerHere, acceptHere, startedHere)

// grantedGrace sets the grace period in the domain's metadata; a negative one is none.
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

// lifecycleRow is a pair of states and the expected plan.
type lifecycleRow struct {
	snapshot plan.Snapshot
	// phase and lease are those of the object; without a phase there is no object.
	phase v1.VirtualMachineInstancePhase
	lease handoff.Lease
	edit  func(*v1.VirtualMachineInstance)

	actions   string
	wantPhase v1.VirtualMachineInstancePhase
	// requeue is the delay of the next pass; zero without one.
	requeue time.Duration
}

// lifecycleRows are the state pairs of the specification. Where the lease replaces a rule of
// KubeVirt's, or the behavior differs, the row's name says how and its comment why.
var lifecycleRows = map[string]lifecycleRow{
	"R1: without an object and a known grace period a running guest is killed": {
		snapshot: plan.Snapshot{State: runs(domain.StatusRunning, "", grantedGrace(-1))},
		actions:  "Destroy", requeue: time.Second},
	"R1: one that was granted none is as well": {
		snapshot: plan.Snapshot{State: runs(domain.StatusRunning, "", grantedGrace(0))},
		actions:  "Destroy", requeue: time.Second},
	"R2: without an object what is left of a guest that is off goes": {
		snapshot: plan.Snapshot{State: runs(domain.StatusShutoff, domain.ReasonShutdown)},
		actions:  "Undefine, Cleanup"},
	"R4: a grace period of 3 s in the spec is asked with and looked at after": {
		snapshot: plan.Snapshot{State: runs(domain.StatusRunning, "")}, phase: v1.Running, lease: owned, edit: edits(beingDeleted, specGrace(3)),
		actions: "SetMetadata, Shutdown", wantPhase: v1.Running, requeue: 3 * time.Second},
	"R5: 20 s after it was asked, a guest with 10 s is killed": {
		snapshot: plan.Snapshot{State: runs(domain.StatusRunning, "", askedAt(decideNow.Add(-20*time.Second)), graceUntil(decideNow.Add(-10*time.Second)))},
		phase:    v1.Running, lease: owned, edit: edits(beingDeleted, specGrace(10)),
		actions: "Destroy", wantPhase: v1.Running, requeue: time.Second},
	// KubeVirt does not requeue; here a pass follows at the deadline, which no event marks.
	"R7: a guest that shuts down is left alone until its time is up": {
		snapshot: plan.Snapshot{State: runs(domain.StatusShuttingDown, domain.ReasonUser, askedAt(decideNow.Add(-20*time.Second)), graceUntil(decideNow.Add(10*time.Second)))},
		phase:    v1.Running, lease: owned, edit: beingDeleted,
		actions: "", wantPhase: v1.Running, requeue: 10 * time.Second},
	"R8: without one in the spec the grace period the guest was started with counts": {
		snapshot: plan.Snapshot{State: runs(domain.StatusRunning, "", grantedGrace(2*time.Second))}, phase: v1.Running, lease: owned, edit: beingDeleted,
		actions: "SetMetadata, Shutdown", wantPhase: v1.Running, requeue: 2 * time.Second},
	// The definition is removed at once, as in KubeVirt; there the next pass starts the VMI again,
	// here this one does, since the start is still open and Running was never stored.
	"R10: a domain that failed to start is undefined and started anew": {
		snapshot: with(domain.StatusShutoff, domain.ReasonFailed), phase: v1.Scheduled, lease: leased(offerHere, acceptHere),
		actions: "Undefine, Start", wantPhase: v1.Scheduled},
	"R11: a running guest whose domain is off for no known reason has ended": {
		snapshot: with(domain.StatusShutoff, domain.ReasonUnknown), phase: v1.Running, lease: owned,
		actions: "Undefine, Cleanup", wantPhase: v1.Failed},
	"R13: a guest torn apart by post-copy is killed without grace and has failed": {
		snapshot: with(domain.StatusPaused, domain.ReasonPostcopyFailed), phase: v1.Running, lease: owned,
		actions: "Destroy", wantPhase: v1.Failed, requeue: time.Second},
	"R13: being deleted gives it no time either": {
		snapshot: with(domain.StatusPaused, domain.ReasonPostcopyFailed), phase: v1.Running, lease: owned, edit: beingDeleted,
		actions: "Destroy", wantPhase: v1.Failed, requeue: time.Second},
	"R13: nor has it any without an object": {
		snapshot: plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonPostcopyFailed)},
		actions:  "Destroy, Undefine, Cleanup"},
	// Only the target knows which half runs: the domain here must not be ended before.
	"R13: in a move its source asks the target instead": {
		snapshot: with(domain.StatusPaused, domain.ReasonPostcopyFailed, epoch(2)), phase: v1.Running, lease: moved(here, there, handoff.Begin),
		actions: "", wantPhase: v1.Running, requeue: time.Second},
	"R13: in a move its target, where it ran last, waits for the rest of it": {
		snapshot: with(domain.StatusPaused, domain.ReasonPostcopyFailed, epoch(2)), phase: v1.Running, lease: moved(there, here, handoff.Begin),
		actions: "", wantPhase: v1.Running, requeue: time.Second},
	"R13: once that is overdue the target takes it over": {
		snapshot: with(domain.StatusPaused, domain.ReasonPostcopyFailed, epoch(2)), phase: v1.Running, lease: late(stalled(moved(there, here, handoff.Begin))),
		actions: "", wantPhase: v1.Running},
	"R13: and ends it": {
		snapshot: with(domain.StatusPaused, domain.ReasonPostcopyFailed, epoch(2)), phase: v1.Running, lease: moved(there, here, handoff.TakeOver),
		actions: "Destroy", wantPhase: v1.Failed, requeue: time.Second},
	// KubeVirt only undefines the domain, which leaves it running without a record.
	"R14: the guest of a final object is killed before its domain goes": {
		snapshot: with(domain.StatusRunning, ""), phase: v1.Succeeded, lease: owned,
		actions: "Destroy", wantPhase: v1.Succeeded, requeue: time.Second},
	"R14: that of one that is being deleted as well is asked to shut down first": {
		snapshot: with(domain.StatusRunning, "", grantedGrace(4*time.Second)), phase: v1.Succeeded, lease: owned, edit: beingDeleted,
		actions: "SetMetadata, Shutdown", wantPhase: v1.Succeeded, requeue: 4 * time.Second},
	// There is no launcher to ask: the hypervisor itself knows whether the old domain runs.
	"R16: the guest of an earlier object of the name ends first, with the grace it carries": {
		snapshot: with(domain.StatusRunning, "", grantedGrace(4*time.Second), func(s *domain.State) { s.Metadata.UID = "older" }),
		phase:    v1.Scheduled, lease: leased(offerHere),
		actions: "SetMetadata, Shutdown", wantPhase: v1.Scheduled, requeue: 4 * time.Second},
	"R16: once it is off what is left of it goes": {
		snapshot: with(domain.StatusShutoff, domain.ReasonShutdown, func(s *domain.State) { s.Metadata.UID = "older" }),
		phase:    v1.Scheduled, lease: leased(offerHere),
		actions: "Undefine, Cleanup", wantPhase: v1.Scheduled},
	"R17: a guest first seen without a domain is started and stays Scheduled": {
		snapshot: desired, phase: v1.Scheduled, lease: leased(offerHere),
		actions: "Start", wantPhase: v1.Scheduled},
	// Missing files here correspond to a missing launcher in KubeVirt.
	"R19: while the node is not ready the guest stays Scheduled and is looked at again": {
		snapshot: plan.Snapshot{PrepareError: &convert.Error{Object: "node", Reason: "not ready"}}, phase: v1.Scheduled, lease: leased(offerHere, acceptHere),
		actions: "", wantPhase: v1.Scheduled, requeue: 5 * time.Second},
	// KubeVirt fails a VMI whose launcher is unresponsive, which may still run. Here that is no
	// evidence: its owner stays until the controller has evidence (package handoff).
	"R19: a guest whose hypervisor does not answer is neither failed nor touched": {
		snapshot: plan.Snapshot{State: runs(domain.StatusRunning, ""), SilentSince: decideNow.Add(-time.Hour)}, phase: v1.Running, lease: owned,
		actions: "", wantPhase: v1.Running, requeue: 5 * time.Second},
	"R19: where the hypervisor answers that it has no domain a running guest has failed": {
		snapshot: desired, phase: v1.Running, lease: owned,
		actions: "Cleanup", wantPhase: v1.Failed},
	"R25: a guest stopped by a disk is resumed at once for the first time": {
		snapshot: with(domain.StatusPaused, domain.ReasonIOError), phase: v1.Running, lease: owned,
		actions: "SetMetadata, Resume", wantPhase: v1.Running, requeue: time.Second},
	"R25: again within 20 s, it waits no longer than 10 s after that": {
		snapshot: with(domain.StatusPaused, domain.ReasonIOError, resumed(4*time.Second, 10*time.Second)), phase: v1.Running, lease: owned,
		actions: "", wantPhase: v1.Running, requeue: 6 * time.Second},
	"R28: a guest paused without the mark of a user is resumed": {
		snapshot: with(domain.StatusPaused, domain.ReasonUser), phase: v1.Running, lease: owned,
		actions: "Resume", wantPhase: v1.Running, requeue: time.Second},
	"R28: one with the mark stays paused": {
		snapshot: with(domain.StatusPaused, domain.ReasonUser, onPurpose), phase: v1.Running, lease: owned,
		actions: "", wantPhase: v1.Running},
	"R29: a guest that runs is not resumed, marked or not": {
		snapshot: with(domain.StatusRunning, "", onPurpose), phase: v1.Running, lease: owned,
		actions: "", wantPhase: v1.Running},
	"R31: while a hotplugged volume is on its way the guest is not started": {
		snapshot: desired, phase: v1.Scheduled, lease: leased(offerHere, acceptHere), edit: arrivingVolume(v1.HotplugVolumeAttachedToNode),
		actions: "", wantPhase: v1.Scheduled, requeue: time.Second},
	"R31: once it has arrived the guest is": {
		snapshot: desired, phase: v1.Scheduled, lease: leased(offerHere, acceptHere), edit: arrivingVolume(v1.HotplugVolumeMounted),
		actions: "Start", wantPhase: v1.Scheduled},
	"R31: one that is not wanted any more holds up nothing": {
		snapshot: desired, phase: v1.Scheduled, lease: leased(offerHere, acceptHere),
		edit:    edits(arrivingVolume(v1.HotplugVolumeDetaching), func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Volumes = nil }),
		actions: "Start", wantPhase: v1.Scheduled},
	// An event is a hint only: what counts is whether the domain exists.
	"R32: a domain that is gone has failed, unless its guest has moved away": {
		snapshot: desired, phase: v1.Running, lease: owned,
		actions: "Cleanup", wantPhase: v1.Failed},
	"R32: one that has moved away has not": {
		snapshot: with(domain.StatusShutoff, domain.ReasonMigrated, epoch(2)), phase: v1.Running, lease: moved(here, there, handoff.Begin),
		actions: "", wantPhase: v1.Running, requeue: time.Second},
}

// resumed sets how long ago the domain was resumed after a disk error, and the delay until it
// is resumed again.
func resumed(ago, delay time.Duration) func(*domain.State) {
	return func(s *domain.State) {
		at := decideNow.Add(-ago)
		s.Metadata.ResumedAt, s.Metadata.ResumeDelay = &at, delay
	}
}

// arrivingVolume adds a hotplugged volume in that phase.
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
				tt.snapshot.VMI = placed(tt.phase, tt.lease)
				if tt.edit != nil {
					tt.edit(tt.snapshot.VMI)
				}
			}
			decided, l := decide(t, tt.snapshot)
			if decided.VMI != nil {
				commanded(t, decided, l)
				if got := decided.VMI.Status.Phase; got != tt.wantPhase {
					t.Errorf("phase %s, want %s", got, tt.wantPhase)
				}
			}
			if got := verbs(decided); got != tt.actions {
				t.Errorf("actions %q, want %q", got, tt.actions)
			}
			got := time.Duration(0)
			if decided.RequeueAt != nil {
				got = decided.RequeueAt.Sub(decideNow)
			}
			if tt.requeue != 0 && got != tt.requeue {
				t.Errorf("it is looked at again in %s, want %s", got, tt.requeue)
			}
		})
	}
}

func TestDecide_OwnerByLabels(t *testing.T) {
	// Without a lease the VMI was assigned by a stock virt-controller.
	for name, tt := range map[string]struct {
		label, status string
		want          handoff.Role
		actions       string
	}{
		"R26: label and status.nodeName name another node: what runs here is ended": {there, there, handoff.RoleNone, "Destroy, Undefine, Cleanup"},
		"R26: the label names this node":                                            {here, there, handoff.RoleHolder, ""},
		"R26: no label, and status.nodeName names this node":                        {"", here, handoff.RoleHolder, ""},
		"R26: both name this node":                                                  {here, here, handoff.RoleHolder, ""},
		// KubeVirt lets both nodes act for such a VMI, so that it might run twice.
		"R26: only status.nodeName names this node: the guest is neither run nor ended": {there, here, handoff.RoleNone, ""},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-1", Labels: map[string]string{}}}
			vmi.Status.Phase, vmi.Status.NodeName = v1.Running, tt.status
			if tt.label != "" {
				vmi.Labels[v1.NodeNameLabel] = tt.label
			}
			got, _ := decide(t, plan.Snapshot{VMI: vmi, State: runs(domain.StatusRunning, "", epoch(0))})
			if got.Role != tt.want || verbs(got) != tt.actions {
				t.Errorf("this node is %s with actions %q, want %s with %q", got.Role, verbs(got), tt.want, tt.actions)
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
			if got := status.Phase(vmi, tt.state); got != tt.want {
				t.Errorf("phase %s, want %s", got, tt.want)
			}
		})
	}
}
