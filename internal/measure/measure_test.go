// SPDX-License-Identifier: Apache-2.0

package measure_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/virtloom/virtloom/internal/measure"
	"github.com/virtloom/virtloom/internal/measure/measuretest"
)

func declared() *measure.Set {
	s := &measure.Set{}
	s.Gauge(measure.Family{Name: "a_gauge", Help: "A.", Labels: []string{"kind"}, Const: prometheus.Labels{"zone": "z", "controller": "c"}}).WithLabelValues("x").Set(3)
	s.Counter(measure.Family{Name: "b_total", Help: "B.", Labels: []string{"result"}}).WithLabelValues("ok").Add(2)
	s.Histogram(measure.Family{Name: "c_seconds", Help: "C.", Labels: []string{"phase"}, Buckets: []float64{1, 2}}).WithLabelValues("p").Observe(1.5)
	s.ReadGauge(measure.Family{Name: "d_gauge", Help: "D.", Labels: []string{"node"}}, func(emit measure.Emit) { emit(4, "n1"); emit(5, "n2") })
	s.ReadCounter(measure.Family{Name: "e_total", Help: "E."}, func(emit measure.Emit) { emit(6) })
	return s
}

func TestSet_Collect(t *testing.T) {
	want := map[string]string{
		"a_gauge controller=c kind=x zone=z": "3", "b_total result=ok": "2", "c_seconds phase=p": "1 in 1.5s",
		"d_gauge node=n1": "4", "d_gauge node=n2": "5", "e_total": "6",
	}
	if diff := cmp.Diff(want, measuretest.Gathered(t, declared())); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

func TestSet_Families(t *testing.T) {
	var got []string
	for _, f := range declared().Families() {
		got = append(got, fmt.Sprint(f.Name, " ", f.Kind, " ", strings.Join(f.AllLabels(), ",")))
	}
	want := []string{"a_gauge gauge controller,zone,kind", "b_total counter result", "c_seconds histogram phase", "d_gauge gauge node", "e_total counter "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("families (-want +got):\n%s", diff)
	}
}

func TestSet_Histogram(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(declared())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "c_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		if h.Schema == nil || len(h.GetPositiveSpan()) == 0 {
			t.Error("it has no native buckets")
		}
		if got := len(h.GetBucket()); got != 2 {
			t.Errorf("it has %d classic buckets, want 2", got)
		}
	}
}

func TestSet_InvalidSeries(t *testing.T) {
	s := &measure.Set{}
	s.ReadGauge(measure.Family{Name: "a", Help: "A.", Labels: []string{"node"}}, func(emit measure.Emit) { emit(1, "x"); emit(2, "\xff"); emit(3) })
	reg := prometheus.NewRegistry()
	reg.MustRegister(s)
	families, err := reg.Gather()
	if err == nil {
		t.Error("nothing is reported")
	}
	if len(families) != 1 || len(families[0].GetMetric()) != 1 {
		t.Errorf("the good series is lost: %v", families)
	}
}

func TestTally_RemovesZero(t *testing.T) {
	var tally measure.Tally
	tally.Add(1, measure.Labels{"running", "n1"})
	tally.Add(2, measure.Labels{"running", "n2"})
	tally.Add(-1, measure.Labels{"running", "n1"})
	tally.Add(-1, measure.Labels{"running", "n2"})
	got := map[string]float64{}
	tally.Each(2, func(n float64, labels ...string) { got[strings.Join(labels, "/")] = n })
	if diff := cmp.Diff(map[string]float64{"running/n2": 1}, got); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func TestLimited_Bound(t *testing.T) {
	for name, tc := range map[string]struct {
		most        int
		known, give []string
		want        []string
	}{
		"first come first served": {most: 2, give: []string{"A", "B", "C", "A", "C"}, want: []string{"A", "B", "Other", "A", "Other"}},
		"known have their place":  {most: 2, known: []string{"K"}, give: []string{"A", "B", "K"}, want: []string{"A", "Other", "K"}},
		"free text is no reason":  {most: 9, give: []string{"", "no node has room", "1st", "\xff", strings.Repeat("x", 65), strings.Repeat("x", 64)}, want: []string{"Other", "Other", "Other", "Other", "Other", strings.Repeat("x", 64)}},
		"none is kept":            {most: 0, give: []string{"A"}, want: []string{"Other"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := measure.NewLimited(tc.most, tc.known...)
			var got []string
			for _, v := range tc.give {
				got = append(got, l.Value(v))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("values (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLower_Phases(t *testing.T) {
	want := map[string]string{"": "unset", "Running": "running", "WaitingForSync": "waitingforsync"}
	for _, p := range slices.Sorted(maps.Keys(want)) {
		if got := measure.Lower(p); got != want[p] {
			t.Errorf("%q is %q, want %q", p, got, want[p])
		}
	}
}

func TestLeader_Elected(t *testing.T) {
	elected := make(chan struct{})
	l := measure.Elected(elected)
	emitted := 0
	read := l.While(func(emit measure.Emit) { emit(1) })
	collect := func() { read(func(float64, ...string) { emitted++ }) }
	if collect(); emitted != 0 {
		t.Error("emits before it leads")
	}
	close(elected)
	if collect(); emitted != 1 {
		t.Error("emits nothing although it leads")
	}
}
