// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

func TestProgress_String(t *testing.T) {
	const mib = 1 << 20
	for name, test := range map[string]struct {
		progress domain.Progress
		want     string
	}{
		"all of it": {
			domain.Progress{
				Active: true, Processed: 142 * mib, Remaining: 114 * mib, Total: 256 * mib, BytesPerSecond: 34 * mib,
				DirtyBytesPerSecond: 12 * mib, Downtime: 120 * time.Millisecond, Iteration: 2, Throttle: 20,
			},
			"processed=142Mi remaining=114Mi total=256Mi rate=34Mi/s dirty=12Mi/s downtime=120ms iteration=2 throttle=20% eta=6s",
		},
		"nothing known":       {domain.Progress{Active: true}, "processed=0 remaining=0 total=0"},
		"large and small":     {domain.Progress{Processed: 3<<40 + 5, Remaining: 1023, Total: 1<<20 - 1}, "processed=3145728Mi remaining=1023 total=1023Ki"},
		"never at this rate":  {domain.Progress{Remaining: mib, BytesPerSecond: mib, DirtyBytesPerSecond: mib}, "processed=0 remaining=1Mi total=0 rate=1Mi/s dirty=1Mi/s"},
		"a moment":            {domain.Progress{Remaining: 1, BytesPerSecond: mib}, "processed=0 remaining=1 total=0 rate=1Mi/s eta=1s"},
		"less than a milli":   {domain.Progress{Downtime: 999 * time.Microsecond}, "processed=0 remaining=0 total=0"},
		"as much as there is": {domain.Progress{Total: math.MaxUint64}, "processed=0 remaining=0 total=17592186044415Mi"},
	} {
		t.Run(name, func(t *testing.T) {
			got := test.progress.String()
			if got != test.want {
				t.Fatalf("text %q, want %q", got, test.want)
			}
			read, err := domain.ParseProgress(got)
			if err != nil || read.String() != got || !read.Active {
				t.Errorf("read as %+v (%q), %v", read, read.String(), err)
			}
		})
	}
}

func TestParseProgress_RoundTrip(t *testing.T) {
	rnd := rand.New(rand.NewPCG(6, 6))
	number := func() uint64 { return rnd.Uint64() >> rnd.UintN(64) }
	for range 20_000 {
		p := domain.Progress{
			Processed: number(), Remaining: number(), Total: number(), BytesPerSecond: number(), DirtyBytesPerSecond: number(),
			Downtime: time.Duration(number() >> 1), Iteration: number(), Throttle: rnd.IntN(101),
		}
		text := p.String()
		read, err := domain.ParseProgress(text)
		if err != nil || read.String() != text {
			t.Fatalf("%+v is %q, read as %+v, %v", p, text, read, err)
		}
	}
}

func TestParseProgress_Invalid(t *testing.T) {
	for name, text := range map[string]string{
		"a word for a number":  "processed=much",
		"no unit of time":      "rate=1Mi",
		"more than can be":     "total=18446744073709551615Mi",
		"negative":             "remaining=-1",
		"a downtime of itself": "downtime=1",
		"no share":             "throttle=all",
	} {
		t.Run(name, func(t *testing.T) {
			if p, err := domain.ParseProgress(text); err == nil {
				t.Errorf("read as %+v", p)
			}
		})
	}
	if _, err := domain.ParseProgress("total=1Gi"); err == nil {
		t.Error("a unit that is never written was read")
	}
	if _, err := domain.ParseProgress("rate=1Mi"); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("error %v, want ErrInvalid", err)
	}
	if p, err := domain.ParseProgress("later=7 processed=1Ki"); err != nil || p.Processed != 1024 {
		t.Errorf("a key of the future: %+v, %v", p, err)
	}
}

