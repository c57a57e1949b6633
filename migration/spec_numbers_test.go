// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// specNumbers are the cases of section 14 of the specification.
var specNumbers = []int{
	1, 2, 4, 5, 7, 8, 10, 11, // admission
	13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 34, 35, 37, // phases
	38, 40, 41, 43, 44, 46, 47, 49, 50, 52, // failure and abort
	53, 55, 56, 58, 59, 61, 62, 64, 65, 67, 68, // capacity
	70, 71, 73, 74, 76, 77, 79, 80, 82, // timers
	83, 85, 86, 88, 89, 91, // policy
	92, 94, 95, 97, 98, // target Pod
	100, 101, // collection
	103, 104, 106, 107, 109, 110, 112, 113, 115, 116, 118, 119, 121, // automatic migrations
	122, 124, 125, 127, 128, 130, // improvements
}

// elsewhere are the numbers whose rows do not carry them, with the file and the text by which
// they are found.
var elsewhere = map[int][2]string{
	92:  {"../template/migration_test.go", "TestMigrationTarget_AddedNodeSelector"},
	103: {"../vmi/netmigration_test.go", "68 the wait is over"},
	104: {"../vmi/netmigration_test.go", "71 a plugged SR-IOV is at once"},
	106: {"../vmi/netmigration_test.go", "an interface to be unplugged is still in the domain"},
}

// places are the packages whose tests have rows of section 14, beside this one and its
// controllers.
var places = []string{".", "../template", "../vmi", "../domain", "../refdaemon"}

var specMark = regexp.MustCompile(`S14[/_]([0-9]+(?:, ?[0-9]+)*)`)

func TestSpecification_Numbers(t *testing.T) {
	rows := map[string]bool{}
	for _, dir := range places {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range specMark.FindAllStringSubmatch(string(text), -1) {
				for _, n := range strings.Split(m[1], ",") {
					rows[strings.TrimSpace(n)] = true
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range specNumbers {
		if where, there := elsewhere[n]; there {
			text, err := os.ReadFile(where[0])
			if err != nil || !strings.Contains(string(text), where[1]) {
				t.Errorf("%d: no %q in %s: %v", n, where[1], where[0], err)
			}
			continue
		}
		if !rows[fmt.Sprint(n)] {
			t.Errorf("no row has the number %d", n)
		}
	}
}
