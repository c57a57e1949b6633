// SPDX-License-Identifier: Apache-2.0

// Package measure declares metrics as data, so that what is exposed and what is
// documented have one source. A [Set] is a prometheus.Collector of families declared
// with it; docs/metrics.md is made from Families of all sets.
//
// Every family says how many series it can have at most: a label takes its values from
// a list of this program's own, from the names of nodes, or through [Limited].
package measure

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Kind is the type of a metric.
type Kind string

// The kinds of metrics.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Family describes a metric.
type Family struct {
	// Name is the whole name.
	Name string
	// Kind is set by how the family is declared.
	Kind Kind
	// Help says what the number means, in one sentence.
	Help string
	// Bound says how many series there can be.
	Bound string
	// Labels are the labels that vary, Const those that do not.
	Labels []string
	Const  prometheus.Labels
	// Buckets are the classic buckets of a histogram.
	Buckets []float64
}

// AllLabels are the names of all labels, those that do not vary first.
func (f Family) AllLabels() []string {
	return append(slices.Sorted(maps.Keys(f.Const)), f.Labels...)
}

// Emit hands one series over.
type Emit func(value float64, labels ...string)

// Set is a collection of families. Declare all before it is registered; then it is safe
// for concurrent use. The zero value is empty.
type Set struct {
	families []Family
	vectors  []prometheus.Collector
	readings []reading
}

var _ prometheus.Collector = (*Set)(nil)

// reading is a family whose numbers are asked for when they are collected.
type reading struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(Emit)
}

// Families returns what was declared, in that order.
func (s *Set) Families() []Family { return slices.Clone(s.families) }

// Gauge declares a gauge.
func (s *Set) Gauge(f Family) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: f.Name, Help: f.Help, ConstLabels: f.Const}, f.Labels)
	s.declare(f, Gauge, v)
	return v
}

// Counter declares a counter.
func (s *Set) Counter(f Family) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.Name, Help: f.Help, ConstLabels: f.Const}, f.Labels)
	s.declare(f, Counter, v)
	return v
}

// The shape of native histograms: each bucket is at most a tenth wider than the one
// before, and there are at most nativeBuckets of them before they get coarser.
const (
	nativeFactor  = 1.1
	nativeBuckets = 100
	nativeReset   = time.Hour
)

// Histogram declares a histogram, which is a native one for a server that asks for
// those, and has its classic buckets for one that does not.
func (s *Set) Histogram(f Family) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: f.Name, Help: f.Help, ConstLabels: f.Const, Buckets: f.Buckets,
		NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: nativeBuckets,
		NativeHistogramMinResetDuration: nativeReset,
	}, f.Labels)
	s.declare(f, Histogram, v)
	return v
}

// ReadGauge declares a gauge whose series are asked for at every collection.
func (s *Set) ReadGauge(f Family, read func(Emit)) { s.read(f, Gauge, read) }

// ReadCounter declares a counter whose series are asked for at every collection.
func (s *Set) ReadCounter(f Family, read func(Emit)) { s.read(f, Counter, read) }

func (s *Set) read(f Family, kind Kind, read func(Emit)) {
	f.Kind = kind
	value := prometheus.GaugeValue
	if kind == Counter {
		value = prometheus.CounterValue
	}
	s.families = append(s.families, f)
	s.readings = append(s.readings, reading{desc: prometheus.NewDesc(f.Name, f.Help, f.Labels, f.Const), kind: value, read: read})
}

func (s *Set) declare(f Family, kind Kind, v prometheus.Collector) {
	f.Kind = kind
	s.families, s.vectors = append(s.families, f), append(s.vectors, v)
}

// Describe is that of prometheus.Collector.
func (s *Set) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range s.vectors {
		v.Describe(ch)
	}
	for _, r := range s.readings {
		ch <- r.desc
	}
}

// Collect is that of prometheus.Collector. A series with labels that are no UTF-8 is
// reported as an error of its own and keeps no other from being collected.
func (s *Set) Collect(ch chan<- prometheus.Metric) {
	for _, v := range s.vectors {
		v.Collect(ch)
	}
	for _, r := range s.readings {
		r.read(func(value float64, labels ...string) {
			m, err := prometheus.NewConstMetric(r.desc, r.kind, value, labels...)
			if err != nil {
				m = prometheus.NewInvalidMetric(r.desc, err)
			}
			ch <- m
		})
	}
}

// Lower is how KubeVirt writes a phase as the value of a label; an empty one, of an
// object that nobody has looked at yet, is "unset".
func Lower(phase string) string {
	if phase == "" {
		return "unset"
	}
	return strings.ToLower(phase)
}
