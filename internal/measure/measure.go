// SPDX-License-Identifier: Apache-2.0

// Package measure declares metrics as data, so that exposed and documented metrics have one
// source. A [Set] is a prometheus.Collector of the families declared with it; docs/metrics.md is
// generated from Families of all sets.
//
// Every family states its maximum number of series: the values of a label come from a fixed
// list, from the names of nodes, or through [Limited].
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

// Kinds of metrics.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Family describes a metric.
type Family struct {
	// Name is the full name.
	Name string
	// Kind is set by the declaring method.
	Kind Kind
	// Help describes the value, in one sentence.
	Help string
	// Bound describes the maximum number of series.
	Bound string
	// Labels are the variable labels, Const the constant ones.
	Labels []string
	Const  prometheus.Labels
	// Buckets are the classic buckets of a histogram.
	Buckets []float64
}

// AllLabels returns the names of all labels, the constant ones first.
func (f Family) AllLabels() []string {
	return append(slices.Sorted(maps.Keys(f.Const)), f.Labels...)
}

// Emit emits one series.
type Emit func(value float64, labels ...string)

// Set is a collection of families. Declare all of them before registering it; afterwards it is
// safe for concurrent use. The zero value is empty.
type Set struct {
	families []Family
	vectors  []prometheus.Collector
	readings []reading
}

var _ prometheus.Collector = (*Set)(nil)

// reading is a family whose values are read at collection time.
type reading struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(Emit)
}

// Families returns the declared families, in order of declaration.
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

// Parameters of native histograms: each bucket is at most a tenth wider than the previous one,
// and the resolution is reduced beyond nativeBuckets.
const (
	nativeFactor  = 1.1
	nativeBuckets = 100
	nativeReset   = time.Hour
)

// Histogram declares a histogram: a native one for servers that request native histograms, with
// classic buckets for all others.
func (s *Set) Histogram(f Family) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: f.Name, Help: f.Help, ConstLabels: f.Const, Buckets: f.Buckets,
		NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: nativeBuckets,
		NativeHistogramMinResetDuration: nativeReset,
	}, f.Labels)
	s.declare(f, Histogram, v)
	return v
}

// ReadGauge declares a gauge whose series are read at every collection.
func (s *Set) ReadGauge(f Family, read func(Emit)) { s.read(f, Gauge, read) }

// ReadCounter declares a counter whose series are read at every collection.
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

// Describe implements prometheus.Collector.
func (s *Set) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range s.vectors {
		v.Describe(ch)
	}
	for _, r := range s.readings {
		ch <- r.desc
	}
}

// Collect implements prometheus.Collector. A series with labels that are not UTF-8 is emitted
// as an invalid metric and does not affect other series.
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

// Lower returns the label value of a phase as KubeVirt spells it; an empty phase, of an object
// that was not reconciled yet, is "unset".
func Lower(phase string) string {
	if phase == "" {
		return "unset"
	}
	return strings.ToLower(phase)
}
