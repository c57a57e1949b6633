// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
)

// The request of a migration to the hypervisor.
func TestSpecMigrationRequest(t *testing.T) {
	prepared := moved(here, there, handoff.Ready)
	for name, tt := range map[string]struct {
		bandwidth string
		state     *domain.State
		want      domain.MigrationRequest
	}{
		"M4: no bandwidth is no limit":     {"0", runs(domain.StatusRunning, ""), domain.MigrationRequest{}},
		"M4: 64Mi are 64 MiB a second":     {"64Mi", runs(domain.StatusRunning, ""), domain.MigrationRequest{BandwidthMiB: 64}},
		"M4: a little is not no limit":     {"1Ki", runs(domain.StatusRunning, ""), domain.MigrationRequest{BandwidthMiB: 1}},
		"M1: a paused guest arrives so":    {"0", runs(domain.StatusPaused, domain.ReasonUser), domain.MigrationRequest{Paused: true}},
		"M1: one that runs arrives so too": {"0", runs(domain.StatusRunning, ""), domain.MigrationRequest{}},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := placed(v1.Running, prepared, func(vmi *v1.VirtualMachineInstance) {
				q := resource.MustParse(tt.bandwidth)
				vmi.Status.MigrationState.VMIMConfigurationOptions = &v1.VMIMConfigurationOptions{BandwidthPerMigration: &q}
			})
			tt.state.Metadata.Paused = tt.state.Status == domain.StatusPaused
			tt.state.Domain = disked(libvirtxml.DomainDisk{})
			decided, _ := decide(t, plan.Snapshot{VMI: vmi, State: tt.state})
			if verbs(decided) != "SetMetadata, Migrate" {
				t.Fatalf("actions are %q, want a migration", verbs(decided))
			}
			got := decided.Actions[1].Request
			if got.BandwidthMiB != tt.want.BandwidthMiB || got.Paused != tt.want.Paused {
				t.Errorf("the request is %+v, want %+v", got, tt.want)
			}
		})
	}
}

// KubeVirt stores the state of an abort in a status; here the job at the hypervisor decides, so
// that a lost abort is repeated and a completed one is not.
func TestSpecMigrationAbort(t *testing.T) {
	moving := moved(here, there, handoff.Begin)
	for name, tt := range map[string]struct {
		lease    handoff.Lease
		status   v1.MigrationAbortStatus
		snapshot plan.Snapshot
		want     string
	}{
		"M13: asked for, nothing done":     {moving, "", plan.Snapshot{Migrating: true}, "AbortMigration"},
		"M13: failed before":               {moving, v1.MigrationAbortFailed, plan.Snapshot{Migrating: true}, "AbortMigration"},
		"M13: under way, the job still is": {moving, v1.MigrationAbortInProgress, plan.Snapshot{MigrationActive: true}, "AbortMigration"},
		"M13: done, the job is gone":       {moving, v1.MigrationAbortSucceeded, plan.Snapshot{MigrationEnded: decideNow}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tt.snapshot.VMI = placed(v1.Running, tt.lease, abortRequested, func(vmi *v1.VirtualMachineInstance) {
				vmi.Status.MigrationState.AbortStatus = tt.status
			})
			tt.snapshot.State = runs(domain.StatusRunning, "")
			got, l := decide(t, tt.snapshot)
			if verbs(got) != tt.want {
				t.Errorf("actions are %q, want %q", verbs(got), tt.want)
			}
			if m := got.VMI.Status.MigrationState; tt.want == "" && (l.State != handoff.Owned || m.AbortStatus != v1.MigrationAbortSucceeded) {
				t.Errorf("the lease is %s, abort status %q", l.State, m.AbortStatus)
			}
		})
	}
}

// A target takes over an arrived VMI in one write.
func TestSpecMigrationTakeOver(t *testing.T) {
	arrivedHere := plan.Snapshot{
		State: runs(domain.StatusRunning, ""),
		VMI: placed(v1.Running, moved(there, here, handoff.Begin), func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.EvacuationNodeName, vmi.Status.LauncherContainerImageVersion = there, "v1"
			vmi.Labels[v1.OutdatedLauncherImageLabel] = ""
			vmi.Annotations[v1.EvictionSourceAnnotation] = "someone"
			vmi.Status.MigrationState.TargetMemoryOverhead = new(resource.MustParse("300Mi"))
			vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceMigrationRequired, Status: corev1.ConditionTrue}}
		}),
	}
	got, l := decide(t, arrivedHere)
	vmi := got.VMI
	for name, ok := range map[string]bool{
		"M14: the label names this node":        vmi.Labels[v1.NodeNameLabel] == here,
		"M14: the status names this node":       vmi.Status.NodeName == here,
		"M14: the evacuation is over":           vmi.Status.EvacuationNodeName == "",
		"M14: the old launcher is forgotten":    vmi.Status.LauncherContainerImageVersion == "" && vmi.Labels[v1.OutdatedLauncherImageLabel] == "",
		"M14: it is no target any more":         vmi.Labels[v1.MigrationTargetNodeNameLabel] == "",
		"M14: the migration has ended":          !vmi.Status.MigrationState.Completed && vmi.Status.MigrationState.EndTimestamp != nil,
		"M14: its next one goes by sockets":     vmi.Status.MigrationTransport == v1.MigrationTransportUnix,
		"M14: its Pod's overhead is the new":    vmi.Status.Memory.MemoryOverhead.String() == "300Mi",
		"M14: nothing asks for a migration":     len(vmi.Status.Conditions) == 0,
		"M14: who evicted it is forgotten":      vmi.Annotations[v1.EvictionSourceAnnotation] == "",
		"M14: the lease says so with one epoch": l.Holder == here && l.State == handoff.Arrived && l.Epoch == 3,
	} {
		t.Run(name, func(t *testing.T) {
			if !ok {
				t.Errorf("status is %+v, labels %v, lease %+v", vmi.Status, vmi.Labels, l)
			}
		})
	}
}
