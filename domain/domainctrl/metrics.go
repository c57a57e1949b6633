// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/internal/measure"
)

// Metrics are those of a node's migrations, to be registered with the program's registry,
// such as Registry of controller-runtime's package metrics. Each series has the labels
// namespace and name, of the VMI, and node, and exists while this node is the source of the
// VMI's migration and has observed its progress. The first five are KubeVirt's:
//
//	kubevirt_vmi_migration_data_bytes_total             counter: bytes to transfer
//	kubevirt_vmi_migration_data_processed_bytes         gauge: bytes transferred
//	kubevirt_vmi_migration_data_remaining_bytes         gauge: bytes remaining
//	kubevirt_vmi_migration_dirty_memory_rate_bytes      gauge: bytes of memory dirtied per second
//	kubevirt_vmi_migration_memory_transfer_rate_bytes   gauge: bytes of memory transferred per second
//	virtloom_vmi_migration_downtime_seconds             gauge: expected downtime at the switchover
//	virtloom_vmi_migration_iterations                   gauge: passes over the memory
//	virtloom_vmi_migration_throttle_percent             gauge: throttling of the guest (auto-converge)
//
// The number of series is bounded by that of concurrent outbound migrations; a finished
// migration has none. It is safe for concurrent use. [Reconciler.Metrics] makes one.
type Metrics struct {
	r   *Reconciler
	set measure.Set
}

var _ prometheus.Collector = (*Metrics)(nil)

// Metrics returns the metrics of the migrations from this node. NodeName must have been set.
func (r *Reconciler) Metrics() *Metrics {
	m := &Metrics{r: r}
	family := func(name, help string) measure.Family {
		return measure.Family{
			Name: name, Help: help, Labels: []string{"namespace", "name"}, Const: prometheus.Labels{"node": r.NodeName},
			Bound: "1 for each VMI that is on its way from this node",
		}
	}
	gauge := func(name, help string, of func(domain.Progress) float64) {
		m.set.ReadGauge(family(name, help), m.each(of))
	}
	m.set.ReadCounter(family("kubevirt_vmi_migration_data_bytes_total", "Bytes that the migration of the VMI has to carry."),
		m.each(func(p domain.Progress) float64 { return float64(p.Total) }))
	gauge("kubevirt_vmi_migration_data_processed_bytes", "Bytes that the migration of the VMI has carried.",
		func(p domain.Progress) float64 { return float64(p.Processed) })
	gauge("kubevirt_vmi_migration_data_remaining_bytes", "Bytes that the migration of the VMI has still to carry.",
		func(p domain.Progress) float64 { return float64(p.Remaining) })
	gauge("kubevirt_vmi_migration_dirty_memory_rate_bytes", "Bytes of memory that the guest rewrites in a second.",
		func(p domain.Progress) float64 { return float64(p.DirtyBytesPerSecond) })
	gauge("kubevirt_vmi_migration_memory_transfer_rate_bytes", "Bytes of memory that the migration carries in a second.",
		func(p domain.Progress) float64 { return float64(p.BytesPerSecond) })
	gauge("virtloom_vmi_migration_downtime_seconds", "Expected standstill of the domain at the switch.",
		func(p domain.Progress) float64 { return p.Downtime.Seconds() })
	gauge("virtloom_vmi_migration_iterations", "Passes of the migration over the guest's memory.",
		func(p domain.Progress) float64 { return float64(p.Iteration) })
	gauge("virtloom_vmi_migration_throttle_percent", "By how many percent the guest is slowed down for its migration.",
		func(p domain.Progress) float64 { return float64(p.Throttle) })
	return m
}

// each reads a value of every migration. Before the reconciler is set up there are none.
func (m *Metrics) each(of func(domain.Progress) float64) func(measure.Emit) {
	return func(emit measure.Emit) {
		if m.r.migrations == nil {
			return
		}
		for key, p := range m.r.migrations.progresses() {
			emit(of(p), key.Namespace, key.Name)
		}
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) { m.set.Describe(ch) }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) { m.set.Collect(ch) }

// Families describes the metrics, for documentation.
func (m *Metrics) Families() []measure.Family { return m.set.Families() }
