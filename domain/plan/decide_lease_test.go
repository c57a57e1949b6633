// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrate"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
)

// moved returns the lease after the events of a start on one node and of the migration to the
// other, up to the last one named.
func moved(from, to string, until handoff.Kind) handoff.Lease {
	var l handoff.Lease
	for _, e := range []handoff.Event{
		{Kind: handoff.Offer, Node: from}, {Kind: handoff.Accept, Node: from}, {Kind: handoff.Started, Node: from},
		{Kind: handoff.Prepare, Node: to, Tag: job}, {Kind: handoff.Ready, Node: to}, {Kind: handoff.Begin, Node: from},
		{Kind: handoff.TakeOver, Node: to}, {Kind: handoff.Finalize, Node: to},
	} {
		l = on(l, decideNow, e)
		if e.Kind == until {
			return l
		}
	}
	return l
}

func suspect(l handoff.Lease) handoff.Lease {
	return on(l, decideNow, handoff.Event{Kind: handoff.Suspect, Node: l.Holder})
}

func fenced(l handoff.Lease) handoff.Lease {
	sure := &handoff.Evidence{Kind: handoff.FenceConfirmed}
	return on(suspect(l), decideNow, handoff.Event{Kind: handoff.Fence, Node: l.Holder, Evidence: sure})
}

func stalled(l handoff.Lease) handoff.Lease {
	return on(l, decideNow, handoff.Event{Kind: handoff.Stall, Node: l.Holder})
}

// late returns the lease with an overdue step.
func late(l handoff.Lease) handoff.Lease {
	if l.Deadline == nil {
		panic(fmt.Sprintf("%+v is never overdue", l))
	}
	at := *l.Deadline
	at.Time = decideNow
	l.Deadline = &at
	return l
}

// row is a snapshot and the expected plan.
type row struct {
	lease    handoff.Lease
	snapshot plan.Snapshot
	edit     func(*v1.VirtualMachineInstance)
	actions  string
	// want has state and epoch of the lease to store.
	want  string
	phase v1.VirtualMachineInstancePhase
}

func runRows(t *testing.T, phase v1.VirtualMachineInstancePhase, rows map[string]row) {
	t.Helper()
	for name, tt := range rows {
		t.Run(name, func(t *testing.T) {
			tt.snapshot.VMI = placed(phase, tt.lease)
			if tt.edit != nil {
				tt.edit(tt.snapshot.VMI)
			}
			decided, l := decide(t, tt.snapshot)
			commanded(t, decided, l)
			if got := verbs(decided); got != tt.actions {
				t.Errorf("actions %q, want %q", got, tt.actions)
			}
			if got := fmt.Sprintf("%s %d", l.State, l.Epoch); got != tt.want {
				t.Errorf("the lease is %s, want %s; in full %+v", got, tt.want, l)
			}
			if tt.phase == "" {
				tt.phase = phase
			}
			if got := decided.VMI.Status.Phase; got != tt.phase {
				t.Errorf("phase %s, want %s", got, tt.phase)
			}
		})
	}
}

// desired has a domain to start.
var desired = plan.Snapshot{Desired: &libvirtxml.Domain{Name: "ns_guest"}}

// with returns a snapshot of a domain here and of the wanted one.
func with(s domain.Status, r domain.Reason, change ...func(*domain.State)) plan.Snapshot {
	return plan.Snapshot{State: runs(s, r, change...), Desired: desired.Desired}
}

