// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const (
	// width is how many characters a line may have.
	width = 124
	// more is the end of a line that has more.
	more = "…"
	// alike is the part of the lines of a picture that the demo has to print: what it prints depends a little on who was first.
	alike = 0.85
)

// act returns the heading that begins so, and what is below it.
func act(text, heading string) ([]string, error) {
	_, rest, found := strings.Cut(text, "\n== "+heading)
	if !found {
		return nil, fmt.Errorf("the demo has no act %q", heading)
	}
	rest, _, _ = strings.Cut(rest, "\n\n== ")
	return strings.Split(strings.TrimRight("== "+heading+rest, "\n"), "\n"), nil
}

// progress is a line about how far a migration has come.
var progress = regexp.MustCompile(`\[[#.]{10,}\]|MigrationProgress=True`)

// abridge leaves out how far a migration has come but for a few lines, and the ends of long ones.
func abridge(lines []string) []string {
	var shown, all int
	for _, l := range lines {
		if progress.MatchString(l) {
			all++
		}
	}
	var out []string
	for _, l := range lines {
		if progress.MatchString(l) {
			if shown++; shown > 3 && shown <= all-2 {
				if shown == 4 {
					out = append(out, more)
				}
				continue
			}
		}
		out = append(out, cut(l))
	}
	return out
}

// cut ends a line at the width.
func cut(line string) string {
	if r := []rune(line); len(r) > width {
		return string(r[:width-1]) + more
	}
	return line
}

var (
	stamp   = regexp.MustCompile(`\d{4}-\d{2}-\d{2}T[\d:]+Z`)
	number  = regexp.MustCompile(`\d+(\.\d+)?`)
	suffix  = regexp.MustCompile(`(first-guest)-[a-z0-9]{10}\b`)
	bar     = regexp.MustCompile(`\[[#.]+\]`)
	address = regexp.MustCompile(`/tmp/\S+|/proc/\S+`)
	spaces  = regexp.MustCompile(` +`)
	nodes   = regexp.MustCompile(`\bnode-[ab]\b`)
	units   = regexp.MustCompile(`# ?(?:Ki|Mi|Gi)?\b`)
	// optional are parts of a line about progress that are not in every one.
	optional = regexp.MustCompile(`,? (?:rate|dirty|eta)=\S+|, # MiB/s`)
)

// form is a line without what differs from run to run.
func form(line string) string {
	for _, r := range []struct {
		of *regexp.Regexp
		to string
	}{{stamp, "#"}, {suffix, "$1-x"}, {address, "path"}, {bar, "[bar]"}, {nodes, "node"}, {number, "#"}, {units, "#"}, {optional, ""}, {spaces, " "}} {
		line = r.of.ReplaceAllString(line, r.to)
	}
	return strings.TrimSpace(line)
}

// compare reports whether the lines of a picture are those of a demo: its heading, and nearly all of the others, whatever their
// order.
func compare(shown, lines []string) error {
	if len(shown) == 0 || shown[0] != cut(lines[0]) {
		return fmt.Errorf("it shows another act than %q", lines[0])
	}
	var forms []string
	for _, l := range lines {
		forms = append(forms, form(l))
	}
	var strange []string
	for _, l := range shown {
		begins, long := strings.CutSuffix(l, more)
		f := form(begins)
		if !slices.ContainsFunc(forms, func(is string) bool {
			return is == f || long && strings.HasPrefix(is, f[:max(0, len(f)-12)])
		}) {
			strange = append(strange, l)
		}
	}
	if float64(len(strange)) > (1-alike)*float64(len(shown)) {
		return fmt.Errorf("of %d lines the demo does not print these %d:\n%s", len(shown), len(strange), strings.Join(strange, "\n"))
	}
	return nil
}
