// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/virtloom/virtloom/internal/measure"
)

// Reloads records the result of the last reload of a changed file. It is a Prometheus collector:
//
//	virtloom_config_last_reload_successful                 1 if the current file is valid and in force, else 0
//	virtloom_config_last_reload_success_timestamp_seconds  when a valid file was last put into force
//	virtloom_config_restart_required                       number of changed fields that take effect at the next start
//
// The zero value is not usable; nil records nothing.
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
	m.good = gauge("last_reload_successful", "Whether the current configuration file is valid and in force.")
	m.at = gauge("last_reload_success_timestamp_seconds", "Time at which a valid configuration file was last put into force, in seconds since 1970.")
	m.restart = gauge("restart_required", "Number of changed fields of the configuration file that take effect at the next start.")
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
