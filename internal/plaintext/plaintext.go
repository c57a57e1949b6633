// SPDX-License-Identifier: Apache-2.0

// Package plaintext keeps text that others have written, such as users and nodes, from doing
// anything to the terminal it is shown on: what has no shape of its own, among it all that moves
// the cursor or turns the direction of writing, is replaced.
package plaintext

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// Line returns the text as one line: what separates words or lines becomes a space.
func Line(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		return shown(r)
	}, s)
}

// Lines returns the text with its ends of lines as they are.
func Lines(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' {
			return r
		}
		return shown(r)
	}, s)
}

func shown(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

// Put adds a formatted line to a text, and takes care that it is one.
func Put(b *strings.Builder, format string, args ...any) {
	b.WriteString(Line(fmt.Sprintf(format, args...)))
	b.WriteByte('\n')
}

// Writer writes [Lines] to another.
type Writer struct{ To io.Writer }

// Write is part of io.Writer. A rune must not be split over two calls.
func (w Writer) Write(text []byte) (int, error) {
	if _, err := io.WriteString(w.To, Lines(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}
