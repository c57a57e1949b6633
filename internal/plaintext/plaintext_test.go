// SPDX-License-Identifier: Apache-2.0

package plaintext_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/virtloom/virtloom/internal/plaintext"
)

func TestText_EscapesControlCharacters(t *testing.T) {
	for name, tt := range map[string]struct{ text, line, lines string }{
		"words":             {"ein Knoten, größer", "ein Knoten, größer", "ein Knoten, größer"},
		"lines and columns": {"a\tb\r\nc\n", "a b  c ", "a�b�\nc\n"},
		"escape sequences":  {"a=\x1b[2J\x1b]0;x\x07", "a=�[2J�]0;x�", "a=�[2J�]0;x�"},
		"of eight bits":     {"a=\u009b2J\u0085", "a=�2J ", "a=�2J�"},
		"another direction": {"a\u202eb\u2066c\u200b", "a�b�c�", "a�b�c�"},
		"wide spaces":       {"a\u2003b\u2028c", "a b c", "a�b�c"},
		"not UTF-8":         {"a\xffb", "a�b", "a�b"},
		"nothing":           {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := plaintext.Line(tt.text); got != tt.line {
				t.Errorf("Line is %q, want %q", got, tt.line)
			}
			var b strings.Builder
			if plaintext.Put(&b, "%s%d", tt.text, 1); b.String() != tt.line+"1\n" {
				t.Errorf("Put wrote %q", b.String())
			}
			var out bytes.Buffer
			n, err := plaintext.Writer{To: &out}.Write([]byte(tt.text))
			if err != nil || n != len(tt.text) || out.String() != tt.lines {
				t.Errorf("wrote %q (%d of %d bytes, error %v), want %q", out.String(), n, len(tt.text), err, tt.lines)
			}
		})
	}
}

type broken struct{ error }

func (b broken) Write([]byte) (int, error) { return 0, b.error }

func TestWriter_Error(t *testing.T) {
	full := errors.New("disk full")
	if n, err := (plaintext.Writer{To: broken{full}}).Write([]byte("a")); n != 0 || !errors.Is(err, full) {
		t.Errorf("%d bytes, error %v", n, err)
	}
}
