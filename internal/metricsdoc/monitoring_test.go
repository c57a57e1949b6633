// SPDX-License-Identifier: Apache-2.0

package metricsdoc_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/internal/measure"
	"github.com/virtloom/virtloom/internal/metricsdoc"
)

const (
	monitoring = "../../refdaemon/config/monitoring/"
	runbooks   = "../../docs/runbooks.md"
	runbookURL = "https://github.com/virtloom/virtloom/blob/main/docs/runbooks.md#"
)

// rules is a rule file of Prometheus.
type rules struct {
	Groups []group `json:"groups"`
}

type group struct {
	Name  string `json:"name"`
	Rules []rule `json:"rules"`
}

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// prometheusRule is the object of the Prometheus Operator with the same rules.
type prometheusRule struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       rules          `json:"spec"`
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func readRules(t *testing.T) rules {
	t.Helper()
	var r rules
	if err := yaml.UnmarshalStrict(read(t, monitoring+"alerts.yaml"), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Groups) == 0 {
		t.Fatal("alerts.yaml has no groups")
	}
	return r
}

func alerts(t *testing.T) map[string]rule {
	t.Helper()
	out := map[string]rule{}
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			if _, twice := out[r.Alert]; twice {
				t.Errorf("there are two alerts %s", r.Alert)
			}
			out[r.Alert] = r
		}
	}
	return out
}

func TestRules_SameInOperator(t *testing.T) {
	want := prometheusRule{
		APIVersion: "monitoring.coreos.com/v1", Kind: "PrometheusRule", Spec: readRules(t),
		Metadata: map[string]any{"name": "virtloom", "labels": map[string]any{"app.kubernetes.io/part-of": "virtloom"}},
	}
	if *update {
		text, err := yaml.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		head := "# SPDX-License-Identifier: Apache-2.0\n# Made of alerts.yaml by: go test ./internal/metricsdoc -update\n"
		if err := os.WriteFile(monitoring+"prometheusrule.yaml", append([]byte(head), text...), 0o644); err != nil { //nolint:gosec // it is a manifest
			t.Fatal(err)
		}
	}
	var got prometheusRule
	if err := yaml.UnmarshalStrict(read(t, monitoring+"prometheusrule.yaml"), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("prometheusrule.yaml is not made of alerts.yaml; run: go test ./internal/metricsdoc -update (-want +got):\n%s", diff)
	}
}

// sections are those of the runbooks with their texts.
func sections(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, part := range strings.Split(string(read(t, runbooks)), "\n## ")[1:] {
		title, text, _ := strings.Cut(part, "\n")
		out[title] = text
	}
	return out
}

func TestAlerts_HaveRunbooks(t *testing.T) {
	has, all := sections(t), alerts(t)
	for name, r := range all {
		text, there := has[name]
		if !there {
			t.Errorf("docs/runbooks.md has no section %s", name)
		}
		for _, part := range []string{"**Symptom.**", "**What it means.**", "**How to look.**", "**What to do.**"} {
			if there && !strings.Contains(text, part) {
				t.Errorf("the section %s lacks %s", name, part)
			}
		}
		if got, want := r.Annotations["runbook_url"], runbookURL+strings.ToLower(name); got != want {
			t.Errorf("%s: runbook_url is %q, want %q", name, got, want)
		}
		if r.Annotations["summary"] == "" || !slices.Contains([]string{"info", "warning", "critical"}, r.Labels["severity"]) {
			t.Errorf("%s lacks a summary or a severity", name)
		}
	}
	for title := range has {
		if _, there := all[title]; !there {
			t.Errorf("there is no alert %s that docs/runbooks.md has a section for", title)
		}
	}
}

func TestRunbooks_Links(t *testing.T) {
	anchors := map[string]bool{}
	for title := range sections(t) {
		anchors[strings.ToLower(title)] = true
	}
	for _, m := range regexp.MustCompile(`\]\(#([^)]*)\)`).FindAllStringSubmatch(string(read(t, runbooks)), -1) {
		if !anchors[m[1]] {
			t.Errorf("a link leads to #%s, which is no section", m[1])
		}
	}
}

// dashboard is what is looked at of a Grafana dashboard.
type dashboard struct {
	Title, UID    string
	SchemaVersion int
	Panels        []panel
	Templating    struct{ List []variable }
}

type panel struct {
	ID         int
	Type       string
	Title      string
	Datasource struct{ UID string }
	GridPos    struct{ X, Y, W, H int }
	Targets    []struct{ RefID, Expr string }
}

