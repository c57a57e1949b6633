// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// modulePath is left out of the names of packages.
const modulePath = "github.com/virtloom/virtloom"

// event is one line of "go test -json"; see "go doc test2json".
type event struct {
	Action     string
	Package    string
	ImportPath string // of a package being built, instead of Package
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// test names a test within its package; the empty name is the package itself.
type test struct{ pkg, name string }

// String is the package, from the root of the module, and the test.
func (t test) String() string {
	pkg := strings.TrimPrefix(strings.TrimPrefix(t.pkg, modulePath), "/")
	if pkg == "" {
		pkg = "."
	}
	if t.name == "" {
		return pkg
	}
	return pkg + " " + t.name
}

// skip is a test that was skipped.
type skip struct {
	test   test
	reason string
}

// summary is what is known so far.
type summary struct {
	out     io.Writer
	output  map[test][]string // of tests that have not ended
	builds  map[string][]string
	passed  int
	failed  []test
	ends    map[test]string // the last lines of the output of failed tests
	skipped []skip
	may     allowed
	broken  map[string]int // failed tests by package, to notice a package that failed without one
}

// summarize copies the essence of a stream of events to out. It reports whether tests ran, none of
// them failed, and those that were skipped may be.
func summarize(in io.Reader, out io.Writer, may allowed) (ok bool, err error) {
	s := &summary{out: out, may: may, output: map[test][]string{}, ends: map[test]string{}, builds: map[string][]string{}, broken: map[string]int{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if strings.TrimSpace(line) != "" {
			s.line(line)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, fmt.Errorf("read events: %w", err)
		}
	}
	return s.finish(), nil
}

// line takes one line of the stream; one that is no event is passed on.
func (s *summary) line(line string) {
	var e event
	if err := json.Unmarshal([]byte(line), &e); err != nil || e.Action == "" {
		fmt.Fprint(s.out, line)
		return
	}
	at := test{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		s.builds[e.ImportPath] = append(s.builds[e.ImportPath], e.Output)
	case "build-fail":
		fmt.Fprintf(s.out, "%s", strings.Join(s.builds[e.ImportPath], ""))
	case "output":
		s.output[at] = append(s.output[at], e.Output)
	case "pass", "fail", "skip":
		s.ended(at, e)
		delete(s.output, at)
	}
}

// ended takes the result of a test or a package.
func (s *summary) ended(at test, e event) {
	if at.name == "" {
		s.packageEnded(at, e)
		return
	}
	switch e.Action {
	case "pass":
		s.passed++
	case "skip":
		s.skipped = append(s.skipped, skip{at, reason(s.output[at])})
	case "fail":
		s.fail(at)
	}
}

// fail prints the output of a test that failed.
func (s *summary) fail(at test) {
	s.failed = append(s.failed, at)
	s.broken[at.pkg]++
	fmt.Fprintf(s.out, "%s", strings.Join(s.output[at], ""))
	s.ends[at] = end(s.output[at])
}

func (s *summary) packageEnded(at test, e event) {
	took := time.Duration(e.Elapsed * float64(time.Second)).Round(10 * time.Millisecond)
	switch e.Action {
	case "pass":
		fmt.Fprintf(s.out, "ok    %s (%v)\n", at, took)
	case "skip":
		fmt.Fprintf(s.out, "-     %s (no tests)\n", at)
	case "fail":
		// It did not build, or died outside of a test, or within some that never ended.
		for _, t := range s.unended(at.pkg) {
			s.fail(t)
		}
		if s.broken[at.pkg] == 0 {
			s.fail(at)
		}
		fmt.Fprintf(s.out, "FAIL  %s (%v)\n", at, took)
	}
}

// unended are the tests of a package without a result.
func (s *summary) unended(pkg string) []test {
	var unended []test
	for t := range s.output {
		if t.pkg == pkg && t.name != "" {
			unended = append(unended, t)
		}
	}
	slices.SortFunc(unended, func(a, b test) int { return strings.Compare(a.name, b.name) })
	return unended
}

// finish prints the summary: who reads only its end reads of failures.
func (s *summary) finish() (ok bool) {
	fmt.Fprintln(s.out)
	s.printSkipped()
	unexpected := s.unexpected()
	for _, t := range s.failed {
		fmt.Fprintf(s.out, "FAILED   %s\n%s", t, s.ends[t])
	}
	if s.passed+len(s.failed) == 0 {
		fmt.Fprintln(s.out, "FAILED   no test ran")
	}
	fmt.Fprintf(s.out, "%d passed, %d failed, %d skipped\n", s.passed, len(s.failed), len(s.skipped))
	return len(s.failed) == 0 && s.passed > 0 && !unexpected
}

// unexpected prints the tests that were skipped and may not be, and reports whether there are any.
func (s *summary) unexpected() bool {
	found := false
	for _, sk := range s.skipped {
		if !s.may.has(sk) {
			found = true
			fmt.Fprintf(s.out, "FAILED   %s was skipped, which the list of skips does not allow: %s\n", sk.test, sk.reason)
		}
	}
	return found
}

// printSkipped prints what was skipped and why; parts of a test with the same reason share a line.
func (s *summary) printSkipped() {
	parts := map[skip][]string{}
	var order []skip
	for _, sk := range s.skipped {
		name, part, _ := strings.Cut(sk.test.name, "/")
		of := skip{test{sk.test.pkg, name}, sk.reason}
		if parts[of] == nil {
			order = append(order, of)
		}
		parts[of] = append(parts[of], part)
	}
	for _, of := range order {
		fmt.Fprintf(s.out, "SKIPPED  %s: %s\n", of.test, of.reason)
		for _, part := range parts[of] {
			if part != "" {
				fmt.Fprintf(s.out, "         - %s\n", part)
			}
		}
	}
}

// end is the last of what a test printed, indented, for the summary; of a panic it is the beginning,
// which says what happened.
func end(output []string) string {
	const most, width = 12, 400
	var kept []string
	panics := false
	for line := range strings.Lines(strings.Join(output, "")) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "=== ") || strings.TrimSpace(line) == "" {
			continue
		}
		if strings.HasPrefix(line, "panic: ") {
			kept, panics = nil, true
		}
		if panics && len(kept) == most {
			break
		}
		kept = append(kept, "         "+line[:min(len(line), width)]+"\n")
	}
	return strings.Join(kept[max(0, len(kept)-most):], "")
}

// reason is what a skipped test said, short of the frame that the testing package puts around it.
func reason(output []string) string {
	var said []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		if place, text, found := strings.Cut(line, ": "); found && strings.Contains(place, ".go:") {
			line = text
		}
		said = append(said, line)
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}
