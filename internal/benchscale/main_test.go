// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

func TestParse(t *testing.T) {
	for name, test := range map[string]struct {
		args string
		want string // part of the error
	}{
		"nothing is given":                     {"", ""},
		"no migrations":                        {"-n 5 -m 0", ""},
		"only what is cached":                  {"-n 0 -m 0 -cached 7 -o json", ""},
		"flags of the controller":              {"-n 5 -m 5 -- -v", ""},
		"VirtualMachines":                      {"-kind vm -n 5 -stock virt-controller", ""},
		"another kind":                         {"-kind pod", `-kind "pod" is neither vmi nor vm`},
		"migrations of VirtualMachines":        {"-kind vm -n 5 -m 5", "leave out -m"},
		"a floor of VirtualMachines":           {"-kind vm -floor", "-floor"},
		"KubeVirt starts VirtualMachines only": {"-stock virt-controller", "give -kind vm"},
		"help":                                 {"-h", flag.ErrHelp.Error()},
		"a flag that there is not":             {"-many", "-many"},
		"no number":                            {"-n lots", "-n"},
		"less than nothing":                    {"-n -5 -m 0", "negative"},
		"nothing to measure":                   {"-n 0 -m 0", "nothing to measure"},
		"migrations of nobody":                 {"-n 5 -m 6", "-m 6 migrations need as many guests"},
		"waiting for nobody":                   {"-n 5 -m 5 -waiting 6", "-waiting 6 migrations need as many guests"},
		"nowhere to go":                        {"-n 5 -m 5 -nodes 1", "no guest could be moved"},
		"no time to look":                      {"-idle 0s", "-idle"},
		"no time at all":                       {"-within -1s", "-within"},
		"a format that there is not":           {"-o yaml", `"yaml" is neither text nor json`},
		"an argument":                          {"-n 5 -m 5 fast", "unexpected argument"},
		"all of several mistakes are reported": {"-n 5 -m 6 -o yaml", "yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			fields := strings.Fields(test.args)
			o, err := parse(fields)
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				if i := slices.Index(fields, "--"); i >= 0 && !slices.Equal(o.daemonArgs, fields[i+1:]) {
					t.Errorf("the controller gets %q", o.daemonArgs)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// built returns the path of a refdaemon.
func built(t *testing.T) string {
	t.Helper()
	rigtest.Need(t)
	daemon := filepath.Join(t.TempDir(), "refdaemon")
	if text, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-tags", "libvirt_dlopen", "-o", daemon, "github.com/virtloom/virtloom/refdaemon").CombinedOutput(); err != nil {
		t.Fatalf("build refdaemon: %v\n%s", err, text)
	}
	return daemon
}

// TestSmall measures with few guests, to see that it measures at all: no time is judged.
func TestSmall(t *testing.T) {
	daemon := built(t)
	var out bytes.Buffer
	args := []string{"-n", "10", "-m", "5", "-waiting", "8", "-nodes", "4", "-idle", "1s", "-o", "json", "-daemon", daemon}
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	want := map[string]int{phaseGuests: 10, phaseMoves: 5, phaseWaiting: 8}
	if len(r.Phases) != len(want) {
		t.Fatalf("%d phases: %s", len(r.Phases), out.String())
	}
	for _, p := range r.Phases {
		if p.N != want[p.Name] {
			t.Errorf("%s of %d, want %d", p.Name, p.N, want[p.Name])
		}
		for _, s := range p.Steps {
			if s.N != p.N || s.Max <= 0 || s.P50 > s.P99 || s.P99 > s.Max {
				t.Errorf("%s: %s: %+v", p.Name, s.Name, s.Spread)
			}
		}
		if p.Writes.Kinds["create pods"] != 1 {
			t.Errorf("%s: the controller created %v Pods each, want 1: %v", p.Name, p.Writes.Kinds["create pods"], p.Writes)
		}
		for _, f := range p.Figures {
			switch f.Name {
			case serverCPU, peakMemory, writesEach, allScheduled, allHandedOff, firstTarget:
				if f.Value <= 0 {
					t.Errorf("%s: %s is %v", p.Name, f.Name, f.Value)
				}
			}
			// Among so few, one write that could not be merged into another weighs much.
			if f.Name == writesEach && f.Missed && f.Value >= f.Limit+1 {
				t.Errorf("%s: %s is %v, want less than one more than %v: %v", p.Name, f.Name, f.Value, f.Limit, p.Writes)
			}
		}
	}
}

// TestMachines measures few VirtualMachines beside as many guests without.
func TestMachines(t *testing.T) {
	daemon := built(t)
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-kind", "vm", "-n", "10", "-nodes", "4", "-o", "json", "-daemon", daemon}, &out); err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	if len(r.Phases) != 2 || r.Phases[0].Name != phaseGuests || r.Phases[1].Name != phaseMachines {
		t.Fatalf("phases %s", out.String())
	}
	p := r.Phases[1]
	for _, what := range []string{"create controllerrevisions", "create virtualmachineinstances", "create pods"} {
		if p.Writes.Kinds[what] != 1 {
			t.Errorf("%s: %v each, want 1: %v", what, p.Writes.Kinds[what], p.Writes)
		}
	}
	if n := p.Writes.Kinds["patch virtualmachines"]; n != 0 {
		t.Errorf("the controller added to what the webhooks leave: %v patches of each VirtualMachine", n)
	}
	guests, machines := r.values(phaseGuests), r.values(phaseMachines)
	if machines[writesOfAll] <= guests[writesOfAll] || p.Components["admin"] != 1 || p.Components[everybody] != machines[writesOfAll] {
		t.Errorf("writes of all components: %v, %v, without VirtualMachines %v", machines[writesOfAll], p.Components, guests[writesOfAll])
	}
}

func TestRun_InvalidFlags(t *testing.T) {
	var out bytes.Buffer
	err := run(t.Context(), []string{"-n", "0", "-m", "0", "-o", "json"}, &out)
	if err == nil || errors.Is(err, errMissed) || out.Len() > 0 {
		t.Errorf("got %v and %q", err, out.String())
	}
}
