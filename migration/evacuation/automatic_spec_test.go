// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// automaticNumbers are the cases of section 14 of the specification on automatic migrations.
var automaticNumbers = []int{103, 104, 106, 107, 109, 110, 112, 113, 115, 116, 118, 119, 121}

// networkRows are the rows of those that are package vmi's, in a file that is named from here.
const networkFile = "../../vmi/netmigration_test.go"

var networkRows = map[int][]string{
	103: {"71 a plugged bridge waits", "68 the wait counts from the condition", "68 the wait is over"},
	104: {"71 a plugged SR-IOV is at once"},
	106: {"an unplugged interface is still attached", "an interface to be unplugged is still in the domain"},
}

func TestSpecification_AutomaticCases(t *testing.T) {
	number := regexp.MustCompile(`^S14/(\d+) `)
	have := map[int]bool{}
	for _, names := range [][]string{
		slices.Collect(maps.Keys(evacuationCases)), slices.Collect(maps.Keys(updateCases)),
		slices.Collect(maps.Keys(limitCases)), slices.Collect(maps.Keys(evictionCases)),
	} {
		for _, name := range names {
			if m := number.FindStringSubmatch(name); m != nil {
				n, err := strconv.Atoi(m[1])
				if err != nil || !slices.Contains(automaticNumbers, n) {
					t.Errorf("%q: there is no such case", name)
				}
				have[n] = true
			}
		}
	}
	file, err := os.ReadFile(networkFile)
	if err != nil {
		t.Fatal(err)
	}
	for n, rows := range networkRows {
		have[n] = true
		for _, row := range rows {
			if !strings.Contains(string(file), strconv.Quote(row)) {
				t.Errorf("case %d: %s has no row %q", n, networkFile, row)
			}
		}
	}
	for _, n := range automaticNumbers {
		if !have[n] {
			t.Errorf("case %d has no row", n)
		}
	}
}
