// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Plant is one planted bug and the tests that must catch it.
type Plant struct {
	// Name describes the bug in a few words.
	Name string
	// File is the shipped file, relative to the root of the module.
	File string
	// Old occurs exactly once in File and is replaced with New.
	Old, New string
	// Package and Run are the tests that must fail: a package of the module, and a pattern
	// as of go test -run.
	Package, Run string

	// at is the offset of Old; where it is zero, Old is searched for.
	at int
	// within is how long the tests may take, for go test -timeout: an endless loop is killed by it. Defaults to 5m.
	within string
}

// mutated returns the content of the file with the bug.
func (p Plant) mutated(root string) ([]byte, error) {
	path := filepath.Join(root, p.File)
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("mutation: %s: %w", p.Name, err)
	}
	at := p.at
	if at == 0 {
		if n := bytes.Count(src, []byte(p.Old)); n != 1 {
			return nil, fmt.Errorf("mutation: %s: %q occurs %d times in %s, want once: adapt the table to the code", p.Name, p.Old, n, p.File)
		}
		at = bytes.Index(src, []byte(p.Old))
	}
	out := slices.Concat(src[:at], []byte(p.New), src[at+len(p.Old):])
	if _, err := parser.ParseFile(token.NewFileSet(), path, out, 0); err != nil {
		return nil, fmt.Errorf("mutation: %s: %w", p.Name, err)
	}
	return out, nil
}

// Verdict is the result of a mutant.
type Verdict struct {
	// Killed is true if a test has failed; By names the first.
	Killed bool
	By     string
}

// errBroken means that a mutant could not be tested.
var errBroken = errors.New("mutation: the mutant was not tried")

// try runs the plant's tests on the changed code.
func (p Plant) try(ctx context.Context, root, dir string) (Verdict, error) {
	src, err := p.mutated(root)
	if err != nil {
		return Verdict{}, err
	}
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	table, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, p.File): changed}})
	if err != nil {
		return Verdict{}, err
	}
	if err := errors.Join(os.WriteFile(changed, src, 0o600), os.WriteFile(overlay, table, 0o600)); err != nil {
		return Verdict{}, err
	}
	out, err := goTest(ctx, root, "-timeout", cmp.Or(p.within, "5m"), "-overlay", overlay, "-run", p.Run, "./"+p.Package)
	return judge(out, err)
}

// goTest runs go test without vet, which would reject some mutants.
func goTest(ctx context.Context, root string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-tags", "libvirt_dlopen", "-vet", "off", "-count", "1", "-failfast"}, args...)...)
	cmd.Dir = root
	return cmd.CombinedOutput()
}

var failed = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)

// judge parses the output of go test. A mutant that does not compile, or runs no test,
// is an error, not a verdict.
func judge(out []byte, err error) (Verdict, error) {
	text := string(out)
	switch {
	case strings.Contains(text, "[build failed]"), strings.Contains(text, "[setup failed]"), strings.Contains(text, "no tests to run"):
		return Verdict{}, fmt.Errorf("%w:\n%s", errBroken, text)
	case err == nil:
		return Verdict{}, nil
	}
	if m := failed.FindStringSubmatch(text); m != nil {
		return Verdict{Killed: true, By: m[1]}, nil
	}
	if strings.Contains(text, "panic:") || strings.Contains(text, "fatal error:") {
		return Verdict{Killed: true, By: "a panic"}, nil
	}
	return Verdict{}, fmt.Errorf("%w: %w\n%s", errBroken, err, text)
}
