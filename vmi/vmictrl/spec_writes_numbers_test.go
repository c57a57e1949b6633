// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// numbersOfSpec are all numbers of the list.
var numbersOfSpec = []int{
	1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 34, 35, 37, 38, 40, 41, 43, 44, 46, 47, 49,
	50, 52, 53, 55, 56, 58, 59, 61, 62, 64, 65, 67, 68, 70, 71, 73, 74, 76, 77, 79, 80, 82, 83, 85, 86, 88, 89, 91, 92, 94, 95, 97, 98,
	100, 101, 103, 104, 106, 107, 109, 110, 112, 113, 115, 116, 118, 119, 121, 122, 124, 125, 127, 128, 130,
}

// withoutRow maps each number without a row to the reason: the case involves no write of this
// controller beyond those of other rows, or does not concern it.
var withoutRow = map[int]string{
	7:   "that own writes are awaited: TestController, a cache of Pods that lags behind a creation",
	8:   "how long they are: package expectations",
	16:  "what is written instead of a Pod: rows 47 and 53",
	29:  "how DataVolumes add up to one condition: vmi; that it is written: row 20",
	37:  "which event ends which expectation: package expectations, by kind and UID; there is none by name",
	88:  "when plugging has work to do: vmi",
	89:  "which volumes are to be plugged: vmi",
	94:  "which Pods that carry volumes go: vmi, in sequences",
	95:  "which of them counts: vmi",
	98:  "how much file systems take: vmi, and TestWithCDI",
	100: "there is no such delay (better: changes are gathered for Config.HotplugBatch)",
	101: "TestController, silent nodes; the rest is a node controller's",
	103: "a controller of VirtualMachines",
	104: "a controller of replica sets",
	106: "a controller of evacuations",
	107: "a controller of disruption budgets",
	109: "a controller of VirtualMachines",
	110: "a controller of snapshots",
	118: "which event ends which expectation: package expectations",
	119: "that an event without news is nothing: nothing is lost if it is something",
	121: "which guest an event wakes: rows 91 would rest without it",
	127: "which class is chosen: vmi; what is made of it: rows 32",
}

// TestWritesOfSpec_Complete checks that every number has a row or a reason.
func TestWritesOfSpec_Complete(t *testing.T) {
	rows := map[int]bool{}
	for _, part := range rowsOfSpec {
		for name := range part {
			numbers := regexp.MustCompile(`^\d+(, \d+)*`).FindString(name)
			for text := range strings.SplitSeq(numbers, ", ") {
				n, err := strconv.Atoi(text)
				if err != nil {
					t.Errorf("row %q begins with no number: %v", name, err)
				}
				rows[n] = true
			}
		}
	}
	for _, n := range numbersOfSpec {
		if _, without := withoutRow[n]; rows[n] == without {
			t.Errorf("number %d: there are rows: %t; it is said why there are none: %t", n, rows[n], without)
		}
		delete(rows, n)
	}
	if len(rows) > 0 {
		t.Errorf("there are rows for numbers that the list does not have: %v", rows)
	}
}
