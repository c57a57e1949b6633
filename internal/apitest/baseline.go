// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// incompatible is the file with the lines that were in a file of folder api after the last release, and are gone.
const incompatible = "incompatible.txt"

// Change is a line of the API that is gone or new.
type Change struct{ Package, Line string }

// String is the form in which changes are written down.
func (c Change) String() string { return c.Package + ": " + c.Line }

// subject takes the parts out of a line: the kind, whose method, the name, and the name of a field or a method.
var subject = regexp.MustCompile(`^(?:const|var|func|type|method \(\*?(\w+)\)) (\w+)(?:\[[^{]*\])?(?: (?:struct|interface), (?:embedded [\w./*]*?)?(\w+))?`)

// Names are those by which the changelog may speak of a change: of the thing itself and of what it is part of, as code does.
func (c Change) Names() []string {
	pkg := c.Package[strings.LastIndex(c.Package, "/")+1:]
	m := subject.FindStringSubmatch(c.Line)
	switch {
	case m == nil:
		return []string{c.Package}
	case m[1] != "":
		return []string{pkg + "." + m[1] + "." + m[2], pkg + "." + m[1]}
	case m[3] != "":
		return []string{pkg + "." + m[2] + "." + m[3], pkg + "." + m[2]}
	}
	return []string{pkg + "." + m[2]}
}

// Compare tells what is gone from the first to the second, and what is new.
func Compare(before, after map[string][]string) (gone, added []Change) {
	return less(before, after), less(after, before)
}

// less is what is in one and not in the other.
func less(one, other map[string][]string) []Change {
	var out []Change
	for pkg, lines := range one {
		for _, line := range lines {
			if !slices.Contains(other[pkg], line) {
				out = append(out, Change{pkg, line})
			}
		}
	}
	slices.SortFunc(out, func(a, b Change) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// ReadBaseline reads what was agreed on.
func ReadBaseline(dir string) (map[string][]string, error) {
	surfaces := map[string][]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		name, err2 := filepath.Rel(dir, path)
		if err != nil || err2 != nil || e.IsDir() || filepath.Ext(path) != ".txt" || name == incompatible {
			return err
		}
		text, err := os.ReadFile(path)
		surfaces[strings.TrimSuffix(filepath.ToSlash(name), ".txt")] = split(text)
		return err
	})
	return surfaces, err
}

// ReadIncompatible reads the incompatible changes since the last release.
func ReadIncompatible(dir string) ([]Change, error) {
	text, err := os.ReadFile(filepath.Join(dir, incompatible))
	if err != nil {
		return nil, err
	}
	var out []Change
	for _, line := range split(text) {
		pkg, rest, found := strings.Cut(line, ": ")
		if found && !strings.HasPrefix(line, "#") {
			out = append(out, Change{pkg, rest})
		}
	}
	return out, nil
}

func split(text []byte) []string {
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

// WriteBaseline agrees on what there is, and notes what has gone by that. What has come back is noted no more.
func WriteBaseline(dir string, now map[string][]string) error {
	before, err := ReadBaseline(dir)
	if err != nil {
		return err
	}
	noted, err := ReadIncompatible(dir)
	if err != nil {
		return err
	}
	gone, _ := Compare(before, now)
	for _, c := range noted {
		if !slices.Contains(now[c.Package], c.Line) && !slices.Contains(gone, c) {
			gone = append(gone, c)
		}
	}
	for pkg := range before {
		if now[pkg] == nil {
			if err := os.Remove(filepath.Join(dir, pkg+".txt")); err != nil {
				return err
			}
		}
	}
	for pkg, lines := range now {
		if err := write(filepath.Join(dir, pkg+".txt"), lines); err != nil {
			return err
		}
	}
	return writeIncompatible(dir, gone)
}

func writeIncompatible(dir string, gone []Change) error {
	lines := []string{
		"# What the API has lost since the last release. CHANGELOG.md speaks of each. A release empties this file.",
	}
	for _, c := range gone {
		lines = append(lines, c.String())
	}
	slices.Sort(lines[1:])
	return write(filepath.Join(dir, incompatible), lines)
}

func write(file string, lines []string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}