// moving returns a VMI that migrates from node-a to node-b.
func moving(t *testing.T) *v1.VirtualMachineInstance {
	t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	vmi.Namespace, vmi.Name, vmi.UID = "ns", "guest", "uid"
	vmi.Status.Phase, vmi.Status.NodeName = v1.Running, "node-a"
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "job", SourceNode: "node-a", TargetNode: "node-b"}
	var l handoff.Lease
	for _, e := range []handoff.Event{
		{Kind: handoff.Offer, Node: "node-a"}, {Kind: handoff.Accept, Node: "node-a"}, {Kind: handoff.Started, Node: "node-a"},
		{Kind: handoff.Prepare, Node: "node-b", Tag: "job"}, {Kind: handoff.Ready, Node: "node-b"}, {Kind: handoff.Begin, Node: "node-a"},
	} {
		e.Epoch = l.Epoch
		next, _, err := handoff.Step(l, e, progressNow)
		if err != nil {
			t.Fatal(err)
		}
		l = next
	}
	if err := handoff.Put(vmi, l); err != nil {
		t.Fatal(err)
	}
	return vmi
}

var progressNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestDecide_MigrationProgress(t *testing.T) {
	shown := &domain.Progress{Active: true, Processed: 1 << 20, Remaining: 2 << 20, Total: 3 << 20}
	state := &domain.State{Name: "ns_guest", Status: domain.StatusRunning, Metadata: domain.Metadata{UID: "uid", Namespace: "ns", Name: "guest"}}
	snapshot := func(node string, edit func(*plan.Snapshot)) plan.Snapshot {
		s := plan.Snapshot{Node: node, VMI: moving(t), State: state, Migrating: true, MigrationActive: true, Progress: shown, Shown: shown}
		edit(&s)
		return s
	}
	stored := func(s *plan.Snapshot) {
		vmistatus.SetCondition(s.VMI, v1.VirtualMachineInstanceCondition{Type: status.MigrationProgress, Status: "True", Message: "total=1Mi"}, progressNow)
	}
	for name, test := range map[string]struct {
		snapshot plan.Snapshot
		want     string // of the condition; empty for none
		mode     v1.MigrationMode
	}{
		"the source stores it":       {snapshot("node-a", func(s *plan.Snapshot) { s.MigrationMode = v1.MigrationPreCopy }), shown.String(), v1.MigrationPreCopy},
		"with its mode":              {snapshot("node-a", func(s *plan.Snapshot) { s.MigrationMode = v1.MigrationPaused }), shown.String(), v1.MigrationPaused},
		"what is not known stays":    {snapshot("node-a", func(s *plan.Snapshot) { stored(s); s.Shown = nil }), "total=1Mi", ""},
		"the target leaves it alone": {snapshot("node-b", func(s *plan.Snapshot) { stored(s); s.State = nil }), "total=1Mi", ""},
		"it goes when the guest stays": {snapshot("node-a", func(s *plan.Snapshot) {
			stored(s)
			s.Migrating, s.MigrationActive, s.Shown = false, false, nil
			s.MigrationFailure = "no"
			s.MigrationEnded = progressNow
		}), "", ""},
		"it goes when the guest comes":  {snapshot("node-b", func(s *plan.Snapshot) { stored(s); s.Migrating, s.MigrationActive, s.Shown = false, false, nil }), "", ""},
		"another node has no say in it": {snapshot("node-c", func(s *plan.Snapshot) { stored(s); s.State = nil }), "total=1Mi", ""},
	} {
		t.Run(name, func(t *testing.T) {
			decided, err := plan.Decide(proven(test.snapshot), progressNow)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, c := range decided.VMI.Status.Conditions {
				if c.Type == status.MigrationProgress {
					got = c.Message
				}
			}
			if got != test.want {
				t.Errorf("the condition says %q, want %q", got, test.want)
			}
			if m := decided.VMI.Status.MigrationState; test.mode != "" && m.Mode != test.mode {
				t.Errorf("mode %q, want %q", m.Mode, test.mode)
			}
			if p, known := status.ProgressOf(decided.VMI); known != (test.want != "") || known && p.Total == 0 {
				t.Errorf("read from the status: %+v, %t", p, known)
			}
		})
	}
}
