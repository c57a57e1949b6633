// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/virtloom/virtloom/internal/soak"
)

// sampled makes a sample every hour of what value says.
func sampled(n int, value func(hour int) float64) []soak.Sample {
	var out []soak.Sample
	for i := range n {
		out = append(out, soak.Sample{At: time.Duration(i) * time.Hour, Values: map[string]float64{"v": value(i)}})
	}
	return out
}

func TestJudge(t *testing.T) {
	noise := []float64{3, -2, 5, 0, -4, 1, 2, -1}
	for name, tt := range map[string]struct {
		samples []soak.Sample
		bound   soak.Bound
		want    string // empty: nothing is wrong
	}{
		"what stays is right":                      {sampled(24, func(int) float64 { return 500 }), soak.Bound{Most: -1, Slack: 4}, ""},
		"noise is no slope":                        {sampled(24, func(i int) float64 { return 500 + noise[i%8] }), soak.Bound{Most: -1, Slack: 4}, ""},
		"nor is what falls":                        {sampled(24, func(i int) float64 { return 500 - 9*float64(i) }), soak.Bound{Most: -1, Slack: 4}, ""},
		"nor a single outlier, however late":       {sampled(24, func(i int) float64 { return 500 + 9999*float64(i/23) }), soak.Bound{Most: -1, Slack: 4}, ""},
		"nor what is filled once":                  {sampled(24, func(i int) float64 { return 500 + 100*float64(min(i, 1)) }), soak.Bound{Most: -1, Slack: 4}, ""},
		"one goroutine an hour is a slope":         {sampled(24, func(i int) float64 { return 500 + float64(i) }), soak.Bound{Most: -1, Slack: 4}, "slope"},
		"so it is under noise":                     {sampled(24, func(i int) float64 { return 500 + float64(i) + noise[i%8] }), soak.Bound{Most: -1, Slack: 4}, "slope"},
		"a share may be added":                     {sampled(24, func(i int) float64 { return 500 + float64(i) }), soak.Bound{Most: -1, Share: .1}, ""},
		"two samples have no slope":                {sampled(2, func(i int) float64 { return 500 + 100*float64(i) }), soak.Bound{Most: -1, Slack: 4}, ""},
		"what must not be there at all is":         {sampled(3, func(i int) float64 { return float64(i / 2) }), soak.Bound{Most: 0}, "leak"},
		"what is not there is right":               {sampled(3, func(int) float64 { return 0 }), soak.Bound{Most: 0}, ""},
		"what was never measured proves nothing":   {nil, soak.Bound{Most: -1}, "never measured"},
		"nor does what nobody gives a value of it": {sampled(3, func(int) float64 { return 0 }), soak.Bound{Name: "other", Most: -1}, "never measured"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.bound.Name == "" {
				tt.bound.Name = "v"
			}
			wrong := soak.Judge(tt.samples, []soak.Bound{tt.bound})
			if got := strings.Join(wrong, "; "); (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
				t.Errorf("found %q, want it to name %q", got, tt.want)
			}
		})
	}
}

func TestGrowth_Outliers(t *testing.T) {
	g, enough := soak.GrowthOf(sampled(25, func(i int) float64 {
		if i%7 == 3 {
			return 1e6
		}
		return 100 + 2*float64(i)
	}), soak.Bound{Name: "v"})
	if !enough || g.PerHour < 1.9 || g.PerHour > 2.1 {
		t.Errorf("2 an hour with outliers are %+v", g)
	}
}

func TestStorms(t *testing.T) {
	second := func(n int) []time.Duration {
		var out []time.Duration
		for i := range n {
			out = append(out, time.Duration(i)*time.Second)
		}
		return out
	}
	for name, tt := range map[string]struct {
		writes map[string][]time.Duration
		want   []string
		worst  int
	}{
		"nothing":                        {nil, nil, 0},
		"as many as may be":              {map[string][]time.Duration{"a": second(10)}, nil, 10},
		"one more":                       {map[string][]time.Duration{"a": second(11)}, []string{"11 writes of a"}, 11},
		"more, but of different objects": {map[string][]time.Duration{"a": second(10), "b": second(10)}, nil, 10},
		"more, but over a longer time": {map[string][]time.Duration{
			"a": append(second(10), 70*time.Second, 71*time.Second, 72*time.Second),
		}, nil, 10},
	} {
		t.Run(name, func(t *testing.T) {
			s, begun, total := soak.NewStorms(time.Minute, 10), time.Now(), 0
			for object, all := range tt.writes {
				for i, at := range all {
					total++
					if stormy := s.Wrote(object, begun.Add(at)); stormy != (len(tt.want) > 0 && i >= 10) {
						t.Errorf("write %d of %s is part of a storm: %v", i, object, stormy)
					}
				}
			}
			got := s.Wrong()
			if worst, _ := s.Worst(); worst != tt.worst || s.Total() != total {
				t.Errorf("worst %d of %d, want %d of %d", worst, s.Total(), tt.worst, total)
			}
			if !slices.EqualFunc(got, tt.want, strings.Contains) {
				t.Errorf("found %q, want %q", got, tt.want)
			}
		})
	}
}
