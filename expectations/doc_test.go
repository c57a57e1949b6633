// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/virtloom/virtloom/expectations"
)

// The life of a write follows the drawing in doc.go.
func TestDoc_LifeOfWrite(t *testing.T) {
	raw, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, drawing, _ := strings.Cut(string(raw), "// The life of a write")
	drawing, _, found := strings.Cut(drawing, "// Classify returns")
	if !found {
		t.Fatal("doc.go does not draw the life of a write")
	}
	has := func(words string) {
		if !strings.Contains(drawing, words) {
			t.Errorf("the drawing has no %q", words)
		}
	}

	for name, tt := range map[string]struct {
		drawn string
		reply func(*bench, expectations.Token)
		then  expectations.State
	}{
		"accepted":  {"Accepted ─▶ Confirm ─┐", func(b *bench, tok expectations.Token) { b.Confirm(tok, object("u1", "5")) }, expectations.Waiting},
		"exists":    {"Exists   ─▶ Exists  ─┼─▶ Waiting", func(b *bench, tok expectations.Token) { b.Exists(tok) }, expectations.Waiting},
		"ambiguous": {"Ambiguous ───────────┘", func(*bench, expectations.Token) {}, expectations.Waiting},
		"refused":   {"Refused  ─▶ Cancel ──", func(b *bench, tok expectations.Token) { b.Cancel(tok) }, expectations.Satisfied},
	} {
		t.Run(name, func(t *testing.T) {
			has(tt.drawn)
			b := newBench(t)
			tt.reply(b, b.ExpectCreate(owner, ref))
			if got := b.Check(owner).State; got != tt.then {
				t.Fatalf("after the reply it is %s, want %s", got, tt.then)
			}
			if tt.then == expectations.Satisfied {
				return
			}
			b.now = b.now.Add(2 * time.Minute)
			v := b.Check(owner)
			if v.State != expectations.Expired {
				t.Fatalf("after its time it is %s", v.State)
			}
			// Where the outcome was unknown, the cache still has time to show what the reading has found.
			f := b.Answer(v.Pending[0], object("u1", "5"))
			if f == expectations.CacheBehind && b.Check(owner).State == expectations.Waiting {
				b.now = b.now.Add(2 * time.Minute)
				f = b.Answer(b.Check(owner).Pending[0], object("u1", "5"))
			}
			if !f.Settled() || b.Check(owner).State != expectations.Satisfied {
				t.Errorf("after a reading that is %s it is %s", f, b.Check(owner).State)
			}
		})
	}

	for f, settled := range map[expectations.Finding]bool{
		expectations.Shown: true, expectations.Disproved: true,
		expectations.CacheBehind: false, expectations.ServerBehind: false, expectations.Unordered: false,
	} {
		line := "not yet: "
		if settled {
			line = "settled: "
		}
		_, list, _ := strings.Cut(drawing, line)
		list, _, _ = strings.Cut(list, "\n")
		if f.Settled() != settled || !strings.Contains(list, f.String()) {
			t.Errorf("%q is not drawn as %q: %q", f, line, list)
		}
	}
}
