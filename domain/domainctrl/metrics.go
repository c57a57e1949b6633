// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/virtloom/virtloom/domain"
)

// Metrics are those of a node's migrations, to be registered wherever the program's
// metrics are, such as Registry of controller-runtime's package metrics. Each series has
// the labels namespace and name, of the guest, and node, and is there while this node is
// the source of the guest's migration and has seen how far that has come. The first five
// are KubeVirt's:
//
//	kubevirt_vmi_migration_data_bytes_total             counter: bytes that there are to carry
//	kubevirt_vmi_migration_data_processed_bytes         gauge: bytes carried
//	kubevirt_vmi_migration_data_remaining_bytes         gauge: bytes left
//	kubevirt_vmi_migration_dirty_memory_rate_bytes      gauge: bytes of memory the guest rewrites in a second
//	kubevirt_vmi_migration_memory_transfer_rate_bytes   gauge: bytes of memory carried in a second
//	virtloom_vmi_migration_downtime_seconds             gauge: expected standstill at the switch
//	virtloom_vmi_migration_iterations                   gauge: passes over the memory
//	virtloom_vmi_migration_throttle_percent             gauge: by how much the guest is slowed down (auto-converge)
//
// It is safe for concurrent use. [Reconciler.Metrics] makes one.
type Metrics struct {
	r      *Reconciler
	series []series
}

var _ prometheus.Collector = (*Metrics)(nil)

// series is one number of a migration.
type series struct {
	*prometheus.Desc
	kind prometheus.ValueType
	of   func(domain.Progress) float64
}

// Metrics returns the metrics of the migrations from this node. NodeName must have been
// set.
func (r *Reconciler) Metrics() *Metrics {
	m := &Metrics{r: r}
	add := func(name, help string, kind prometheus.ValueType, of func(domain.Progress) float64) {
		desc := prometheus.NewDesc(name, help, []string{"namespace", "name"}, prometheus.Labels{"node": r.NodeName})
		m.series = append(m.series, series{Desc: desc, kind: kind, of: of})
	}
	add("kubevirt_vmi_migration_data_bytes_total", "Bytes that the migration of the guest has to carry.",
		prometheus.CounterValue, func(p domain.Progress) float64 { return float64(p.Total) })
	add("kubevirt_vmi_migration_data_processed_bytes", "Bytes that the migration of the guest has carried.",
		prometheus.GaugeValue, func(p domain.Progress) float64 { return float64(p.Processed) })
	add("kubevirt_vmi_migration_data_remaining_bytes", "Bytes that the migration of the guest has still to carry.",
		prometheus.GaugeValue, func(p domain.Progress) float64 { return float64(p.Remaining) })
	add("kubevirt_vmi_migration_dirty_memory_rate_bytes", "Bytes of memory that the guest rewrites in a second.",
		prometheus.GaugeValue, func(p domain.Progress) float64 { return float64(p.DirtyBytesPerSecond) })
	add("kubevirt_vmi_migration_memory_transfer_rate_bytes", "Bytes of memory that the migration carries in a second.",
		prometheus.GaugeValue, func(p domain.Progress) float64 { return float64(p.BytesPerSecond) })
	add("virtloom_vmi_migration_downtime_seconds", "Expected standstill of the guest at the switch.",
		prometheus.GaugeValue, func(p domain.Progress) float64 { return p.Downtime.Seconds() })
	add("virtloom_vmi_migration_iterations", "Passes of the migration over the guest's memory.",
		prometheus.GaugeValue, func(p domain.Progress) float64 { return float64(p.Iteration) })
	add("virtloom_vmi_migration_throttle_percent", "By how many percent the guest is slowed down for its migration.",
		prometheus.GaugeValue, func(p domain.Progress) float64 { return float64(p.Throttle) })
	return m
}

// Describe is that of prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, s := range m.series {
		ch <- s.Desc
	}
}

// Collect is that of prometheus.Collector. Before the reconciler is set up there is
// nothing to collect.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	if m.r.moves == nil {
		return
	}
	for key, p := range m.r.moves.progresses() {
		for _, s := range m.series {
			ch <- prometheus.MustNewConstMetric(s.Desc, s.kind, s.of(p), key.Namespace, key.Name)
		}
	}
}
