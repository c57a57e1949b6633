// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/migrate"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
)

// migration returns the first migration of a plan.
func migration(p plan.Plan) (action.Action, bool) {
	for _, t := range p.Actions {
		if t.Verb == action.Migrate {
			return t, true
		}
	}
	return action.Action{}, false
}

func TestSpecMigrationParallel(t *testing.T) {
	limited := func(cpus string) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpus)}
		}
	}
	zstd := func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.MigrationState.VMIMConfigurationOptions = &v1.VMIMConfigurationOptions{
			ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{Compression: new(v1.MigrationCompressionZstd)}}
	}
	for name, tt := range map[string]struct {
		edit        func(*v1.VirtualMachineInstance)
		want        int
		compression string
	}{
		"M2: no limit: eight connections":         {func(*v1.VirtualMachineInstance) {}, 8, ""},
		"M2: limit 0: eight connections":          {limited("0"), 8, ""},
		"M2: limit 4: one":                        {limited("4"), 0, ""},
		"M2: CPUs of its own: one":                {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU = &v1.CPU{DedicatedCPUPlacement: true} }, 0, ""},
		"M2: compressed on eight":                 {zstd, 8, "zstd"},
		"M2: one connection carries it as it is.": {func(vmi *v1.VirtualMachineInstance) { zstd(vmi); limited("4")(vmi) }, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := decide(t, plan.Snapshot{VMI: placed(v1.Running, moved(here, there, handoff.Ready), tt.edit), State: runs(domain.StatusRunning, "")})
			a, asked := migration(got)
			if r := a.Request; !asked || r.Parallel != tt.want || r.Compression != tt.compression {
				t.Errorf("the request is %+v, want %d connections and compression %q", r, tt.want, tt.compression)
			}
			if !a.Request.Unsafe {
				t.Error("the disks that stay are not vouched for")
			}
		})
	}
}

func TestSpecMigrationRequest_PolicyThenCluster(t *testing.T) {
	cluster := &v1.MigrationConfiguration{
		AllowPostCopy: new(true), AllowAutoConverge: new(true), BandwidthPerMigration: new(resource.MustParse("10Mi")), MaxDowntimeMs: new(uint64(300)),
	}
	policy := func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.MigrationState.VMIMConfigurationOptions = &v1.VMIMConfigurationOptions{BandwidthPerMigration: new(resource.MustParse("20Mi"))}
	}
	for name, tt := range map[string]struct {
		edit func(*v1.VirtualMachineInstance)
		want domain.MigrationRequest
	}{
		"M1: of the cluster where none are stored": {func(*v1.VirtualMachineInstance) {}, domain.MigrationRequest{
			PostCopy: true, AutoConverge: true, BandwidthMiB: 10, MaxDowntime: 300 * time.Millisecond}},
		"M1: those stored with the migration": {policy, domain.MigrationRequest{BandwidthMiB: 20, MaxDowntime: migrate.DefaultMaxDowntime}},
	} {
		t.Run(name, func(t *testing.T) {
			decided, _ := decide(t, plan.Snapshot{Migrations: cluster, VMI: placed(v1.Running, moved(here, there, handoff.Ready), tt.edit), State: runs(domain.StatusRunning, "")})
			a, _ := migration(decided)
			got := domain.MigrationRequest{
				PostCopy: a.Request.PostCopy, AutoConverge: a.Request.AutoConverge,
				BandwidthMiB: a.Request.BandwidthMiB, MaxDowntime: a.Request.MaxDowntime,
			}
			if got.PostCopy != tt.want.PostCopy || got.AutoConverge != tt.want.AutoConverge || got.BandwidthMiB != tt.want.BandwidthMiB || got.MaxDowntime != tt.want.MaxDowntime {
				t.Errorf("the request is %+v, want %+v", got, tt.want)
			}
		})
	}
}

