// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"os"
	"regexp"
	"testing"

	v1 "kubevirt.io/api/core/v1"
)

// Every transition of the table is documented, and every documented transition of the controller is in the table.
func TestDocumentation_PhaseTable(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	type edge struct{ from, to string }
	documented := map[edge]string{}
	for _, m := range regexp.MustCompile(`(?m)^//\t(\(none\)|[A-Z]\w+) +─▶ (\w+) +(controller|node)  `).FindAllStringSubmatch(string(text), -1) {
		documented[edge{m[1], m[2]}] = m[3]
	}
	name := func(p v1.VirtualMachineInstancePhase) string {
		if p == v1.VmPhaseUnset {
			return "(none)"
		}
		return string(p)
	}
	made := map[edge]bool{{"(none)", "Pending"}: true} // Decide's own
	for _, row := range transitions {
		for _, from := range row.from {
			if row.to != "" {
				made[edge{name(from), name(row.to)}] = true
			}
		}
	}
	for e := range made {
		if documented[e] == "" {
			t.Errorf("%s ─▶ %s is not documented", e.from, e.to)
		}
	}
	for e, who := range documented {
		if who == "controller" && !made[e] {
			t.Errorf("%s ─▶ %s is documented, and in no row of the table", e.from, e.to)
		}
	}
}
