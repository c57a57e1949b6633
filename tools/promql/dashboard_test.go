// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// schema is that of Grafana, see hack/dashboard-schema.sh.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile("testdata/dashboard.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func board(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile(root + "refdaemon/config/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d map[string]any
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDashboard_Schema(t *testing.T) {
	if err := schema(t).Validate(board(t)); err != nil {
		t.Errorf("%v", err)
	}
}

func TestSchema_UnknownFields(t *testing.T) {
	s := schema(t)
	panel := func(d map[string]any, kind string) map[string]any {
		for _, p := range d["panels"].([]any) {
			if p := p.(map[string]any); p["type"] == kind {
				return p
			}
		}
		t.Fatalf("the dashboard has no panel of type %s", kind)
		return nil
	}
	for name, tt := range map[string]struct {
		spoil func(map[string]any)
		names string // the field that the error names
	}{
		"a field of the dashboard": {func(d map[string]any) { d["colour"] = "red" }, "colour"},
		"a field of a panel":       {func(d map[string]any) { panel(d, "stat")["colour"] = "red" }, "colour"},
		"an option of a panel": {func(d map[string]any) {
			panel(d, "timeseries")["options"].(map[string]any)["tooltip"].(map[string]any)["mode"] = "loud"
		}, "mode"},
		"an option of another panel": {func(d map[string]any) {
			panel(d, "stat")["options"].(map[string]any)["legend"] = map[string]any{}
		}, "legend"},
		"a panel of another type": {func(d map[string]any) { panel(d, "stat")["type"] = "graph" }, "type"},
		"a number that is text":   {func(d map[string]any) { d["schemaVersion"] = "39" }, "schemaVersion"},
		"no expression":           {func(d map[string]any) { delete(panel(d, "stat")["targets"].([]any)[0].(map[string]any), "expr") }, "expr"},
	} {
		t.Run(name, func(t *testing.T) {
			d := board(t)
			tt.spoil(d)
			if err := s.Validate(d); err == nil || !strings.Contains(err.Error(), tt.names) {
				t.Errorf("error %v, want one about %s", err, tt.names)
			}
		})
	}
}
