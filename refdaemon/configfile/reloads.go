// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Reloads tell how the last look at a changed file went. They are a collector of Prometheus:
//
//	virtloom_config_last_reload_successful                 1 if the file as it is now is sound and in force, else 0
//	virtloom_config_last_reload_success_timestamp_seconds  when a file was last found sound and put into force
//	virtloom_config_restart_required                       how many fields differ that take effect at the next start
//
// The zero value is not usable; nil tells nothing.
type Reloads struct {
	good, at, restart prometheus.Gauge
}

// NewReloads returns metrics to be registered.
func NewReloads() *Reloads {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "virtloom", Subsystem: "config", Name: name, Help: help})
	}
	return &Reloads{
		good:    gauge("last_reload_successful", "Whether the configuration file as it is now is sound and in force."),
		at:      gauge("last_reload_success_timestamp_seconds", "When a configuration file was last found sound and put into force."),
		restart: gauge("restart_required", "How many fields of the configuration file differ that take effect at the next start."),
	}
}

// Describe implements prometheus.Collector.
func (m *Reloads) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *Reloads) Collect(ch chan<- prometheus.Metric) {
	for _, g := range []prometheus.Gauge{m.good, m.at, m.restart} {
		g.Collect(ch)
	}
}

func (m *Reloads) succeeded(now time.Time, restart int) {
	if m == nil {
		return
	}
	m.good.Set(1)
	m.at.Set(float64(now.UnixMilli()) / 1000)
	m.restart.Set(float64(restart))
}

func (m *Reloads) failed() {
	if m != nil {
		m.good.Set(0)
	}
}
