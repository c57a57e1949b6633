// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"slices"
	"strings"
	"testing"
)

// specNumbers are the cases of section 13 by their headings. Those of specDefects are
// defects of KubeVirt, which are not reproduced.
var specNumbers = []string{
	"1 2 4 5 7 8 10 11 13 14 16",
	"17 19 20 22 23 25 26 28 29 31 32 34 35 37",
	"38 40 41 43 44 46 47 49 50",
	"52 53 55 56 58 59 61 62 64 65 67 68 70 71 73 73b",
	"74 76 77 79 80 82",
	"83 85 86",
	"88 89 91 92 94 95 97 98 100",
	"101 103 104 106 107 109 110",
	"112 113 115 116 118 119 121 122 124 125 127 128 130",
}

// specDefects need no row: 73b (a computed value is not stored) and 100 (no delay at all).
// Their replacements may have one.
var specDefects = []string{"73b", "100"}

// specElsewhere maps cases without a decision to the responsible package.
var specElsewhere = map[string]string{
	"37":  "what wakes a guest: vmi/vmictrl, TestMapping",
	"82":  "what an answer of the API server means: vmi/vmictrl, TestWritesOfSpec",
	"103": "delays between starts: the controller of VirtualMachines, which is KubeVirt's",
	"104": "the controller of VirtualMachineInstanceReplicaSets, which is KubeVirt's",
	"106": "evacuation of nodes: KubeVirt's controller; the guest's part of it is case 64",
	"107": "PodDisruptionBudgets: KubeVirt's controller",
	"109": "RestartRequired is a condition of VirtualMachines",
	"110": "snapshot and restore: KubeVirt's controllers",
	"118": "what an event says of own writes: package expectations, and vmi/vmictrl, TestMapping",
	"119": "an event without news is one pass that finds nothing to do (better: the periodic event is a safety net): cases 52, 76, 115",
	"121": "what wakes a guest: vmi/vmictrl, TestMapping",
	"124": "how a change is written: internal/vmipatch, against an API server, and vmi/vmictrl, TestWritesOfSpec",
	"125": "a patch that is refused: vmi/vmictrl, TestWritesOfSpec",
}

func TestSpecCases_Complete(t *testing.T) {
	known := strings.Fields(strings.Join(specNumbers, " "))
	found := map[string]bool{}
	names := map[string]bool{}
	for _, c := range specCases {
		for _, rows := range c.rows {
			for name := range rows() {
				number, _, _ := strings.Cut(name, " ")
				if !slices.Contains(known, number) {
					t.Errorf("%q: there is no case %s", name, number)
				}
				if names[name] {
					t.Errorf("%q is there twice", name)
				}
				found[number], names[name] = true, true
			}
		}
	}
	for _, number := range known {
		if _, said := specElsewhere[number]; !found[number] && !said && !slices.Contains(specDefects, number) {
			t.Errorf("case %s has no row", number)
		}
	}
	for number := range specElsewhere {
		if found[number] || !slices.Contains(known, number) {
			t.Errorf("case %s is said to be elsewhere", number)
		}
	}
	t.Logf("%d rows of %d cases", len(names), len(found))
}
