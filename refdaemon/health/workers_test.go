// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/virtloom/virtloom/refdaemon/health"
)

// passes are those under way, as reported by controller-runtime: seconds by controller.
func passes(all map[string]float64) *prometheus.GaugeVec {
	v := gauge("How many seconds has the longest running processor for workqueue been running.", "name", "controller")
	for controller, seconds := range all {
		v.WithLabelValues(controller, controller).Set(seconds)
	}
	return v
}

func gauge(help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "workqueue_longest_running_processor_seconds", Help: help}, labels)
}

// broken is a metric that cannot be gathered.
func broken() prometheus.Collector {
	d := prometheus.NewDesc("broken", "It is broken.", nil, nil)
	return collector(func(to chan<- prometheus.Metric) {
		to <- prometheus.NewInvalidMetric(d, errors.New("cannot be measured"))
	})
}

// collector is a function that is a prometheus.Collector.
type collector func(chan<- prometheus.Metric)

func (collector) Describe(chan<- *prometheus.Desc)      {}
func (c collector) Collect(to chan<- prometheus.Metric) { c(to) }

func TestWorkers(t *testing.T) {
	other := prometheus.NewGauge(prometheus.GaugeOpts{Name: "workqueue_unfinished_work_seconds", Help: "Others."})
	other.Set(1e6)
	for name, tt := range map[string]struct {
		metrics []prometheus.Collector
		within  time.Duration
		want    []string // what the error says; none if empty
		logged  int
	}{
		"idle":                             {metrics: []prometheus.Collector{passes(map[string]float64{"vmi": 0})}},
		"slow":                             {metrics: []prometheus.Collector{passes(map[string]float64{"vmi": 600})}},
		"stuck":                            {metrics: []prometheus.Collector{passes(map[string]float64{"vmi": 601})}, want: []string{"controller vmi has not returned for 10m1s"}, logged: 2},
		"stuck, by another bound":          {metrics: []prometheus.Collector{passes(map[string]float64{"vmi": 5})}, within: 4 * time.Second, want: []string{"vmi", "5s"}, logged: 2},
		"some are stuck":                   {metrics: []prometheus.Collector{passes(map[string]float64{"vmi": 700, "migration": 3600, "evacuation": 1})}, want: []string{"migration has not returned for 1h", "vmi has not returned for 11m40s"}, logged: 2},
		"other metrics are present":        {metrics: []prometheus.Collector{other, passes(map[string]float64{"vmi": 1})}},
		"no controller yet":                {metrics: []prometheus.Collector{passes(nil)}},
		"no such metric":                   {metrics: []prometheus.Collector{other}},
		"it cannot be gathered":            {metrics: []prometheus.Collector{broken()}, logged: 1},
		"others cannot be gathered":        {metrics: []prometheus.Collector{broken(), passes(map[string]float64{"vmi": 1})}, logged: 1},
		"stuck, others cannot be gathered": {metrics: []prometheus.Collector{broken(), passes(map[string]float64{"vmi": 601})}, want: []string{"vmi"}, logged: 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := prometheus.NewRegistry()
			r.MustRegister(tt.metrics...)
			var logged []string
			w := &health.Workers{Passes: r, Within: tt.within, Log: funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{})}
			for range 2 {
				err := w.Alive(nil)
				if (err == nil) != (tt.want == nil) {
					t.Fatalf("error %v, want %q", err, tt.want)
				}
				for _, want := range tt.want {
					says(t, name, err, want)
				}
				if err != nil && strings.Contains(err.Error(), "evacuation") {
					t.Errorf("error %v names one that is not stuck", err)
				}
			}
			if len(logged) != tt.logged {
				t.Errorf("the log has %d lines, want %d: %q", len(logged), tt.logged, logged)
			}
		})
	}
}

func TestPasses_GathersOneMetric(t *testing.T) {
	for name, tt := range map[string]struct {
		have []prometheus.Collector
		want string
	}{
		"measured":                  {have: []prometheus.Collector{passes(map[string]float64{"vmi": 601}), broken()}},
		"not measured":              {want: "is not registered"},
		"with another meaning":      {have: []prometheus.Collector{gauge("Something else.", "name", "controller")}, want: "has another type"},
		"not labeled by controller": {have: []prometheus.Collector{gauge("How many seconds has the longest running processor for workqueue been running.", "name")}, want: "has another type"},
		"not measured, but others":  {have: []prometheus.Collector{broken()}, want: "is not registered"},
	} {
		t.Run(name, func(t *testing.T) {
			r := prometheus.NewRegistry()
			r.MustRegister(tt.have...)
			for range 2 { // the first leaves nothing behind
				g, err := health.Passes(r)
				says(t, name, err, tt.want)
				if err != nil {
					continue
				}
				w := &health.Workers{Passes: g}
				says(t, name, w.Alive(nil), "vmi")
				if all, err := g.Gather(); err != nil || len(all) != 1 {
					t.Errorf("error %v, families %v, want one", err, all)
				}
			}
		})
	}
}

// The queue of controllers reports a reconcile under way, in the registry that the daemons serve.
func TestWorkers_StuckReconcile(t *testing.T) {
	g, err := health.Passes(metrics.Registry)
	if err != nil {
		t.Fatal(err)
	}
	q := priorityqueue.New[string]("stuck-in-a-test")
	defer q.ShutDown()
	w := &health.Workers{Passes: g, Within: time.Nanosecond}
	says(t, "idle", w.Alive(nil), "")
	q.Add("guest")
	item, _ := q.Get()
	until := func(what string, stuck bool) {
		t.Helper()
		err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			err := w.Alive(nil)
			return (err != nil && strings.Contains(err.Error(), "controller stuck-in-a-test")) == stuck, nil
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	until("under way", true)
	q.Done(item)
	until("returned", false)
}
