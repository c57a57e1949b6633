// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompare(t *testing.T) {
	for name, test := range map[string]struct {
		phase Phase
		want  []Figure
	}{
		"a share of what stock KubeVirt needs": {
			Phase{Name: phaseGuests, N: 1000, Figures: []Figure{{Name: allScheduled, Value: 22.5}, {Name: controllerCPU, Value: 9}}},
			[]Figure{
				{Name: allScheduled, Value: 22.5, Stock: 45, Ratio: .5, Limit: 22.5},
				{Name: controllerCPU, Value: 9, Stock: 16, Ratio: .563, Limit: 8, Missed: true},
			},
		},
		"where no reference was measured a share has no limit": {
			Phase{Name: phaseGuests, N: 37, Figures: []Figure{{Name: allScheduled, Value: 1e6}, {Name: writesEach, Value: 4.1}}},
			[]Figure{{Name: allScheduled, Value: 1e6}, {Name: writesEach, Value: 4.1, Limit: 4, Missed: true}},
		},
		"exactly the limit is within": {
			Phase{Name: phaseMoves, N: 7, Figures: []Figure{{Name: writesEach, Value: 9}, {Name: rejectedEach, Value: .1}}},
			[]Figure{{Name: writesEach, Value: 9, Limit: 9}, {Name: rejectedEach, Value: .1, Limit: .1}},
		},
		"what nobody has an opinion about": {
			Phase{Name: phaseCached, N: 10000, Figures: []Figure{{Name: "something", Value: 5}}}, []Figure{{Name: "something", Value: 5}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.phase.compare(&Report{})
			if diff := cmp.Diff(test.want, test.phase.Figures); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestLimits_HaveReference(t *testing.T) {
	for phase, all := range limits {
		for _, l := range all {
			known := phase == phaseMachines // measured in the same run
			for _, reference := range stock[phase] {
				known = known || reference[l.figure] > 0
			}
			kinds := 0
			for _, value := range []float64{l.most, l.share, l.guests} {
				if value > 0 {
					kinds++
				}
			}
			if kinds != 1 || l.share > 0 && !known {
				t.Errorf("%s: limit %+v", phase, l)
			}
		}
	}
}

// VirtualMachines are compared with what was measured before in the same run.
func TestCompare_Machines(t *testing.T) {
	r := &Report{Phases: []Phase{
		{Name: phaseGuests, N: 5, Figures: []Figure{{Name: writesOfAll, Value: 7}}},
		{Name: phaseStock, N: 5, Figures: []Figure{{Name: allScheduled, Value: 100}, {Name: writesEach, Value: 12}}},
	}}
	p := Phase{Name: phaseMachines, N: 5, Figures: []Figure{{Name: allScheduled, Value: 61}, {Name: writesEach, Value: 6}, {Name: writesOfAll, Value: 10.1}}}
	p.compare(r)
	want := []Figure{
		{Name: allScheduled, Value: 61, Stock: 100, Ratio: .61, Limit: 60, Missed: true}, {Name: writesEach, Value: 6, Stock: 12, Ratio: .5},
		{Name: writesOfAll, Value: 10.1, Limit: 10.1},
	}
	if diff := cmp.Diff(want, p.Figures); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReport(t *testing.T) {
	p := Phase{Name: phaseMoves, N: 200}
	p.step("target Running to handed off", Spread{N: 200, P50: .1, P95: .2, P99: .3, Max: .4})
	p.wrote(Writes{Each: 9.5, Events: 3, Rejected: .05, Kinds: map[string]float64{"create pods": 1, "patch pods": 2}, Codes: map[string]int{"409": 10}})
	p.add(controllerCPU, 3.85, "s")
	p.Profiles = []string{"cpu.pprof"}
	p.Load = &Load{Cores: 1.834, Of: 2, Server: .6, Controller: .15}
	p.compare(&Report{})
	r := Report{Phases: []Phase{p}}

	if diff := cmp.Diff([]string{"migrations: writes each, without events: 9.5, want 9 at most"}, r.missed()); diff != "" {
		t.Errorf("missed (-want +got):\n%s", diff)
	}
	want := "migrations 200: target Running to handed off 0.10/0.20/0.30 s (max 0.40), writes each, without events 9.5, rejected writes each 0.05, controller CPU 3.85 s"
	if got := p.line(); got != want {
		t.Errorf("line %q, want %q", got, want)
	}
	var table strings.Builder
	if err := p.table(&table); err != nil {
		t.Fatal(err)
	}
	lines := map[string]bool{}
	for line := range strings.Lines(table.String()) {
		lines[strings.Join(strings.Fields(line), " ")] = true
	}
	for _, line := range []string{
		"writes each, without events 9.5 19.5 0.49 9 MISSED", "rejected writes each 0.05 3.2 0.02 0.1 ok",
		"controller CPU 3.85 s 7.7 s 0.50", "writes each: patch pods 2.00, create pods 1.00", "refusals: map[409:10], reads: 0", "profile: cpu.pprof",
		"what limits next: 1.83 of 2 cores in use, of that by the API server 60 %, by the controller 15 %, by others 25 %",
	} {
		if !lines[line] {
			t.Errorf("no line %q in\n%s", line, table.String())
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back); diff != "" {
		t.Errorf("what JSON says differs (-want +got):\n%s", diff)
	}
	if !strings.Contains(string(text), `{"name":"target Running to handed off","n":200,"p50Seconds":0.1,`) {
		t.Errorf("JSON: %s", text)
	}
}
