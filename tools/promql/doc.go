// SPDX-License-Identifier: Apache-2.0

// Package promql holds the test that Prometheus itself understands every expression of
// refdaemon/config/monitoring, and that they select by labels which the metrics have.
package promql