type variable struct{ Name, Type, Query string }

// UnmarshalJSON takes a query that is text, or the text in one that is an object.
func (v *variable) UnmarshalJSON(text []byte) error {
	var raw struct {
		Name, Type string
		Query      json.RawMessage
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		return err
	}
	v.Name, v.Type = raw.Name, raw.Type
	if json.Unmarshal(raw.Query, &v.Query) == nil {
		return nil
	}
	var query struct{ Query string }
	err := json.Unmarshal(raw.Query, &query)
	v.Query = query.Query
	return err
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	if err := json.Unmarshal(read(t, monitoring+"dashboard.json"), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// oldestSchema is that of the first Grafana that knows all panels used, newestSchema the
// last of this format.
const oldestSchema, newestSchema = 36, 42

func TestDashboard_Parses(t *testing.T) {
	d := readDashboard(t)
	if d.Title == "" || d.UID == "" || d.SchemaVersion < oldestSchema || d.SchemaVersion > newestSchema {
		t.Errorf("title %q, uid %q, schemaVersion %d", d.Title, d.UID, d.SchemaVersion)
	}
	if !slices.ContainsFunc(d.Templating.List, func(v variable) bool {
		return v.Name == "datasource" && v.Type == "datasource" && v.Query == "prometheus"
	}) {
		t.Error("there is no variable for the datasource")
	}
	ids, cells := map[int]string{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if other, taken := ids[p.ID]; taken || p.ID <= 0 {
			t.Errorf("panels %q and %q have the id %d", p.Title, other, p.ID)
		}
		ids[p.ID] = p.Title
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, taken := cells[[2]int{x, y}]; taken || x > 23 {
					t.Fatalf("panel %q lies over %q, or outside", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 || !slices.Contains([]string{"stat", "timeseries"}, p.Type) {
			t.Errorf("panel %q of type %q has datasource %q and %d targets", p.Title, p.Type, p.Datasource.UID, len(p.Targets))
		}
	}
}

// expressions are all in PromQL, by where they are.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name, r := range alerts(t) {
		out["alert "+name] = r.Expr
	}
	d := readDashboard(t)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			out["panel "+p.Title+" "+target.RefID] = target.Expr
		}
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			out["variable "+v.Name] = v.Query
		}
	}
	return out
}

// metricName finds names of metrics: no other word has these prefixes. The one of Prometheus's own reports whether a
// target could be scraped.
var metricName = regexp.MustCompile(`\b(?:up\b|(?:kubevirt|virtloom|workqueue|controller_runtime|rest_client|leader_election|process|go)_[a-z0-9_]+)`)

func TestMetrics_UsedOnesExist(t *testing.T) {
	series := map[string]bool{"up": true}
	for _, s := range append(metricsdoc.All(), metricsdoc.Libraries()) {
		for _, f := range s.Families {
			series[f.Name] = true
			if f.Kind == measure.Histogram {
				delete(series, f.Name)
				series[f.Name+"_bucket"], series[f.Name+"_sum"], series[f.Name+"_count"] = true, true, true
			}
		}
	}
	for where, expr := range expressions(t) {
		names := metricName.FindAllString(expr, -1)
		if len(names) == 0 {
			t.Errorf("%s: no metric is in %q", where, expr)
		}
		for _, name := range names {
			if !series[name] {
				t.Errorf("%s: there is no series %s", where, name)
			}
		}
	}
}

func TestMetrics_AllShown(t *testing.T) {
	text := strings.Join(slices.Collect(maps.Values(expressions(t))), "\n")
	for _, f := range own() {
		if !strings.Contains(text, f.Name) && !notShown[f.Name] {
			t.Errorf("%s is in no panel and no alert", f.Name)
		}
	}
}

// notShown are metrics that are there for KubeVirt's dashboards, or to be asked for when
// something is looked into.
var notShown = map[string]bool{
	"kubevirt_vmi_phase_transition_time_seconds": true, "kubevirt_vmi_migration_failed": true,
	"kubevirt_vmi_migration_start_time_seconds": true, "kubevirt_vmi_migration_end_time_seconds": true,
	"kubevirt_vmi_migration_data_bytes_total": true, "kubevirt_vmi_migration_data_processed_bytes": true,
	"virtloom_expectations_settled_total": true, "virtloom_expectations_live_reads_total": true,
	"virtloom_vmi_migration_downtime_seconds": true,
}
