// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

var rewrite = flag.Bool("update", false, "rewrite doc.go")

type phases = map[v1.VirtualMachineInstanceMigrationPhase]row

// chain matches the drawn phases of a local migration, and of those between clusters.
var chain = regexp.MustCompile(`(?m)^//\t((?:sender|receiver) +)?(\w+ +──▶ .*)$`)

// chains returns the phases that doc.go draws.
func chains(text string) map[string][]string {
	out := map[string][]string{}
	for _, m := range chain.FindAllStringSubmatch(text, -1) {
		out[strings.TrimSpace(m[1])] = strings.Split(regexp.MustCompile(` +──▶ +`).ReplaceAllString(m[2], " "), " ")
	}
	return out
}

// turns returns the table of owners, in the order of the phases.
func turns(order []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "//\t%-17s %-13s %-19s %-13s %-19s %s\n", "", "local", "", "sender", "", "receiver")
	cell := func(of phases, phase string) (string, string) {
		r, there := of[v1.VirtualMachineInstanceMigrationPhase(phase)]
		if !there {
			return "-", ""
		}
		return string(r.responsible), string(r.overdue)
	}
	for _, p := range order {
		if table[v1.VirtualMachineInstanceMigrationPhase(p)].responsible == handoff.ByNobody {
			continue
		}
		var line strings.Builder
		fmt.Fprintf(&line, "//\t%-17s", p)
		for _, of := range []phases{table, senders, receivers} {
			who, reason := cell(of, p)
			fmt.Fprintf(&line, " %-13s %-19s", who, reason)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

func TestDocumentation_Phases(t *testing.T) {
	raw, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	drawn := chains(string(raw))
	for name, of := range map[string]phases{"": table, "sender": senders, "receiver": receivers} {
		want := map[string]bool{}
		for p := range of {
			want[string(p)] = true
		}
		got := map[string]bool{"": true, string(v1.MigrationFailed): true, string(v1.MigrationSucceeded): true}
		for _, p := range drawn[name] {
			got[p] = true
		}
		if !maps.Equal(got, want) {
			t.Errorf("the phases of %q are drawn as %v, and are %v", name, drawn[name], slices.Sorted(maps.Keys(want)))
		}
	}

	const begin, end = "an unschedulable Pod:\n//\n", "//\n// Every phase has an owner"
	head, rest, found := strings.Cut(string(raw), begin)
	drawnTable, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("doc.go has no table of the owners")
	}
	want := turns(slices.Concat([]string{string(v1.MigrationSynchronizing), string(v1.MigrationWaitingForSync)}, drawn[""]))
	if *rewrite {
		if err := os.WriteFile("doc.go", []byte(head+begin+want+end+tail), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if drawnTable != want {
		t.Errorf("the table in doc.go is not that of the code (rewrite it with -update):\n%s", want)
	}
}
