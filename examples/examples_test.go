// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// longest is how many lines a file of an example may have: it is to be read at once.
const longest = 150

func TestPrograms_ShortAndDocumented(t *testing.T) {
	files, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	deeper, err := filepath.Glob("*/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	programs := 0
	for _, file := range append(files, deeper...) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte("\n")); n > longest {
			t.Errorf("%s has %d lines, more than %d", file, n, longest)
		}
		if filepath.Base(file) != "main.go" {
			continue
		}
		programs++
		if run := "\n//\tgo run ./examples/" + filepath.Dir(file) + " "; !bytes.Contains(text, []byte(run)) {
			t.Errorf("the comment of %s does not say how it is run: %q", file, run)
		}
		tests, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*_test.go"))
		if err != nil || len(tests) == 0 {
			t.Errorf("%s has no tests: %v", file, err)
		}
	}
	if programs != 4 {
		t.Errorf("there are %d programs, want 4", programs)
	}
}