func TestDecide_StartsOnce(t *testing.T) {
	accepted := leased(offerHere, acceptHere)
	returned := on(suspect(accepted), decideNow, handoff.Event{Kind: handoff.Return, Node: here})
	again := on(fenced(accepted), decideNow, offerHere)
	runRows(t, v1.Scheduled, map[string]row{
		"nothing here":              {accepted, desired, nil, "Start", "Owned 1", ""},
		"defined only":              {accepted, with(domain.StatusShutoff, domain.ReasonUnknown), nil, "Start", "Owned 1", ""},
		"it runs":                   {accepted, with(domain.StatusRunning, ""), nil, "", "Owned 1", v1.Running},
		"it runs, paused":           {accepted, with(domain.StatusPaused, domain.ReasonUser, onPurpose), nil, "", "Owned 1", v1.Running},
		"it ran and powered off":    {accepted, with(domain.StatusShutoff, domain.ReasonShutdown), nil, "Undefine, Cleanup", "Released 2", v1.Succeeded},
		"it ran and crashed":        {accepted, with(domain.StatusCrashed, domain.ReasonPanicked), nil, "Destroy, Undefine, Cleanup", "Released 2", v1.Failed},
		"unwanted by now":           {accepted, with(domain.StatusRunning, ""), beingDeleted, "SetMetadata, Shutdown", "Releasing 1", v1.Running},
		"the node was silent":       {returned, desired, nil, "Start", "Owned 2", ""},
		"silent after the start":    {returned, with(domain.StatusRunning, ""), nil, "SetMetadata", "Owned 2", v1.Running},
		"an older one runs":         {on(again, decideNow, acceptHere), with(domain.StatusRunning, ""), nil, "Destroy, Undefine, Cleanup", "Owned 4", ""},
		"an older one is left":      {on(again, decideNow, acceptHere), with(domain.StatusShutoff, domain.ReasonUnknown), nil, "Undefine, Cleanup", "Owned 4", ""},
		"offered, an older one":     {again, with(domain.StatusRunning, ""), nil, "Destroy, Undefine, Cleanup", "Offered 4", ""},
		"offered, the lease lost":   {handoff.Lease{State: handoff.Offered, Holder: here}, with(domain.StatusRunning, ""), nil, "", "Owned 0", ""},
		"offered, it ran and ended": {handoff.Lease{State: handoff.Offered, Holder: here}, with(domain.StatusShutoff, domain.ReasonShutdown), nil, "", "Owned 0", ""},
		"offered, lost its metadata": {again, with(domain.StatusRunning, "", func(s *domain.State) {
			s.UUID, s.Metadata = "uid-1", domain.Metadata{}
		}), nil, "", "Owned 4", ""},
	})
}

func TestDecide_StartedWithPhaseRunning(t *testing.T) {
	accepted := leased(offerHere, acceptHere)
	for _, status := range []domain.Status{domain.StatusRunning, domain.StatusPaused, domain.StatusNoState, domain.StatusShuttingDown} {
		t.Run(string(status), func(t *testing.T) {
			got, l := decide(t, plan.Snapshot{VMI: placed(v1.Scheduled, accepted), State: runs(status, "")})
			_, open := l.Command(handoff.CommandStart)
			if says := got.VMI.Status.Phase == v1.Running; says == open {
				t.Errorf("phase %s and open commands %+v", got.VMI.Status.Phase, l.Open)
			}
			if o, ended := l.Outcome("start/1"); !open && (!ended || o.Result != handoff.ResultDone) {
				t.Errorf("the start's outcome is %+v", o)
			}
		})
	}
}

func TestDecide_LostHolderReturnsFirst(t *testing.T) {
	owned := leased(offerHere, acceptHere, startedHere)
	moving := moved(here, there, handoff.Begin)
	runRows(t, v1.Running, map[string]row{
		"its guest runs":                {suspect(owned), with(domain.StatusRunning, ""), nil, "", "Owned 2", ""},
		"its guest has ended":           {suspect(owned), with(domain.StatusShutoff, domain.ReasonShutdown), nil, "", "Owned 2", ""},
		"its guest is gone":             {suspect(owned), desired, nil, "", "Owned 2", ""},
		"its guest is unwanted":         {suspect(owned), with(domain.StatusRunning, ""), beingDeleted, "", "Owned 2", ""},
		"its guest was being moved":     {suspect(moving), with(domain.StatusRunning, ""), nil, "", "Moving 3", ""},
		"a disk stopped it":             {suspect(owned), with(domain.StatusPaused, domain.ReasonIOError), nil, "", "Owned 2", ""},
		"fenced, and the guest runs":    {fenced(owned), with(domain.StatusRunning, ""), nil, "Destroy, Undefine, Cleanup", "Fenced 3", ""},
		"fenced, and the guest is gone": {fenced(owned), desired, nil, "Cleanup", "Fenced 3", ""},
		"fenced in a move":              {fenced(moving), plan.Snapshot{State: runs(domain.StatusRunning, ""), MigrationActive: true}, nil, "Destroy, Undefine, Cleanup", "Fenced 4", ""},
		"fenced at the switch":          {fenced(moving), plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonMigration), MigrationActive: true}, nil, "", "Fenced 4", ""},
	})
	runRows(t, v1.Scheduled, map[string]row{
		"its guest is not started": {suspect(leased(offerHere, acceptHere)), desired, nil, "", "Owned 2", ""},
		"fenced before the start":  {fenced(leased(offerHere, acceptHere)), desired, nil, "Cleanup", "Fenced 3", ""},
	})
}

