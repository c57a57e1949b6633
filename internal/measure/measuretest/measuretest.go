// SPDX-License-Identifier: Apache-2.0

// Package measuretest reads metrics in tests.
package measuretest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Gathered returns the values of the collectors' series by name and labels; for a histogram the
// count and the sum. A violation found by the pedantic registry fails the test.
func Gathered(t testing.TB, collectors ...prometheus.Collector) map[string]string {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	for _, c := range collectors {
		if err := r.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := []string{f.GetName()}
			for _, l := range m.GetLabel() {
				name = append(name, l.GetName()+"="+l.GetValue())
			}
			value := fmt.Sprint(m.GetGauge().GetValue() + m.GetCounter().GetValue())
			if h := m.GetHistogram(); h != nil {
				value = fmt.Sprintf("%d in %vs", h.GetSampleCount(), h.GetSampleSum())
			}
			out[strings.Join(name, " ")] = value
		}
	}
	return out
}
