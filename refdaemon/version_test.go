// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestVersion_BuildInfo(t *testing.T) {
	for name, tt := range map[string]struct {
		info debug.BuildInfo
		want provenance
		text string
	}{
		"a release": {
			info: debug.BuildInfo{
				GoVersion: "go1.26.0", Main: debug.Module{Version: "v1.2.3"},
				Deps: []*debug.Module{{Path: "kubevirt.io/api", Version: "v1.9.0"}, {Path: "kubevirt.io/api/x", Version: "v0"}},
				Settings: []debug.BuildSetting{
					{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-01-01T00:00:00Z"}, {Key: "vcs.modified", Value: "false"}, {Key: "-tags", Value: "a,b"},
				},
			},
			want: provenance{Version: "v1.2.3", Revision: "abc", Time: "2026-01-01T00:00:00Z", Go: "go1.26.0", Tags: "a,b", KubeVirt: "v1.9.0"},
			text: "refdaemon        v1.2.3\nrevision         abc\ntime             2026-01-01T00:00:00Z\ngo               go1.26.0\nplatform         PLATFORM\ntags             a,b\nkubevirt.io/api  v1.9.0\n",
		},
		"a tree with changes": {
			info: debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}},
			want: provenance{Version: "(devel)", Revision: "abc", Modified: true},
			text: "refdaemon  (devel)\nrevision   abc with changes\nplatform   PLATFORM\n",
		},
		"an API that is replaced": {
			info: debug.BuildInfo{Deps: []*debug.Module{{Path: "kubevirt.io/api", Version: "v1.9.0", Replace: &debug.Module{Path: "kubevirt.io/api", Version: "v1.9.1"}}}},
			want: provenance{KubeVirt: "v1.9.1"},
			text: "platform         PLATFORM\nkubevirt.io/api  v1.9.1\n",
		},
	} {
		got := buildOf(&tt.info)
		if got.Platform == "" {
			t.Errorf("%s: no platform", name)
		}
		tt.want.Platform = got.Platform
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s: -want +got\n%s", name, d)
		}
		var b strings.Builder
		if err := got.Write(&b); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(strings.Replace(tt.text, "PLATFORM", got.Platform, 1), b.String()); d != "" {
			t.Errorf("%s: -want +got\n%s", name, d)
		}
	}
	var out bytes.Buffer
	var p provenance
	if err := run(t.Context(), []string{"version", "-o", "json"}, &out); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &p); err != nil || p.Go == "" || p.KubeVirt == "" || p.ControllerRuntime == "" {
		t.Errorf("error %v: %s", err, out.String())
	}
}

func TestConfig_PrintAndValidate(t *testing.T) {
	for daemon, kind := range daemons {
		var out bytes.Buffer
		if err := run(t.Context(), []string{"config", "print-defaults", daemon}, &out); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "kind: "+kind+"\n") {
			t.Errorf("%s: printed\n%s", daemon, out.String())
		}
	}
	program := build(t)
	for name, tt := range map[string]struct {
		stdin string
		code  int
		err   string
	}{
		"sound":           {stdin: "{apiVersion: config.virtloom.dev/v1alpha1, kind: ControllerConfiguration}"},
		"with two faults": {stdin: "apiVersion: config.virtloom.dev/v1alpha1\nkind: ControllerConfiguration\nx: 1\ny: 1\n", code: 1, err: "refdaemon: standard input:3: x: is not a field of ControllerConfiguration; correct its name or its place, or remove it\nrefdaemon: standard input:4: y: is not a field of ControllerConfiguration; correct its name or its place, or remove it\n"},
	} {
		out, stderr, code := runProgram(t, program, tt.stdin, []string{"config", "validate", "-"})
		if out != "" || stderr != tt.err || code != tt.code {
			t.Errorf("%s: exit code %d, printed %q, stderr\n%s", name, code, out, stderr)
		}
	}
}
