// SPDX-License-Identifier: Apache-2.0

// Package metricsdoc lists all metrics of virtloom and renders them as docs/metrics.md. Its tests
// keep the file up to date, and the dashboards and alerts consistent with it:
//
//	go test ./internal/metricsdoc -update
package metricsdoc

import (
	"fmt"
	"strings"

	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/internal/measure"
	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/refdaemon/configfile"
	"github.com/virtloom/virtloom/refdaemon/health"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// Source is the metrics of one package.
type Source struct {
	// Title names their subject, and Process the process that has them.
	Title, Process string
	// Package is the package that defines them; empty for those of libraries.
	Package string
	// Families are the metrics.
	Families []measure.Family
}

// All returns the metrics of all packages.
func All() []Source {
	return []Source{
		{Title: "VMIs", Process: "refdaemon controller", Package: "vmi/vmictrl", Families: vmictrl.NewMetrics().Families()},
		{Title: "Migrations and their slots", Process: "refdaemon controller", Package: "migration/migrationctrl", Families: migrationctrl.NewMetrics().Families()},
		{Title: "Own writes", Process: "refdaemon controller", Package: "expectations/expectationsctrl", Families: expectationsctrl.NewMetrics("").Families()},
		{Title: "Migrations under way", Process: "refdaemon node", Package: "domain/domainctrl", Families: (&domainctrl.Reconciler{}).Metrics().Families()},
		{Title: "The hypervisor of a node", Process: "refdaemon node", Package: "refdaemon/health", Families: (&health.Pulse{}).Metrics().Families()},
		{Title: "The configuration file", Process: "refdaemon controller and node", Package: "refdaemon/configfile", Families: configfile.NewReloads().Families()},
	}
}

// Libraries returns the metrics of the libraries that dashboards and alerts use. There are
// more; tests ensure that these exist.
func Libraries() Source {
	family := func(name string, kind measure.Kind, help string, labels ...string) measure.Family {
		return measure.Family{Name: name, Kind: kind, Help: help, Labels: labels}
	}
	return Source{Title: "Libraries", Process: "both", Families: []measure.Family{
		family("workqueue_depth", measure.Gauge, "Objects that wait for a worker.", "name", "controller", "priority"),
		family("workqueue_queue_duration_seconds", measure.Histogram, "Time for which objects wait for a worker.", "name", "controller"),
		family("workqueue_longest_running_processor_seconds", measure.Gauge, "Duration of the oldest reconcile under way; `/healthz` checks it.", "name", "controller"),
		family("controller_runtime_reconcile_errors_total", measure.Counter, "Failed reconciles.", "controller"),
		family("controller_runtime_reconcile_time_seconds", measure.Histogram, "Duration of reconciles.", "controller"),
		family("rest_client_requests_total", measure.Counter, "Requests to the API server by their status.", "code", "method", "host"),
		family("leader_election_master_status", measure.Gauge, "Whether this replica leads.", "name"),
		family("process_cpu_seconds_total", measure.Counter, "CPU time of the process."),
		family("process_resident_memory_bytes", measure.Gauge, "Resident memory of the process."),
		family("go_goroutines", measure.Gauge, "Goroutines of the process."),
	}}
}

const head = `<!-- Made by: go test ./internal/metricsdoc -update -->
# Metrics

All metrics of virtloom. Those whose names begin with ` + "`kubevirt_`" + ` have the meaning of KubeVirt's
metrics, so that its dashboards keep working; the others are virtloom's own. Histograms are native
for a server that requests those (Prometheus: ` + "`scrape_native_histograms`" + `), and have classic
buckets otherwise. The dashboard and the alerts use classic buckets: a server that
scrapes native ones also needs ` + "`always_scrape_classic_histograms`" + `.

The last column is the maximum number of series of one process. No label holds a UID or arbitrary
user text: only a limited number of the reasons that other programs write have their own value,
the others are ` + "`Other`" + `. Series that name a VMI or a migration are KubeVirt's, and
exist only as long as that object.

Each replica of the controller counts its own work; only the leader reports VMIs, migrations, queue
and slots, so that a sum over all replicas is correct.

`

// Markdown renders the table.
func Markdown() string {
	var b strings.Builder
	b.WriteString(head)
	for _, s := range All() {
		fmt.Fprintf(&b, "## %s\n\n`%s`, package `%s`.\n\n", s.Title, s.Process, s.Package)
		b.WriteString("| Name | Type | Labels | Meaning | At most |\n|---|---|---|---|---|\n")
		for _, f := range s.Families {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", f.Name, f.Kind, labels(f), escape(f.Help), escape(f.Bound))
		}
		b.WriteString("\n")
	}
	b.WriteString("## Libraries\n\nMetrics of controller-runtime, client-go and Go that the dashboard, the alerts and `/healthz` use:\n\n")
	b.WriteString("| Name | Type | Labels | Meaning |\n|---|---|---|---|\n")
	for _, f := range Libraries().Families {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, f.Kind, labels(f), escape(f.Help))
	}
	return b.String()
}

func labels(f measure.Family) string {
	var out []string
	for _, l := range f.AllLabels() {
		out = append(out, "`"+l+"`")
	}
	return strings.Join(out, ", ")
}

func escape(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
