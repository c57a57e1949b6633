// SPDX-License-Identifier: Apache-2.0

package failuretext_test

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/internal/failuretext"
)

var (
	epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	guest = types.NamespacedName{Namespace: "ns", Name: "guest"}
)

func TestFailures_NumbersAndTimesDiffer(t *testing.T) {
	for name, test := range map[string]struct {
		a, b string
		news bool
	}{
		"a number":           {"used 3 of 4", "used 4 of 4", false},
		"a quantity":         {"needs 512Mi", "needs 1.5Gi", false},
		"a time":             {"at 2026-01-02T03:04:05Z: no", "at 2026-11-24T02:05:59.123456Z: no", false},
		"a duration":         {"timeout after 1.002s", "timeout after 987.5ms", false},
		"an address":         {"dial 10.0.0.1:443", "dial 10.0.0.27:6443", false},
		"an identifier":      {"request 5f3a9c", "request a0b1c2d3-e4f5-4617-8899-aabbccddeeff", false},
		"a word":             {"exceeded quota", "violates PodSecurity", true},
		"a word, and number": {"quota a: 1", "limit a: 1", true},
	} {
		t.Run(name, func(t *testing.T) {
			var f failuretext.Failures
			f.Wording(guest, failuretext.Text{Reason: "Failed", Message: test.a}, epoch)
			words, news := f.Wording(guest, failuretext.Text{Reason: "Failed", Message: test.b}, epoch)
			want := test.a
			if test.news {
				want = test.b
			}
			if news != test.news || words.Message != want {
				t.Errorf("reported %q, news %v; want %q, news %v", words.Message, news, want, test.news)
			}
		})
	}
}

func letters(i int) string { return fmt.Sprintf("%c%c%c", 'g'+i%7, 'g'+i/7%7, 'g'+i/49%7) }

func TestFailures_TextAlwaysDiffers(t *testing.T) {
	var f failuretext.Failures
	changes := map[int]int{} // by minute
	for i := range 3000 {
		now := epoch.Add(time.Duration(i) * 100 * time.Millisecond)
		if _, news := f.Wording(guest, failuretext.Text{Reason: "Failed", Message: letters(i)}, now); news {
			changes[int(now.Sub(epoch)/time.Minute)]++
		}
	}
	for minute, most := range []int{8, 1, 1, 1, 1} {
		if changes[minute] > most {
			t.Errorf("%d changes in minute %d, want %d at most", changes[minute], minute, most)
		}
	}
	if changes[0] < 3 {
		t.Errorf("%d changes in the first minute: new text is not reported", changes[0])
	}
}

func TestFailures_RecurrenceAfterOver(t *testing.T) {
	var f failuretext.Failures
	text := failuretext.Text{Reason: "Failed", Message: "no"}
	for _, want := range []bool{true, false} {
		if _, news := f.Wording(guest, text, epoch); news != want {
			t.Errorf("news %v, want %v", news, want)
		}
	}
	f.Over(guest)
	if _, news := f.Wording(guest, text, epoch); !news {
		t.Error("not reported again")
	}
}
