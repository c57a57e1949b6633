// SPDX-License-Identifier: Apache-2.0

package rigtest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// recorder is a test that says how it would have ended.
type recorder struct {
	testing.TB
	ended string
}

func (r *recorder) Helper()           {}
func (r *recorder) Skip(args ...any)  { r.end("skip", args) }
func (r *recorder) Fatal(args ...any) { r.end("fail", args) }

// end keeps the first end: a test goes on behind none.
func (r *recorder) end(how string, args []any) {
	if r.ended == "" {
		r.ended = how + ": " + fmt.Sprint(args...)
	}
}

func TestNeed_WithoutThePrograms(t *testing.T) {
	t.Setenv("VIRTLOOM_BIN", t.TempDir())
	for ci, want := range map[string]string{"": "skip: ", "true": "fail: "} {
		t.Setenv("CI", ci)
		r := &recorder{TB: t}
		rigtest.Need(r)
		if testing.Short() {
			want = "skip: "
		} else if !strings.Contains(r.ended, `run "make setup"`) {
			t.Errorf("CI=%s: %q does not name the remedy", ci, r.ended)
		}
		if !strings.HasPrefix(r.ended, want) || strings.Contains(r.ended, "\n") {
			t.Errorf("CI=%s: %q, want one line that begins with %q", ci, r.ended, want)
		}
	}
}
