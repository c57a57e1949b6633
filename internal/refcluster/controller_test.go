// SPDX-License-Identifier: Apache-2.0

package refcluster

import (
	"maps"
	"testing"
)

func TestSums(t *testing.T) {
	const text = `# TYPE virtloom_expectations_outstanding gauge
virtloom_expectations_outstanding{controller="vmi",verb="create"} 2
virtloom_expectations_outstanding{controller="migration",verb="update of a"} 3
# TYPE go_goroutines gauge
go_goroutines 299
# TYPE a_total counter
a_total 7
live_bytes 1.5e+06
`
	got, err := sums([]byte(text))
	want := map[string]float64{"virtloom_expectations_outstanding": 5, "go_goroutines": 299, "a_total": 7, "live_bytes": 1.5e6}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"{", "bad one\n", "worse{a=\"b\"} two\n"} {
		if got, err := sums([]byte(bad)); err == nil {
			t.Errorf("%q is understood: %v", bad, got)
		}
	}
}
