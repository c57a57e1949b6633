// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"bytes"
	"cmp"
	"go/scanner"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// words maps wording that does not belong into comments and documents to its replacement. CONTRIBUTING.md has the glossary.
var words = []struct {
	wrong *regexp.Regexp
	write string
}{
	{regexp.MustCompile(`(?i)\b(tell|tells|told|telling)\b`), `"report", "return", "emit", "record", "print" or "say"`},
	{regexp.MustCompile(`(?i)\b(hand-?overs?|hand-offs?)\b`), `"handoff"`},
	{regexp.MustCompile(`(?i)\b(an?|the|its|their|each|every|this|that|no|any|of|after|before|during)\s+hand\s+overs?\b`), `"handoff"`},
	{regexp.MustCompile(`(?i)\bnot\s+to\s+be\s+had\b`), `"is not supported" or "is not available"`},
	{regexp.MustCompile(`(?i)\b(nobody|somebody|anybody)\b`), `who is meant, such as "no client", "another controller" or "any node"`},
	{regexp.MustCompile(`(?i)\bsilent\s+(agent|controller|holder|hypervisor|launcher|node|source|target)s?\b`), `"unresponsive"`},
	{regexp.MustCompile(`(?i)\bguests?'s?\s+(launcher\s+)?Pods?\b`), `"launcher Pod"`},
	{regexp.MustCompile(`(?i)\bnode\s+half\b`), `"node agent"`},
	{regexp.MustCompile(`(?i)\b(move|moves|moved|moving)\s+(the|its|their|all)\s+(domain|guest|VMI)s?\b`), `"migrate"`},
}

// exempt are phrases that name something: events of KubeVirt and exported names.
var exempt = []string{
	"SuccessfulHandOver",
	"Hints.Tell",
	"Tell sends an event",           // its comment
	"call its Tell",                 // domaintest, of the same
	"responsible: nobody",           // in the table of package handoff
	"nobody: nothing is waited for", // the same, printed
}

// generated is the mark of generated files.
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// code matches inline code, in comments too.
var code = regexp.MustCompile("`[^`\n]+`")

func TestWords_CommentsAndDocuments(t *testing.T) {
	for _, name := range files(t) {
		if strings.Contains(name, "testdata/") {
			continue
		}
		text := read(t, name)
		switch ext := filepath.Ext(name); {
		case ext == ".go" && !generated.Match(text):
			text = comments(text)
		case ext != ".md":
			continue
		}
		for _, f := range wording(text) {
			t.Errorf("%s:%d: %q: write %s", name, f.line, f.found, f.write)
		}
	}
}

// Messages, events and log lines are string literals with a space; other literals are keys and names.
func TestWords_Messages(t *testing.T) {
	for _, name := range files(t) {
		if filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || strings.Contains(name, "testdata/") {
			continue
		}
		source := read(t, name)
		if generated.Match(source) {
			continue
		}
		for _, f := range wording(messages(source)) {
			t.Errorf("%s:%d: %q: write %s", name, f.line, f.found, f.write)
		}
	}
}

func TestWording_Rules(t *testing.T) {
	for text, want := range map[string]int{
		"// f tells whether it is so.":                   1,
		"// f reports\n// what it was told.\n\n// g\n":   1,
		"it is not to\nbe had here":                      1,
		"the hand-over and the Handover":                 2,
		"a hand-off; the hand over":                      2,
		"they hand over the VMI":                         0,
		"`hand-over` is code":                            0,
		"the event SuccessfulHandOver, by Hints.Tell":    0,
		"it is retold; foretelling, untold":              0,
		"what nobody\n// reads. Somebody's, not anybody": 3,
	} {
		if got := wording([]byte(text)); len(got) != want {
			t.Errorf("%q has %v, want %d", text, got, want)
		}
	}
	const literals = "package p\n\nvar x = \"told\" // told\nvar y = \"it was told so\"\nvar z = `he told me`\n"
	if got := wording(messages([]byte(literals))); len(got) != 1 || got[0].line != 4 {
		t.Errorf("found %v, want the literal in line 4", got)
	}
	const source = "package p\n\nconst told = \"tell\" // a\n\n/* he\ntold */\nvar x int\n"
	if got := wording(comments([]byte(source))); len(got) != 1 || got[0].line != 6 {
		t.Errorf("found %v, want the comment in line 6", got)
	}
}

// finding is wording to replace.
type finding struct {
	line         int
	found, write string
}

// wording finds wrong words in a text, ordered by line.
func wording(text []byte) []finding {
	blank := func(b []byte) []byte { return bytes.Repeat([]byte(" "), len(b)) }
	text = code.ReplaceAllFunc(text, blank)
	for _, phrase := range exempt {
		text = bytes.ReplaceAll(text, []byte(phrase), blank([]byte(phrase)))
	}
	// A phrase may be wrapped, within a comment too.
	text = bytes.ReplaceAll(text, []byte("//"), []byte("  "))
	var all []finding
	for _, w := range words {
		for _, at := range w.wrong.FindAllIndex(text, -1) {
			found := strings.Join(strings.Fields(string(text[at[0]:at[1]])), " ")
			all = append(all, finding{1 + bytes.Count(text[:at[0]], []byte("\n")), found, w.write})
		}
	}
	slices.SortStableFunc(all, func(a, b finding) int { return cmp.Compare(a.line, b.line) })
	return all
}

// comments returns a Go source with everything but its comments and line breaks blanked.
func comments(source []byte) []byte {
	return tokens(source, func(tok token.Token, _ string) bool { return tok == token.COMMENT })
}

// messages returns a Go source with everything but its string literals that have a space, and line breaks, blanked. Raw literals are not
// messages, but code in other languages.
func messages(source []byte) []byte {
	return tokens(source, func(tok token.Token, text string) bool {
		return tok == token.STRING && strings.HasPrefix(text, `"`) && strings.Contains(text, " ")
	})
}

// tokens returns a Go source with everything but the tokens to keep and line breaks blanked.
func tokens(source []byte, keep func(token.Token, string) bool) []byte {
	kept := bytes.Repeat([]byte(" "), len(source))
	for i, b := range source {
		if b == '\n' {
			kept[i] = b
		}
	}
	var s scanner.Scanner
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(source))
	s.Init(file, source, nil, scanner.ScanComments)
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return kept
		}
		if keep(tok, text) {
			copy(kept[file.Offset(pos):], text)
		}
	}
}
