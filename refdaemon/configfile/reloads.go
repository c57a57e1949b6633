// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/virtloom/virtloom/internal/measure"
)

// Reloads tell how the last look at a changed file went. They are a collector of Prometheus:
//
//	virtloom_config_last_reload_successful                 1 if the file as it is now is sound and in force, else 0
//	virtloom_config_last_reload_success_timestamp_seconds  when a file was last found sound and put into force
//	virtloom_config_restart_required                       how many fields differ that take effect at the next start
//
// The zero value is not usable; nil tells nothing.
type Reloads struct {
	measure.Set
	good, at, restart *prometheus.GaugeVec
}

// NewReloads returns metrics to be registered.
func NewReloads() *Reloads {
	m := &Reloads{}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return m.Gauge(measure.Family{Name: "virtloom_config_" + name, Help: help, Bound: "1"})
	}
	m.good = gauge("last_reload_successful", "Whether the configuration file as it is now is sound and in force.")
	m.at = gauge("last_reload_success_timestamp_seconds", "When a configuration file was last found sound and put into force, in seconds since 1970.")
	m.restart = gauge("restart_required", "How many fields of the configuration file differ that take effect at the next start.")
	return m
}

func (m *Reloads) succeeded(now time.Time, restart int) {
	if m == nil {
		return
	}
	m.good.WithLabelValues().Set(1)
	m.at.WithLabelValues().Set(float64(now.UnixMilli()) / 1000)
	m.restart.WithLabelValues().Set(float64(restart))
}

func (m *Reloads) failed() {
	if m != nil {
		m.good.WithLabelValues().Set(0)
	}
}
