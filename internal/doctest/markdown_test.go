// SPDX-License-Identifier: Apache-2.0

// Package doctest keeps README.md, the files beside it and docs true: shell blocks that can be run
// are run as they stand, code comes from files that are compiled, and every link, make target,
// package, name, test and flag that is mentioned exists.
//
// The word after "sh" in the first line of a block says what it needs:
//
//	sh run       nothing: it is run at the root of the module
//	sh cluster   a cluster with a few objects: it is run beside a rig
//	sh slow      nothing, for minutes: it is run with the flag -all
//	sh root      rights of root, and what "make setup" installs: it is run with the flag -all
//	sh daemon    a cluster, and does not end: it is not run
//	sh ci        it is what CI does anyway: it is not run
//
// After it may stand exit=N, the exit code that a block ends with. A block "text output" is what
// the "sh run" before it prints. A block "go from=FILE" is in that file, word for word.
package doctest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is that of the module.
const root = "../.."

// document is a file of Markdown.
type document struct {
	// name is its path in the module, text the whole of it.
	name, text string
	blocks     []block
	// prose is what is not in blocks.
	prose string
}

// block is what stands between two fences.
type block struct {
	line  int
	words []string // after the fence
	text  string
}

// is reports whether the block begins with these words.
func (b block) is(words ...string) bool {
	return len(b.words) >= len(words) && slices.Equal(b.words[:len(words)], words)
}

// option returns what follows name= in the words of the block.
func (b block) option(name string) string {
	for _, w := range b.words {
		if v, found := strings.CutPrefix(w, name+"="); found {
			return v
		}
	}
	return ""
}

// parse finds blocks. A fence that is open at the end is a fault of the document.
func parse(t *testing.T, name, text string) document {
	t.Helper()
	d := document{name: name, text: text}
	var prose strings.Builder
	var open *block
	for i, line := range strings.Split(text, "\n") {
		rest, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			open = &block{line: i + 1, words: strings.Fields(rest)}
		case fence:
			d.blocks = append(d.blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		default:
			prose.WriteString(line + "\n")
		}
	}
	if open != nil {
		t.Errorf("%s:%d: the block does not end", name, open.line)
	}
	d.prose = prose.String()
	return d
}

// documents are all there are.
func documents(t *testing.T) []document {
	t.Helper()
	var names []string
	for _, pattern := range []string{"*.md", "docs/*.md", "refdaemon/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	var all []document
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		short, err := filepath.Rel(root, name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, parse(t, short, string(text)))
	}
	if len(all) < 10 {
		t.Fatalf("there are %d documents only: %v", len(all), names)
	}
	return all
}

var (
	link    = regexp.MustCompile(`\[[^\]]+\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	notSlug = regexp.MustCompile("[^a-z0-9 _-]")
)

// anchors are the headings of a document as links name them.
func anchors(text string) []string {
	var all []string
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		all = append(all, strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

// deadLinks are the relative links of a document that lead nowhere.
func deadLinks(d document) []string {
	var dead []string
	for _, m := range link.FindAllStringSubmatch(d.prose, -1) {
		to := m[1]
		if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
			continue
		}
		file, anchor, _ := strings.Cut(to, "#")
		path := filepath.Join(root, filepath.Dir(d.name), file)
		if file == "" {
			path = filepath.Join(root, d.name)
		}
		if _, err := os.Stat(path); err != nil {
			dead = append(dead, to)
			continue
		}
		if anchor == "" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil || !slices.Contains(anchors(string(text)), anchor) {
			dead = append(dead, to)
		}
	}
	return dead
}

func TestLinks_Resolve(t *testing.T) {
	for _, d := range documents(t) {
		for _, to := range deadLinks(d) {
			t.Errorf("%s: the link %s leads nowhere", d.name, to)
		}
	}
}

func TestLinks_Broken(t *testing.T) {
	d := parse(t, "docs/x.md", "[a](safety.md) [b](no.md) [c](safety.md#assumptions) [d](safety.md#no) [e](https://example.com/x)\n```\n[f](no.md)\n```\n")
	if got, want := deadLinks(d), []string{"no.md", "safety.md#no"}; !slices.Equal(got, want) {
		t.Errorf("dead are %q, want %q", got, want)
	}
}

func TestDocuments_ReachableFromREADME(t *testing.T) {
	all := documents(t)
	var seen []string
	for next := []string{"README.md"}; len(next) > 0; next = next[1:] {
		if slices.Contains(seen, next[0]) {
			continue
		}
		seen = append(seen, next[0])
		i := slices.IndexFunc(all, func(d document) bool { return d.name == next[0] })
		if i < 0 {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(all[i].prose, -1) {
			file, _, _ := strings.Cut(m[1], "#")
			next = append(next, filepath.Join(filepath.Dir(next[0]), file))
		}
	}
	for _, d := range all {
		if !slices.Contains(seen, d.name) {
			t.Errorf("no link leads from README.md to %s", d.name)
		}
	}
}