func TestDecide_ReturnRestartsDeadline(t *testing.T) {
	stopped := on(leased(offerHere, acceptHere, startedHere), decideNow, handoff.Event{Kind: handoff.Stop, Node: here})
	slowly := func(vmi *v1.VirtualMachineInstance) {
		memory, seconds := resource.MustParse("2Gi"), int64(1000)
		vmi.Spec.TerminationGracePeriodSeconds = &seconds
		vmi.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
		if m := vmi.Status.MigrationState; m != nil {
			m.VMIMConfigurationOptions = &v1.VMIMConfigurationOptions{CompletionTimeoutPerGiB: &seconds}
		}
	}
	moving := moved(here, there, handoff.Begin)
	for name, tt := range map[string]struct {
		was  handoff.Lease
		want time.Duration
	}{
		"to end the guest":  {stopped, 1030 * time.Second},
		"to move the guest": {moving, (2*3000 + 150 + 300) * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := placed(v1.Running, tt.was, slowly)
			if err := handoff.Put(vmi, suspect(tt.was)); err != nil {
				t.Fatal(err)
			}
			_, l := decide(t, plan.Snapshot{VMI: vmi, State: runs(domain.StatusRunning, "")})
			if l.State != tt.was.State || l.Deadline == nil || l.Deadline.Sub(decideNow) != tt.want {
				t.Errorf("the lease is %+v, want %s for %s from now", l, tt.was.State, tt.want)
			}
		})
	}
}

func TestDecide_TargetAnswersForLostHolder(t *testing.T) {
	moving := moved(there, here, handoff.Begin)
	waiting := with(domain.StatusPaused, domain.ReasonMigration)
	runRows(t, v1.Running, map[string]row{
		"silent, it is here":            {suspect(moving), with(domain.StatusRunning, ""), nil, "", "Arrived 4", ""},
		"silent, it has not come":       {suspect(moving), desired, nil, "", "Lost 3", ""},
		"silent, it waits":              {late(suspect(moving)), waiting, nil, "", "Lost 3", ""},
		"silent, it ended here":         {suspect(moving), with(domain.StatusShutoff, domain.ReasonShutdown), nil, "", "Lost 3", ""},
		"fenced, it is here":            {fenced(moving), with(domain.StatusRunning, ""), nil, "", "Arrived 5", ""},
		"fenced, it has not come":       {fenced(moving), desired, nil, "", "Fenced 5", ""},
		"fenced, it may be coming":      {fenced(moving), waiting, nil, "", "Fenced 4", ""},
		"fenced, it will not come":      {late(fenced(moving)), waiting, nil, "Destroy, Undefine, Cleanup", "Fenced 4", ""},
		"fenced, it failed to come":     {fenced(moving), with(domain.StatusShutoff, domain.ReasonFailed), nil, "Undefine, Cleanup", "Fenced 5", ""},
		"fenced, it ended here":         {fenced(moving), with(domain.StatusShutoff, domain.ReasonShutdown), nil, "", "Arrived 5", ""},
		"stalled, it may be coming":     {stalled(moving), waiting, nil, "", "Moving 2", ""},
		"stalled, it will not come":     {late(stalled(moving)), waiting, nil, "Destroy, Undefine, Cleanup", "Moving 2", ""},
		"stalled, it ran and ends":      {late(stalled(moving)), with(domain.StatusShuttingDown, ""), nil, "", "Moving 2", ""},
		"stalled, it stands still here": {late(stalled(moving)), with(domain.StatusPaused, domain.ReasonIOError), nil, "", "Arrived 3", ""},
	})
}

func TestDecide_DeclineOfFencedMigration(t *testing.T) {
	_, l := decide(t, plan.Snapshot{VMI: placed(v1.Running, fenced(moved(there, here, handoff.Begin)))})
	if l.Holder != "" || l.Target != "" || len(l.Open) > 0 {
		t.Errorf("the lease is %+v, want it to name nobody", l)
	}
}