// A migration is attempted once, whatever happens to the processes that carry it out.
func TestSpecMigrationOnce(t *testing.T) {
	moving := moved(here, there, handoff.Begin)
	tried := func(s *domain.State) { s.Metadata.MigrationUID = job }
	backup := func(b v1.VirtualMachineInstanceBackupStatus) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{BackupStatus: &b}
		}
	}
	again := on(moving, decideNow, handoff.Event{Kind: handoff.Revert, Node: here},
		handoff.Event{Kind: handoff.Prepare, Node: there, Tag: job}, handoff.Event{Kind: handoff.Ready, Node: there})
	for name, tt := range map[string]struct {
		lease    handoff.Lease
		snapshot plan.Snapshot
		edit     func(*v1.VirtualMachineInstance)
		want     handoff.State
		says     string
	}{
		"M5: unfinished, in this process":           {moving, plan.Snapshot{State: runs(domain.StatusRunning, "", tried), Migrating: true}, nil, handoff.Moving, ""},
		"M5: unfinished, this process is new":       {moving, plan.Snapshot{State: runs(domain.StatusRunning, "", tried), MigrationActive: true}, nil, handoff.Moving, ""},
		"M5: unfinished, the job is over":           {moving, plan.Snapshot{State: runs(domain.StatusRunning, "", tried)}, nil, handoff.Owned, "without migrating the VMI"},
		"M5: finished, by the lease":                {again, plan.Snapshot{State: runs(domain.StatusRunning, "")}, nil, handoff.Owned, "is not retried"},
		"M5: finished, by what the domain carries":  {moved(here, there, handoff.Ready), plan.Snapshot{State: runs(domain.StatusRunning, "", tried)}, nil, handoff.Owned, "is not retried"},
		"refused while a backup runs":               {moved(here, there, handoff.Ready), plan.Snapshot{State: runs(domain.StatusRunning, "")}, backup(v1.VirtualMachineInstanceBackupStatus{BackupName: "nightly"}), handoff.Owned, `backup "nightly"`},
		"not once it is over":                       {moved(here, there, handoff.Ready), plan.Snapshot{State: runs(domain.StatusRunning, "")}, backup(v1.VirtualMachineInstanceBackupStatus{Completed: true}), handoff.Moving, ""},
		"nor once it has failed":                    {moved(here, there, handoff.Ready), plan.Snapshot{State: runs(domain.StatusRunning, "")}, backup(v1.VirtualMachineInstanceBackupStatus{Failed: true}), handoff.Moving, ""},
		"M5: another one is tried after a failure.": {moved(here, there, handoff.Ready), plan.Snapshot{State: runs(domain.StatusRunning, "", func(s *domain.State) { s.Metadata.MigrationUID = "older" })}, nil, handoff.Moving, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tt.snapshot.VMI = placed(v1.Running, tt.lease)
			if tt.edit != nil {
				tt.edit(tt.snapshot.VMI)
			}
			got, l := decide(t, tt.snapshot)
			a, asked := migration(got)
			if first := tt.lease.State == handoff.Prepared && tt.want == handoff.Moving; asked != first {
				t.Errorf("asked for: %t, want %t", asked, first)
			}
			if asked && got.Actions[0].Operation.Metadata.MigrationUID != job {
				t.Errorf("before %v the metadata names migration %q", a, got.Actions[0].Operation.Metadata.MigrationUID)
			}
			m := got.VMI.Status.MigrationState
			if l.State != tt.want || m.Failed != (tt.says != "") || !strings.Contains(m.FailureReason, tt.says) {
				t.Errorf("the lease is %s, migration state %+v; want %s and %q", l.State, m, tt.want, tt.says)
			}
		})
	}
}

// A migration in post-copy is not aborted.
func TestSpecMigrationAhead(t *testing.T) {
	moving := late(moved(here, there, handoff.Begin))
	for name, tt := range map[string]struct {
		snapshot plan.Snapshot
		abort    bool
		mode     v1.MigrationMode
	}{
		"M8: overdue, by what its monitor said": {plan.Snapshot{State: runs(domain.StatusRunning, ""), Migrating: true, MigrationMode: v1.MigrationPostCopy}, false, v1.MigrationPostCopy},
		"M8: overdue, by what was seen":         {plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonPostcopy), MigrationActive: true}, false, v1.MigrationPostCopy},
		"M8: overdue, by how far it is": {plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonMigration), MigrationActive: true,
			Progress: &domain.Progress{Active: true, PostCopy: true}}, false, v1.MigrationPostCopy},
		"M8: not so in pre-copy":                {plan.Snapshot{State: runs(domain.StatusRunning, ""), Migrating: true, MigrationMode: v1.MigrationPreCopy}, true, v1.MigrationPreCopy},
		"M8: nor where the guest was paused":    {plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonUser), Migrating: true, MigrationMode: v1.MigrationPaused}, true, v1.MigrationPaused},
		"M8: nor in pre-copy of another's job.": {plan.Snapshot{State: runs(domain.StatusRunning, ""), MigrationActive: true, Progress: &domain.Progress{Active: true}}, true, v1.MigrationPreCopy},
	} {
		t.Run(name, func(t *testing.T) {
			tt.snapshot.VMI = placed(v1.Running, moving, abortRequested, func(vmi *v1.VirtualMachineInstance) {
				vmi.Status.MigrationState.Mode = v1.MigrationPreCopy
			})
			got, _ := decide(t, tt.snapshot)
			want, status := "", v1.MigrationAbortFailed
			if tt.abort {
				want, status = "AbortMigration", v1.MigrationAbortInProgress
			}
			if m := got.VMI.Status.MigrationState; verbs(got) != want || m.Mode != tt.mode || m.AbortStatus != status {
				t.Errorf("actions %q, mode %s, abort %s; want %q, %s, %s", verbs(got), m.Mode, m.AbortStatus, want, tt.mode, status)
			}
		})
	}
}

