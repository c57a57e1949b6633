// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

const root = "../../"

// row finds the metrics in the table: name, type and labels.
var row = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (counter|gauge|histogram) \\| ([^|]*) \\|")

// target are the labels that a scrape adds.
var target = []string{"job", "instance", "pod"}

// documented are the labels of every series in docs/metrics.md.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(root + "docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{"up": target} // Prometheus's own
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		has := append([]string{}, target...)
		for _, l := range strings.Split(m[3], ",") {
			has = append(has, strings.Trim(l, " `"))
		}
		if m[2] != "histogram" {
			out[m[1]] = has
			continue
		}
		out[m[1]+"_bucket"], out[m[1]+"_sum"], out[m[1]+"_count"] = append(has, "le"), has, has
	}
	if len(out) == 1 {
		t.Fatal("docs/metrics.md has no table that this test can read")
	}
	return out
}

// expressions are those of alerts and panels, by where they are.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	read := func(name string, into any, decode func([]byte, any) error) {
		text, err := os.ReadFile(root + "refdaemon/config/monitoring/" + name)
		if err == nil {
			err = decode(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	read("alerts.yaml", &rules, func(b []byte, v any) error { return yaml.Unmarshal(b, v) })
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr string }
		}
	}
	read("dashboard.json", &board, json.Unmarshal)
	out := map[string]string{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			out["alert "+r.Alert] = r.Expr
		}
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			// Grafana puts a duration in the place of its variable, and node names.
			out["panel "+p.Title+" "+target.RefID] = strings.NewReplacer("$__rate_interval", "5m", "$node", ".*").Replace(target.Expr)
		}
	}
	return out
}

func TestExpressions_Parse(t *testing.T) {
	known := documented(t)
	for where, text := range expressions(t) {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
		if err != nil {
			t.Errorf("%s: %v\n%s", where, err, text)
			continue
		}
		parser.Inspect(expr, func(n parser.Node, path []parser.Node) error {
			switch n := n.(type) {
			case *parser.VectorSelector:
				check(t, where, known, n)
			case *parser.AggregateExpr:
				grouped(t, where, known, n)
			}
			return nil
		})
	}
}

// check finds series and labels that there are not.
func check(t *testing.T, where string, known map[string][]string, s *parser.VectorSelector) {
	has, there := known[s.Name]
	if !there {
		t.Errorf("%s: there is no series %s", where, s.Name)
		return
	}
	for _, m := range s.LabelMatchers {
		if m.Name != labels.MetricName && !slices.Contains(has, m.Name) {
			t.Errorf("%s: %s has no label %s", where, s.Name, m.Name)
		}
	}
}

// grouped finds labels to group by that no series within has.
func grouped(t *testing.T, where string, known map[string][]string, a *parser.AggregateExpr) {
	var has []string
	parser.Inspect(a.Expr, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			has = append(has, known[s.Name]...)
		}
		return nil
	})
	for _, l := range a.Grouping {
		if !slices.Contains(has, l) {
			t.Errorf("%s: %s groups by %s, which nothing in it has", where, a, l)
		}
	}
}