func TestDecide_StopIsStoredFirst(t *testing.T) {
	owned := leased(offerHere, acceptHere, startedHere)
	stopped := on(owned, decideNow, handoff.Event{Kind: handoff.Stop, Node: here})
	final := func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Failed }
	arrived := moved(there, here, handoff.TakeOver)
	runs3 := with(domain.StatusRunning, "", epoch(3))
	runRows(t, v1.Running, map[string]row{
		"deleted":                        {owned, with(domain.StatusRunning, ""), beingDeleted, "SetMetadata, Shutdown", "Releasing 1", ""},
		"final":                          {owned, with(domain.StatusRunning, ""), final, "Destroy", "Releasing 1", v1.Failed},
		"final and deleted":              {owned, with(domain.StatusRunning, ""), edits(final, beingDeleted), "SetMetadata, Shutdown", "Releasing 1", v1.Failed},
		"final, deleted and out of time": {late(stopped), with(domain.StatusRunning, ""), edits(final, beingDeleted), "Destroy", "Releasing 1", v1.Failed},
		"final, deleted and torn":        {owned, with(domain.StatusPaused, domain.ReasonPostcopyFailed), edits(final, beingDeleted), "Destroy", "Releasing 1", v1.Failed},
		"asked for by the controller":    {stopped, with(domain.StatusRunning, ""), nil, "SetMetadata, Shutdown", "Releasing 1", ""},
		"overdue":                        {late(stopped), with(domain.StatusRunning, ""), beingDeleted, "Destroy", "Releasing 1", ""},
		"overdue, and nobody deleted it": {late(stopped), with(domain.StatusRunning, "", graceUntil(decideNow.Add(time.Second)), askedAt(decideNow)), nil, "Destroy", "Releasing 1", ""},
		"asked for before the silence":   {on(suspect(stopped), decideNow, handoff.Event{Kind: handoff.Return, Node: here}), with(domain.StatusRunning, ""), nil, "SetMetadata, Shutdown", "Releasing 2", ""},
		"it has powered off":             {stopped, with(domain.StatusShutoff, domain.ReasonShutdown), beingDeleted, "Undefine, Cleanup", "Released 2", v1.Succeeded},
		"stopped, and it is gone":        {stopped, desired, nil, "Cleanup", "Released 2", v1.Failed},
		"final, and a move is prepared":  {moved(here, there, handoff.Ready), with(domain.StatusRunning, ""), final, "", "Owned 3", v1.Failed},
		"a move is finalized":            {arrived, runs3, nil, "", "Owned 3", ""},
		"finalized and unwanted":         {arrived, runs3, beingDeleted, "SetMetadata, Shutdown", "Releasing 3", ""},
		"finalized and ended":            {arrived, with(domain.StatusShutoff, domain.ReasonShutdown, epoch(3)), nil, "Undefine, Cleanup", "Released 4", v1.Succeeded},
	})
	runRows(t, v1.Scheduled, map[string]row{
		"stopped before it started": {stopped, desired, nil, "Destroy, Undefine, Cleanup", "Released 2", v1.Succeeded},
	})
}

func TestDecide_StopDeadline(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*v1.VirtualMachineInstance)
		want time.Duration
	}{
		"default": {func(*v1.VirtualMachineInstance) {}, plan.DefaultGrace + 30*time.Second},
		"its own": {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.TerminationGracePeriodSeconds = new(int64(300)) }, 330 * time.Second},
		"final":   {func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Succeeded }, plan.DefaultGrace + 30*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			_, l := decide(t, plan.Snapshot{VMI: placed(v1.Running, leased(offerHere, acceptHere, startedHere), beingDeleted, tt.edit), State: runs(domain.StatusRunning, "")})
			if l.Deadline == nil || l.Deadline.Sub(decideNow) != tt.want {
				t.Errorf("the deadline is %v, want it %s from now", l.Deadline, tt.want)
			}
		})
	}
}

func TestDecide_AbortsMigration(t *testing.T) {
	moving := moved(here, there, handoff.Begin)
	aborted := on(moving, decideNow, handoff.Event{Kind: handoff.Abort, Tag: job})
	busy := plan.Snapshot{State: runs(domain.StatusRunning, ""), Migrating: true}
	over := plan.Snapshot{State: runs(domain.StatusRunning, ""), MigrationEnded: decideNow, MigrationFailure: "the job was cancelled"}
	for name, tt := range map[string]struct {
		lease handoff.Lease
		edit  func(*v1.VirtualMachineInstance)
		says  string
		id    string
	}{
		"by the lease":               {aborted, func(*v1.VirtualMachineInstance) {}, "cancellation was requested", "abort/2"},
		"by a controller without it": {moving, abortRequested, "cancellation was requested", ""},
		"by its deadline":            {late(moving), func(*v1.VirtualMachineInstance) {}, "its deadline 2026-01-02T03:04:05Z", ""},
		"by deletion":                {moving, beingDeleted, "deleted", ""},
	} {
		t.Run(name, func(t *testing.T) {
			busy.VMI = placed(v1.Running, tt.lease, tt.edit)
			decided, l := decide(t, busy)
			commanded(t, decided, l)
			if verbs(decided) != "AbortMigration" || l.State != handoff.Moving {
				t.Fatalf("actions %q, lease %+v", verbs(decided), l)
			}
			if a := decided.Actions[0]; !strings.Contains(a.Why, tt.says) || a.Command.ID != tt.id {
				t.Errorf("it is aborted by command %q because %q; want %q and %q", a.Command.ID, a.Why, tt.id, tt.says)
			}
			over.VMI = busy.VMI
			decided, l = decide(t, over)
			if got, known := l.MoveOutcome(job); l.State != handoff.Owned || !known || got.Result != handoff.ResultReverted {
				t.Errorf("once it has ended the lease is %+v", l)
			}
			if why := decided.VMI.Status.MigrationState.FailureReason; !strings.HasPrefix(why, "Live migration has been aborted") || !strings.Contains(why, tt.says) || !strings.Contains(why, "the job was cancelled") {
				t.Errorf("the reason is %q", why)
			}
		})
	}
}

