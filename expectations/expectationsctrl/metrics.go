// SPDX-License-Identifier: Apache-2.0

package expectationsctrl

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/internal/measure"
)

// LiveReads is an optional interface of Options.Observer: an observer that implements it also records the gate's live
// reads.
type LiveReads interface {
	// LiveRead reports a read of an object from the API server: found, not found, or failed. It must not block and must
	// be safe for concurrent use.
	LiveRead(ref expectations.Ref, found bool, err error)
}

// Metrics counts the writes of one controller and their evidence. It is an expectations.Observer for Options.Observer and a
// prometheus.Collector, to be registered wherever the program's metrics are, such as Registry of controller-runtime's
// package metrics. All series have the label controller.
//
//	virtloom_expectations_outstanding{verb}               gauge: writes that the cache does not show yet
//	virtloom_expectations_settle_duration_seconds{verb}   histogram: from noting a write to the evidence of it
//	virtloom_expectations_settled_total{evidence}         writes by what settled them
//	virtloom_expectations_expired_total{problem}          writes that needed a live read, and why
//	virtloom_expectations_live_reads_total{result}        live reads that found the object, did not, or failed
//
// A rise of expired_total{problem="overdue"} means that events are lost, or that the controller writes objects that its
// cache leaves out. All labels have few values, from lists of this module. It is safe for concurrent use. Create it with
// NewMetrics.
type Metrics struct {
	set         measure.Set
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

// settleBuckets, in seconds, range from the best latency of a watch to twice the default TTL.
var settleBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30, 60}

// NewMetrics returns the metrics of the named controller.
func NewMetrics(controller string) *Metrics {
	family := func(name, label, help, bound string) measure.Family {
		return measure.Family{
			Name: "virtloom_expectations_" + name, Labels: []string{label}, Help: help, Bound: bound + " for each controller",
			Const: prometheus.Labels{"controller": controller}, Buckets: settleBuckets,
		}
	}
	m := &Metrics{}
	m.outstanding = m.set.Gauge(family("outstanding", "verb", "Writes that the cache does not show yet.", "3 verbs"))
	m.latency = m.set.Histogram(family("settle_duration_seconds", "verb", "Time from noting a write to the evidence of it.", "3 verbs"))
	m.settled = m.set.Counter(family("settled_total", "evidence", "Writes by the evidence that settled them.", "6 kinds of evidence"))
	m.expired = m.set.Counter(family("expired_total", "problem", "Writes that needed a live read, by the reason.", "3 problems"))
	m.liveReads = m.set.Counter(family("live_reads_total", "result", "Live reads by their result: found, absent, error.", "3 results"))
	return m
}

// Noted counts a write as outstanding.
func (m *Metrics) Noted(w expectations.Write) { m.outstanding.WithLabelValues(string(w.Verb)).Inc() }

// Settled counts a write as settled, and observes its age.
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

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) { m.set.Describe(ch) }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) { m.set.Collect(ch) }

// Families describes the metrics, for documentation.
func (m *Metrics) Families() []measure.Family { return m.set.Families() }
