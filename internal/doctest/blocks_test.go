// SPDX-License-Identifier: Apache-2.0

package doctest

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// needs are the words that say what a shell block needs.
var needs = []string{"run", "cluster", "slow", "root", "daemon", "ci"}

var all = flag.Bool("all", false, "run the blocks that need root or take minutes as well")

// wrong returns the error in the mark of a block; empty if there is none.
func wrong(b block, before *block) string {
	switch {
	case len(b.words) == 0 || slices.Equal(b.words, []string{"yaml"}):
		return ""
	case b.is("sh"):
		if len(b.words) < 2 || !slices.Contains(needs, b.words[1]) {
			return fmt.Sprintf("a shell block says what it needs, one of %q", needs)
		}
		return ""
	case b.is("text", "output"):
		if before == nil || !before.is("sh", "run") {
			return "what is printed stands behind a block that is run"
		}
		return ""
	case b.is("go"):
		if b.option("from") == "" {
			return "code says from which file it is: go from=FILE"
		}
		return ""
	}
	return fmt.Sprintf("nobody knows what %q is", strings.Join(b.words, " "))
}

func TestBlocks_Marked(t *testing.T) {
	for _, d := range documents(t) {
		var before *block
		for _, b := range d.blocks {
			if w := wrong(b, before); w != "" {
				t.Errorf("%s:%d: %s", d.name, b.line, w)
			}
			before = &b
		}
	}
}

func TestBlocks_InvalidMarks(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, "yaml": true, "sh run": true, "sh run exit=3": true, "go from=x.go": true,
		"sh": false, "sh maybe": false, "go": false, "text output": false, "bash": false,
	} {
		if got := wrong(block{words: strings.Fields(text)}, nil) == ""; got != want {
			t.Errorf("%q is right: %v, want %v", text, got, want)
		}
	}
}

// contains reports whether the file has the code, at any indentation.
func contains(file, code string) bool {
	plain := func(s string) string {
		var out []string
		for line := range strings.Lines(s) {
			out = append(out, strings.TrimSpace(line))
		}
		return strings.Join(out, "\n")
	}
	return strings.Contains(plain(file), strings.TrimSpace(plain(code)))
}

func TestCodeBlocks_Compile(t *testing.T) {
	found := 0
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if !b.is("go") {
				continue
			}
			found++
			file, err := os.ReadFile(filepath.Join(root, b.option("from")))
			if err != nil {
				t.Errorf("%s:%d: %v", d.name, b.line, err)
				continue
			}
			if !contains(string(file), b.text) {
				t.Errorf("%s:%d: this is not in %s:\n%s", d.name, b.line, b.option("from"), b.text)
			}
		}
	}
	if found == 0 {
		t.Error("no document has code")
	}
}

func TestCodeBlocks_MissingSource(t *testing.T) {
	file := "func f() {\n\tif a {\n\t\tb()\n\t}\n}\n"
	for code, want := range map[string]bool{"if a {\n\tb()\n}\n": true, "b()\n": true, "if a {\n\tc()\n": false} {
		if contains(file, code) != want {
			t.Errorf("%q is there: %v, want %v", code, !want, want)
		}
	}
}

// shell runs a block at the root of the module and returns what it prints and its exit code.
func shell(t *testing.T, text string, env ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", text)
	cmd.Dir, cmd.Env = root, append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	code := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s%s", stderr.String(), stdout.String())
	return stdout.String(), code
}

// runBlocks runs the blocks with that need, in the order in which they stand.
func runBlocks(t *testing.T, need string, env ...string) {
	t.Helper()
	ran := 0
	for _, d := range documents(t) {
		for i, b := range d.blocks {
			if !b.is("sh", need) {
				continue
			}
			ran++
			t.Run(fmt.Sprintf("%s:%d", d.name, b.line), func(t *testing.T) {
				want := "0"
				if o := b.option("exit"); o != "" {
					want = o
				}
				out, code := shell(t, b.text, env...)
				if strconv.Itoa(code) != want {
					t.Fatalf("exit code %d, want %s", code, want)
				}
				if i+1 < len(d.blocks) && d.blocks[i+1].is("text", "output") && out != d.blocks[i+1].text {
					t.Errorf("it prints\n%s\nand not\n%s", out, d.blocks[i+1].text)
				}
			})
		}
	}
	if ran == 0 {
		t.Errorf("no block is marked %q", need)
	}
}

func TestShellBlocks_Run(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles everything once more, without cgo: run it without -short")
	}
	runBlocks(t, "run")
	if *all {
		runBlocks(t, "slow")
		runBlocks(t, "root")
	}
}