// decentral makes the migration one to another cluster, with that end and report.
func decentral(end time.Duration, reported bool) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		m, ended := vmi.Status.MigrationState, metav1.NewTime(decideNow.Add(end))
		address := "192.0.2.9:9185"
		m.SourceState = &v1.VirtualMachineInstanceMigrationSourceState{}
		m.TargetState = &v1.VirtualMachineInstanceMigrationTargetState{DomainDetected: reported, NodeAddress: &address}
		m.TargetState.SyncAddress = &address
		m.EndTimestamp = &ended
		if reported {
			m.TargetState.DomainReadyTimestamp = &ended
		}
	}
}

func TestSpecMigrationToAnotherCluster(t *testing.T) {
	gone := runs(domain.StatusShutoff, domain.ReasonMigrated)
	for name, tt := range map[string]struct {
		edit    func(*v1.VirtualMachineInstance)
		phase   v1.VirtualMachineInstancePhase
		lease   handoff.State
		requeue time.Duration
		actions string
		events  int
	}{
		"M16: ended 61 s ago, not detected":      {decentral(-61*time.Second, false), v1.Failed, handoff.Released, 0, "Undefine, Cleanup", 1},
		"M16: ended 10 s ago, not detected":      {decentral(-10*time.Second, false), v1.Running, handoff.Moving, 50 * time.Second, "", 0},
		"M16: ended 58 s ago, not detected":      {decentral(-58*time.Second, false), v1.Running, handoff.Moving, 5 * time.Second, "", 0},
		"M16: detected":                          {decentral(-10*time.Second, true), v1.Succeeded, handoff.Released, 0, "Undefine, Cleanup", 0},
		"M16: detected late":                     {decentral(-time.Hour, true), v1.Succeeded, handoff.Released, 0, "Undefine, Cleanup", 0},
		"M16: ended in the future, not detected": {decentral(time.Hour, false), v1.Failed, handoff.Released, 0, "Undefine, Cleanup", 1},
	} {
		t.Run(name, func(t *testing.T) {
			got, l := decide(t, plan.Snapshot{VMI: placed(v1.Running, moved(here, there, handoff.Begin), tt.edit), State: gone})
			if got.VMI.Status.Phase != tt.phase || l.State != tt.lease || verbs(got) != tt.actions || len(got.Events) != tt.events {
				t.Errorf("phase %s, lease %s, actions %q, events %v", got.VMI.Status.Phase, l.State, verbs(got), got.Events)
			}
			if m := got.VMI.Status.MigrationState; m.Failed != (tt.phase == v1.Failed) || m.Completed != got.VMI.IsFinal() {
				t.Errorf("migration state %+v", m)
			}
			if tt.requeue > 0 && (got.RequeueAt == nil || got.RequeueAt.Sub(decideNow) != tt.requeue) {
				t.Errorf("it is looked at again at %v, want in %s", got.RequeueAt, tt.requeue)
			}
		})
	}
	got, l := decide(t, plan.Snapshot{State: gone, MigrationEnded: decideNow.Add(-time.Minute), VMI: placed(v1.Running, moved(here, there, handoff.Begin), func(vmi *v1.VirtualMachineInstance) {
		decentral(0, false)(vmi)
		vmi.Status.MigrationState.EndTimestamp = nil
	})})
	if end := got.VMI.Status.MigrationState.EndTimestamp; end == nil || !end.Time.Equal(decideNow.Add(-time.Minute)) || l.Stalled {
		t.Errorf("the guest left: its end is %v, the lease %+v", end, l)
	}
}
