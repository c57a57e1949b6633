// SPDX-License-Identifier: Apache-2.0

// Package promql holds the tests that Prometheus itself understands every expression of
// refdaemon/config/monitoring, that they select by labels which the metrics have, and that the
// dashboard is one by Grafana's schema.
package promql
