// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// allowed are the tests that may be skipped: a line is a package, a test and, up to a "#", a part of what the test says when it
// skips. It counts for the test and its subtests. Behind the "#" stands why that is all right.
type allowed []skip

// readAllowed reads a file of them. Without a file there is no list, and any test may be skipped.
func readAllowed(path string) (allowed, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	list := allowed{}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		what, why, _ := strings.Cut(line, "#")
		fields := strings.Fields(what)
		switch {
		case len(fields) == 0:
		case len(fields) < 3 || strings.TrimSpace(why) == "":
			return nil, fmt.Errorf("%s:%d: want PACKAGE TEST PART-OF-ITS-REASON # WHY", path, n)
		default:
			list = append(list, skip{test{fields[0], fields[1]}, strings.Join(fields[2:], " ")})
		}
	}
	return list, nil
}

// has reports whether a test may be skipped for the reason that it gave.
func (a allowed) has(s skip) bool {
	return a == nil || slices.ContainsFunc(a, func(may skip) bool {
		pkg, _, _ := strings.Cut(s.test.String(), " ")
		return may.test.pkg == pkg && strings.Contains(s.reason, may.reason) &&
			(s.test.name == may.test.name || strings.HasPrefix(s.test.name, may.test.name+"/"))
	})
}
