// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
)

// leftAlone are the reasons of pauses that a pass must not end.
var leftAlone = []domain.Reason{
	domain.ReasonPostcopy, domain.ReasonStartingUp, domain.ReasonSave, domain.ReasonDump, domain.ReasonSnapshot,
	domain.ReasonShuttingDown, domain.ReasonWatchdog, domain.ReasonCrashed, domain.ReasonFromSnapshot,
}

func TestDecide_ForeignPause(t *testing.T) {
	for _, reason := range leftAlone {
		t.Run(string(reason), func(t *testing.T) {
			decided, _ := decide(t, plan.Snapshot{VMI: placed(v1.Running, owned), State: runs(domain.StatusPaused, reason)})
			if got := verbs(decided); got != "" {
				t.Errorf("actions %q, want none", got)
			}
		})
	}
}

func TestDecide_NoResumeElsewhere(t *testing.T) {
	preparing, prepared := moved(here, there, handoff.Prepare), moved(here, there, handoff.Ready)
	for _, reason := range []domain.Reason{domain.ReasonUser, domain.ReasonIOError, domain.ReasonUnknown} {
		for name, s := range map[string]plan.Snapshot{
			"a move is being prepared":       {VMI: placed(v1.Running, preparing)},
			"a move is about to begin":       {VMI: placed(v1.Running, prepared)},
			"this process is moving it":      {VMI: placed(v1.Running, owned), Migrating: true},
			"the hypervisor is moving it":    {VMI: placed(v1.Running, owned), MigrationActive: true},
			"it was moving when last seen":   {VMI: placed(v1.Running, moved(here, there, handoff.Begin)), MigrationActive: true},
			"nobody knows whose it is":       {VMI: placed(v1.Running, suspect(owned))},
			"the hypervisor does not answer": {VMI: placed(v1.Running, owned), SilentSince: decideNow},
		} {
			t.Run(string(reason)+", "+name, func(t *testing.T) {
				s.State = runs(domain.StatusPaused, reason, epoch(2))
				got, _ := decide(t, s)
				for _, a := range got.Actions {
					if a.Operation.Verb == domain.Resume {
						t.Errorf("it is resumed: %s", a)
					}
				}
			})
		}
	}
}

// TestDecide_DiskErrorBackoff has a disk that never recovers, and an agent that restarts after
// each pass.
func TestDecide_DiskErrorBackoff(t *testing.T) {
	now, state := decideNow, runs(domain.StatusPaused, domain.ReasonIOError)
	var waits []time.Duration
	last := now
	for range 8 {
		for {
			got, err := plan.Decide(proven(plan.Snapshot{Node: here, VMI: placed(v1.Running, owned), State: state}), now)
			if err != nil {
				t.Fatal(err)
			}
			if verbs(got) == "SetMetadata, Resume" {
				state.Metadata = stored(t, got.Actions[0].Operation.Metadata)
				waits = append(waits, now.Sub(last))
				last = now
				now = now.Add(time.Second) // it fails again at once
				break
			}
			if verbs(got) != "" || got.RequeueAt == nil || !got.RequeueAt.After(now) {
				t.Fatalf("at %s: actions %q, again at %v", now, verbs(got), got.RequeueAt)
			}
			now = *got.RequeueAt
		}
	}
	want := []time.Duration{0, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 3 * time.Minute, 3 * time.Minute}
	for i, w := range want {
		if waits[i] != w {
			t.Fatalf("it waits %v, want %v", waits, want)
		}
	}
}