func TestDecide_StalledHolderWaits(t *testing.T) {
	l := stalled(moved(here, there, handoff.Begin))
	runRows(t, v1.Running, map[string]row{
		"the guest runs again":  {l, with(domain.StatusRunning, ""), nil, "", "Moving 2", ""},
		"it stands still":       {l, with(domain.StatusPaused, domain.ReasonMigration), nil, "", "Moving 2", ""},
		"it is gone":            {l, desired, nil, "", "Moving 2", ""},
		"it is gone, aborted":   {on(l, decideNow, handoff.Event{Kind: handoff.Abort, Tag: job}), desired, nil, "", "Moving 2", ""},
		"it is gone, and final": {l, desired, func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Failed }, "", "Moving 2", v1.Failed},
	})
}

func TestDecide_MigrationDeadline(t *testing.T) {
	seconds := func(n int64) *v1.VMIMConfigurationOptions {
		return &v1.VMIMConfigurationOptions{CompletionTimeoutPerGiB: &n}
	}
	stalls := func(factor string) *v1.VMIMConfigurationOptions {
		return &v1.VMIMConfigurationOptions{ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{
			StallDetector: &v1.StallDetectorOptions{CompletionTimeoutFactor: &factor}}}
	}
	// The progress timeout and five minutes.
	const reserve = migrate.DefaultProgressTimeout + 5*time.Minute
	for name, tt := range map[string]struct {
		options *v1.VMIMConfigurationOptions
		memory  string
		disks   []string
		bytes   int64
		want    time.Duration
	}{
		"no configuration":    {nil, "900M", nil, 0, 2*150*time.Second + reserve},
		"none given":          {&v1.VMIMConfigurationOptions{}, "900M", nil, 0, 2*150*time.Second + reserve},
		"no bound":            {seconds(0), "900M", nil, 0, 365 * 24 * time.Hour},
		"a gigabyte":          {seconds(200), "1G", nil, 0, 2*200*time.Second + reserve},
		"a little more":       {seconds(200), "1Gi", nil, 0, 2*400*time.Second + reserve},
		"a lot":               {seconds(150), "100G", nil, 0, 2*15000*time.Second + reserve},
		"no memory known":     {seconds(150), "", nil, 0, handoff.DefaultMoveWithin},
		"a disk travels":      {seconds(150), "1G", []string{"vda"}, 2e9 + 1, 2*600*time.Second + reserve},
		"of unknown size":     {seconds(150), "1G", []string{"vda"}, 0, handoff.DefaultMoveWithin},
		"and a lot of memory": {seconds(150), "100G", []string{"vda"}, 0, 2*15000*time.Second + reserve},
		"beyond all bounds":   {seconds(1 << 62), "1G", nil, 0, 365 * 24 * time.Hour},
		"stalls waited out":   {stalls("3"), "1G", nil, 0, 3*150*time.Second + reserve},
		"a factor of no size": {stalls("1e300"), "1G", nil, 0, 100*150*time.Second + reserve},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := placed(v1.Running, moved(here, there, handoff.Ready))
			vmi.Status.MigrationState.VMIMConfigurationOptions = tt.options
			if tt.memory != "" {
				memory := resource.MustParse(tt.memory)
				vmi.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
			}
			got, l := decide(t, plan.Snapshot{VMI: vmi, State: runs(domain.StatusRunning, ""), CopyDisks: tt.disks, CopyBytes: tt.bytes})
			commanded(t, got, l)
			if verbs(got) != "SetMetadata, Migrate" || l.Deadline.Sub(decideNow) != tt.want {
				t.Errorf("actions %q, until %v; want %s from now", verbs(got), l.Deadline, tt.want)
			}
		})
	}
}
