// SPDX-License-Identifier: Apache-2.0

package metricsdoc_test

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	_ "sigs.k8s.io/controller-runtime/pkg/controller" // has metrics of its own

	"github.com/virtloom/virtloom/internal/measure"
	"github.com/virtloom/virtloom/internal/metricsdoc"
)

var update = flag.Bool("update", false, "rewrite docs/metrics.md")

const table = "../../docs/metrics.md"

func TestTable_UpToDate(t *testing.T) {
	want := metricsdoc.Markdown()
	if *update {
		if err := os.WriteFile(table, []byte(want), 0o644); err != nil { //nolint:gosec // it is documentation
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/metrics.md is not what the metrics are; run: go test ./internal/metricsdoc -update (-want +got):\n%s", diff)
	}
}

// own are all families of our own.
func own() []measure.Family {
	var out []measure.Family
	for _, s := range metricsdoc.All() {
		out = append(out, s.Families...)
	}
	return out
}

func TestMetrics_Names(t *testing.T) {
	ours := regexp.MustCompile(`^(kubevirt|virtloom)_[a-z][a-z0-9_]*[a-z0-9]$`)
	seen := map[string]bool{}
	for _, f := range own() {
		if !ours.MatchString(f.Name) {
			t.Errorf("%s has no name of ours", f.Name)
		}
		if seen[f.Name] {
			t.Errorf("%s is declared twice", f.Name)
		}
		seen[f.Name] = true
		if total := strings.HasSuffix(f.Name, "_total"); total != (f.Kind == measure.Counter) {
			t.Errorf("%s is a %s", f.Name, f.Kind)
		}
		if f.Kind == measure.Histogram && (!strings.HasSuffix(f.Name, "_seconds") || len(f.Buckets) == 0 || !slices.IsSorted(f.Buckets)) {
			t.Errorf("%s is a histogram without a unit or classic buckets", f.Name)
		}
	}
}

// naming are labels that may take any value.
var naming = []string{"name", "namespace", "vmi", "vmim", "migration_name"}

func TestMetrics_DescribedAndBounded(t *testing.T) {
	for _, f := range own() {
		if !strings.HasSuffix(f.Help, ".") || strings.ContainsAny(f.Help, "\n") {
			t.Errorf("%s: help %q is not a sentence", f.Name, f.Help)
		}
		if f.Bound == "" {
			t.Errorf("%s does not say how many series it has", f.Name)
		}
		named := slices.ContainsFunc(f.AllLabels(), func(l string) bool { return slices.Contains(naming, l) })
		if named && !strings.HasPrefix(f.Name, "kubevirt_") && !strings.HasPrefix(f.Name, "virtloom_vmi_migration_") {
			t.Errorf("%s names an object, and is not one of KubeVirt's nor of a node's migrations", f.Name)
		}
		for _, l := range f.AllLabels() {
			if l == "uid" || l == "message" || l == "le" {
				t.Errorf("%s has the label %s", f.Name, l)
			}
		}
	}
}

func TestMetrics_OfLibraries(t *testing.T) {
	for _, f := range metricsdoc.Libraries().Families {
		err := metrics.Registry.Register(prometheus.NewGauge(prometheus.GaugeOpts{Name: f.Name, Help: "Is there one of this name?"}))
		if err == nil {
			t.Errorf("no library has %s", f.Name)
		}
	}
}
