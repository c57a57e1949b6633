// SPDX-License-Identifier: Apache-2.0

// Package plaintext makes text of users and nodes safe to print on a terminal: it replaces
// characters without a glyph, such as those that move the cursor or change the direction of
// writing.
package plaintext

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// Line returns the text as one line: separators of words or lines become spaces.
func Line(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		return shown(r)
	}, s)
}

// printableLines returns the text with its line breaks preserved.
func printableLines(s string) string {
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

// Put adds a formatted text to b as one line.
func Put(b *strings.Builder, format string, args ...any) {
	b.WriteString(Line(fmt.Sprintf(format, args...)))
	b.WriteByte('\n')
}

// Writer writes [Lines] to another writer.
type Writer struct{ To io.Writer }

// Write is part of io.Writer. A rune must not be split over two calls.
func (w Writer) Write(text []byte) (int, error) {
	if _, err := io.WriteString(w.To, printableLines(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}
