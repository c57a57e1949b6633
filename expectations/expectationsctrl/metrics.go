// SPDX-License-Identifier: Apache-2.0

package expectationsctrl

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/virtloom/virtloom/expectations"
)

// LiveReads is an optional part of Options.Observer: one that has it is told of the gate's live reads as well.
type LiveReads interface {
	// LiveRead tells that an object was asked for at the API server, found or not, or with an error. It must not block
	// and must be safe for concurrent use.
	LiveRead(ref expectations.Ref, found bool, err error)
}

// Metrics counts what becomes of the writes of one controller. It is an expectations.Observer for Options.Observer and a
// prometheus.Collector, to be registered wherever the program's metrics are, such as Registry of controller-runtime's
// package metrics. All series have the label controller.
//
//	virtloom_expectations_outstanding{verb}               gauge: writes that the cache does not show yet
//	virtloom_expectations_settle_duration_seconds{verb}   histogram: from noting a write to the evidence of it
//	virtloom_expectations_settled_total{evidence}         writes by what settled them
//	virtloom_expectations_expired_total{problem}          writes that needed a live read, and why
//	virtloom_expectations_live_reads_total{result}        live reads that found the object, did not, or failed
//
// A rise of expired_total{problem="overdue"} says that events get lost, or that the controller writes what its cache
// leaves out. It is safe for concurrent use. Create it with NewMetrics.
type Metrics struct {
	outstanding *prometheus.GaugeVec
	latency     *prometheus.HistogramVec
	settled     *prometheus.CounterVec
	expired     *prometheus.CounterVec
	liveReads   *prometheus.CounterVec
}

var (
	_ expectations.Observer = (*Metrics)(nil)
	_ prometheus.Collector  = (*Metrics)(nil)
	_ LiveReads             = (*Metrics)(nil)
)

// settleBuckets, in seconds, reach from a watch at its best to twice the default TTL.
var settleBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30, 60}

// NewMetrics returns the metrics of the controller of that name.
func NewMetrics(controller string) *Metrics {
	const namespace, subsystem = "virtloom", "expectations"
	of := prometheus.Labels{"controller": controller}
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, ConstLabels: of,
		}, []string{label})
	}
	return &Metrics{
		outstanding: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "outstanding", ConstLabels: of,
			Help: "Writes that the cache does not show yet.",
		}, []string{"verb"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "settle_duration_seconds", ConstLabels: of,
			Help: "Time from noting a write to the evidence of it.", Buckets: settleBuckets,
		}, []string{"verb"}),
		settled:   counter("settled_total", "Writes by the evidence that settled them.", "evidence"),
		expired:   counter("expired_total", "Writes that needed a live read, by the reason.", "problem"),
		liveReads: counter("live_reads_total", "Live reads by their result: found, absent, error.", "result"),
	}
}

// Noted counts a write as outstanding.
func (m *Metrics) Noted(w expectations.Write) { m.outstanding.WithLabelValues(string(w.Verb)).Inc() }

// Settled counts a write as settled, and how long it took.
func (m *Metrics) Settled(w expectations.Write, by expectations.Evidence, age time.Duration) {
	m.outstanding.WithLabelValues(string(w.Verb)).Dec()
	m.latency.WithLabelValues(string(w.Verb)).Observe(age.Seconds())
	m.settled.WithLabelValues(string(by)).Inc()
}

// Dropped counts a write as no longer outstanding.
func (m *Metrics) Dropped(w expectations.Write, _ expectations.DropReason) {
	m.outstanding.WithLabelValues(string(w.Verb)).Dec()
}

// Troubled counts a write that needs a live read.
func (m *Metrics) Troubled(_ expectations.Write, p expectations.Problem) {
	m.expired.WithLabelValues(string(p)).Inc()
}

// LiveRead counts a live read.
func (m *Metrics) LiveRead(_ expectations.Ref, found bool, err error) {
	result := "absent"
	switch {
	case err != nil:
		result = "error"
	case found:
		result = "found"
	}
	m.liveReads.WithLabelValues(result).Inc()
}

// Describe is that of prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(ch)
	}
}

// Collect is that of prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(ch)
	}
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.outstanding, m.latency, m.settled, m.expired, m.liveReads}
}