// stored returns the metadata as the domain returns it.
func stored(t *testing.T, m domain.Metadata) domain.Metadata {
	t.Helper()
	s, err := m.XML()
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := domain.ParseMetadata(s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDecide_DiskErrorRecovery(t *testing.T) {
	for name, tt := range map[string]struct {
		snapshot plan.Snapshot
		actions  string
		delay    time.Duration
		again    time.Duration
	}{
		"it has run for less than 30 s": {with(domain.StatusRunning, "", resumed(20*time.Second, 40*time.Second)), "", 40 * time.Second, 11 * time.Second},
		"it has run for more":           {with(domain.StatusRunning, "", resumed(31*time.Second, 40*time.Second)), "SetMetadata", 0, 0},
		"the clock was put back":        {with(domain.StatusRunning, "", resumed(-time.Hour, 40*time.Second)), "SetMetadata", 0, 0},
		"it failed, and nobody looked for long": {with(domain.StatusPaused, domain.ReasonIOError, resumed(time.Hour, 40*time.Second)), "SetMetadata, Resume",
			10 * time.Second, time.Second},
		"it failed, and the clock was put back": {with(domain.StatusPaused, domain.ReasonIOError, resumed(-time.Hour, 40*time.Second)), "SetMetadata, Resume",
			10 * time.Second, time.Second},
		"a user has paused it as well": {with(domain.StatusPaused, domain.ReasonIOError, onPurpose), "", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tt.snapshot.VMI = placed(v1.Running, owned)
			decided, _ := decide(t, tt.snapshot)
			if got := verbs(decided); got != tt.actions {
				t.Fatalf("actions %q, want %q", got, tt.actions)
			}
			meta := tt.snapshot.State.Metadata
			if len(decided.Actions) > 0 {
				meta = decided.Actions[0].Operation.Metadata
			}
			if meta.ResumeDelay != tt.delay || (meta.ResumedAt == nil) != (tt.delay == 0) {
				t.Errorf("it is left alone for %s after %v, want %s", meta.ResumeDelay, meta.ResumedAt, tt.delay)
			}
			if tt.again > 0 && (decided.RequeueAt == nil || decided.RequeueAt.Sub(decideNow) != tt.again) {
				t.Errorf("it is looked at again at %v, want in %s", decided.RequeueAt, tt.again)
			}
		})
	}
}

func TestDecide_StartMetadata(t *testing.T) {
	paused := func(vmi *v1.VirtualMachineInstance) { vmi.Spec.StartStrategy = new(v1.StartStrategyPaused) }
	claimed := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}}, {Name: "scratch"}}
	}
	s := desired
	s.Facts.Disks = map[string]convert.DiskSource{"root": {Bytes: 5 << 30}, "scratch": {Bytes: 1}}
	for name, tt := range map[string]struct {
		edit   func(*v1.VirtualMachineInstance)
		grace  time.Duration
		paused bool
	}{
		"defaults":               {claimed, plan.DefaultGrace, false},
		"a grace period":         {edits(claimed, specGrace(300)), 5 * time.Minute, false},
		"none":                   {edits(claimed, specGrace(0)), 0, false},
		"startStrategy: Paused":  {edits(claimed, paused), plan.DefaultGrace, true},
		"left of an earlier try": {edits(claimed, func(*v1.VirtualMachineInstance) {}), plan.DefaultGrace, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := s
			if name == "left of an earlier try" {
				s.State = runs(domain.StatusShutoff, domain.ReasonUnknown, onPurpose, graceUntil(decideNow), grantedGrace(time.Hour))
			}
			s.VMI = placed(v1.Scheduled, leased(offerHere, acceptHere), tt.edit)
			got, _ := decide(t, s)
			if verbs(got) != "Start" {
				t.Fatalf("actions %q", verbs(got))
			}
			m, ours, err := domain.MetadataOf(got.Actions[0].Operation.Definition)
			if err != nil || !ours {
				t.Fatalf("metadata %+v, %v", m, err)
			}
			if m.GracePeriod == nil || *m.GracePeriod != tt.grace || m.Paused != tt.paused || m.GraceDeadline != nil {
				t.Errorf("metadata %+v, want grace %s and paused %t", m, tt.grace, tt.paused)
			}
			if got.Actions[0].Operation.Paused != tt.paused {
				t.Errorf("the guest is started paused: %t", got.Actions[0].Operation.Paused)
			}
			if len(m.DiskBytes) != 1 || m.DiskBytes["root"] != 5<<30 {
				t.Errorf("sizes %v, want that of the claim alone", m.DiskBytes)
			}
			if m.LastApplied == "" {
				t.Error("it is not known what was applied")
			}
		})
	}
}

// withAgent sets a live domain whose agent is connected.
func withAgent(s *domain.State) {
	s.Domain = &libvirtxml.Domain{Name: "ns_guest", Devices: &libvirtxml.DomainDeviceList{Channels: []libvirtxml.DomainChannel{{
		Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: convert.AgentChannel, State: "connected"}},
	}}}}
}

func thawAt(at time.Time) func(*domain.State) {
	return func(s *domain.State) { s.Metadata.ThawAt = &at }
}

func TestDecide_ThawDeadline(t *testing.T) {
	for name, tt := range map[string]struct {
		state   *domain.State
		edit    func(*v1.VirtualMachineInstance)
		actions string
		again   time.Duration
	}{
		"there is time":                 {runs(domain.StatusRunning, "", withAgent, thawAt(decideNow.Add(time.Minute))), edits(), "", time.Minute},
		"time is up":                    {runs(domain.StatusRunning, "", withAgent, thawAt(decideNow)), edits(), "Thaw, SetMetadata", 0},
		"time is up, the agent is away": {runs(domain.StatusRunning, "", thawAt(decideNow)), edits(), "", 10 * time.Second},
		"the guest is to shut down":     {runs(domain.StatusRunning, "", withAgent, thawAt(decideNow.Add(time.Hour))), beingDeleted, "SetMetadata, Shutdown, Thaw", 5 * time.Second},
		"it stood still and is resumed": {runs(domain.StatusPaused, domain.ReasonUser, withAgent), edits(), "Resume, SyncTime", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			decided, _ := decide(t, plan.Snapshot{VMI: placed(v1.Running, owned, tt.edit), State: tt.state})
			if got := verbs(decided); got != tt.actions {
				t.Errorf("actions %q, want %q", got, tt.actions)
			}
			for _, a := range decided.Actions {
				if a.Operation.Verb == domain.SetMetadata && tt.actions == "Thaw, SetMetadata" && a.Operation.Metadata.ThawAt != nil {
					t.Errorf("it is thawed again at %v", a.Operation.Metadata.ThawAt)
				}
			}
			if tt.again > 0 && (decided.RequeueAt == nil || decided.RequeueAt.Sub(decideNow) != tt.again) {
				t.Errorf("it is looked at again at %v, want in %s", decided.RequeueAt, tt.again)
			}
		})
	}
}
