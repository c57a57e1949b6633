// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// This test is a Go program of this module.
func TestDescribe_Program(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var texts [2][]byte
	for i := range texts {
		file := filepath.Join(t.TempDir(), "sbom.json")
		if err := run(".", file, []string{program}); err != nil {
			t.Fatal(err)
		}
		if texts[i], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(texts[0], texts[1]) {
		t.Error("the same program is described in two ways")
	}
	var bom cdx.BOM
	if err := json.Unmarshal(texts[0], &bom); err != nil {
		t.Fatal(err)
	}
	if bom.Metadata.Timestamp != "2023-11-14T22:13:20Z" || !strings.HasPrefix(bom.SerialNumber, "urn:uuid:") {
		t.Errorf("time %s, number %s", bom.Metadata.Timestamp, bom.SerialNumber)
	}
	licences := map[string]string{}
	for _, c := range *bom.Components {
		if c.Licenses == nil || len(*c.Licenses) == 0 || c.Version == "" {
			t.Errorf("%s has no licence or no version", c.Name)
			continue
		}
		licences[c.Name] = (*c.Licenses)[0].License.ID
	}
	for name, want := range map[string]string{"std": "BSD-3-Clause", generator: "Apache-2.0", "github.com/rs/zerolog": "MIT"} {
		if licences[name] != want {
			t.Errorf("%s is under %q, want %s", name, licences[name], want)
		}
	}
}

func TestDescribe_Invalid(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		epoch, dir, out string
		args            []string
		err             string
	}{
		"no time":          {"", ".", "x", []string{program}, "SOURCE_DATE_EPOCH is to be"},
		"no file to write": {"0", ".", "", []string{program}, "usage"},
		"two programs":     {"0", ".", "x", []string{program, program}, "usage"},
		"no program":       {"0", ".", "x", []string{"main.go"}, "build info"},
		"another module":   {"0", "../../promql", "x", []string{program}, "go list"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("SOURCE_DATE_EPOCH", tt.epoch)
			out := tt.out
			if out != "" {
				out = filepath.Join(t.TempDir(), out)
			}
			err := run(tt.dir, out, tt.args)
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want one with %q", err, tt.err)
			}
		})
	}
}
