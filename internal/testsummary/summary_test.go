// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestSummary(t *testing.T) {
	tests := map[string]struct {
		events []string
		wantOK bool
		want   []string // parts of the text, in this order
		end    string   // its last line
	}{
		"all passed": {
			events: []string{
				`{"Action":"run","Package":"github.com/virtloom/virtloom/vmi","Test":"TestA"}`,
				`{"Action":"output","Package":"github.com/virtloom/virtloom/vmi","Test":"TestA","Output":"chatter\n"}`,
				`{"Action":"pass","Package":"github.com/virtloom/virtloom/vmi","Test":"TestA","Elapsed":0.1}`,
				`{"Action":"pass","Package":"github.com/virtloom/virtloom/vmi","Elapsed":1.26}`,
			},
			wantOK: true,
			want:   []string{"ok    vmi (1.26s)"},
			end:    "1 passed, 0 failed, 0 skipped",
		},
		"a failure shows its output": {
			events: []string{
				`{"Action":"output","Package":"p","Test":"TestB/sub","Output":"    b_test.go:7: not what it should be\n"}`,
				`{"Action":"fail","Package":"p","Test":"TestB/sub","Elapsed":0}`,
				`{"Action":"fail","Package":"p","Test":"TestB","Elapsed":0}`,
				`{"Action":"fail","Package":"p","Elapsed":2}`,
			},
			want: []string{"b_test.go:7: not what it should be", "FAIL  p (2s)", "FAILED   p TestB/sub", "         " + "    b_test.go:7: not what", "FAILED   p TestB"},
			end:  "0 passed, 2 failed, 0 skipped",
		},
		"a skip shows its reason": {
			events: []string{
				`{"Action":"pass","Package":"p","Test":"TestA"}`,
				`{"Action":"output","Package":"p","Test":"TestC","Output":"=== RUN   TestC\n"}`,
				`{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:9: needs root: run it with sudo\n"}`,
				`{"Action":"output","Package":"p","Test":"TestC","Output":"--- SKIP: TestC (0.00s)\n"}`,
				`{"Action":"skip","Package":"p","Test":"TestC"}`,
				`{"Action":"pass","Package":"p","Elapsed":0}`,
			},
			wantOK: true,
			want:   []string{"SKIPPED  p TestC: needs root: run it with sudo"},
			end:    "1 passed, 0 failed, 1 skipped",
		},
		"skips of one test with one reason share it": {
			events: []string{
				`{"Action":"pass","Package":"p","Test":"TestA"}`,
				`{"Action":"output","Package":"p","Test":"TestC/a","Output":"    c_test.go:9: no agent\n"}`,
				`{"Action":"skip","Package":"p","Test":"TestC/a"}`,
				`{"Action":"output","Package":"p","Test":"TestC/b","Output":"    c_test.go:9: no console\n"}`,
				`{"Action":"skip","Package":"p","Test":"TestC/b"}`,
				`{"Action":"output","Package":"p","Test":"TestC/c","Output":"    c_test.go:9: no agent\n"}`,
				`{"Action":"skip","Package":"p","Test":"TestC/c"}`,
			},
			wantOK: true,
			want:   []string{"SKIPPED  p TestC: no agent\n         - a\n         - c\nSKIPPED  p TestC: no console\n         - b\n"},
			end:    "1 passed, 0 failed, 3 skipped",
		},
		"a package that does not build is a failure": {
			events: []string{
				`{"ImportPath":"p","Action":"build-output","Output":"p/x.go:3:1: syntax error\n"}`,
				`{"ImportPath":"p","Action":"build-fail"}`,
				`{"Action":"pass","Package":"q","Test":"TestA"}`,
				`{"Action":"fail","Package":"p","Elapsed":0,"FailedBuild":"p"}`,
			},
			want: []string{"p/x.go:3:1: syntax error", "FAILED   p\n"},
			end:  "1 passed, 1 failed, 0 skipped",
		},
		"a test that never ended is shown": {
			events: []string{
				`{"Action":"output","Package":"p","Test":"TestD","Output":"panic: test timed out after 1s\n"}`,
				`{"Action":"fail","Package":"p","Elapsed":1}`,
			},
			want: []string{"panic: test timed out after 1s", "FAILED   p TestD\n"},
			end:  "0 passed, 1 failed, 0 skipped",
		},
		"a test that never ended is shown beside one that failed": {
			events: []string{
				`{"Action":"output","Package":"p","Test":"TestD","Output":"=== RUN   TestD\n"}`,
				`{"Action":"fail","Package":"p","Test":"TestE"}`,
				`{"Action":"output","Package":"p","Test":"TestD","Output":"panic: test timed out after 1s\n"}`,
				`{"Action":"output","Package":"p","Test":"TestD","Output":"` + strings.Repeat(`goroutine\n`, 20) + `"}`,
				`{"Action":"fail","Package":"p","Elapsed":1}`,
			},
			want: []string{"FAILED   p TestE\n", "FAILED   p TestD\n         panic: test timed out after 1s\n"},
			end:  "0 passed, 2 failed, 0 skipped",
		},
		"a package that dies without a test is shown": {
			events: []string{
				`{"Action":"output","Package":"p","Output":"the API server does not start\n"}`,
				`{"Action":"fail","Package":"p","Elapsed":1}`,
			},
			want: []string{"the API server does not start", "FAILED   p\n         the API server does not start\n"},
			end:  "0 passed, 1 failed, 0 skipped",
		},
		"nothing ran": {
			events: []string{`{"Action":"skip","Package":"p","Elapsed":0}`},
			want:   []string{"-     p (no tests)", "FAILED   no test ran"},
			end:    "0 passed, 0 failed, 0 skipped",
		},
		"what is no event is passed on": {
			events: []string{"go: something is wrong", `{"Action":"pass","Package":"p","Test":"TestA"}`},
			wantOK: true,
			want:   []string{"go: something is wrong\n"},
			end:    "1 passed, 0 failed, 0 skipped",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			ok, err := summarize(strings.NewReader(strings.Join(tc.events, "\n")), &out, nil)
			if err != nil || ok != tc.wantOK {
				t.Errorf("ok %v, error %v; want ok %v", ok, err, tc.wantOK)
			}
			rest := out.String()
			for _, part := range tc.want {
				_, after, found := strings.Cut(rest, part)
				if !found {
					t.Fatalf("%q is not there, or not in order:\n%s", part, out.String())
				}
				rest = after
			}
			lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
			if last := lines[len(lines)-1]; last != tc.end {
				t.Errorf("last line %q, want %q", last, tc.end)
			}
			if tc.wantOK && strings.Contains(out.String(), "chatter") {
				t.Error("the output of a test that passed is shown")
			}
		})
	}
}

func TestSummary_BrokenStream(t *testing.T) {
	broken := errors.New("broken")
	ok, err := summarize(iotest.ErrReader(broken), io.Discard, nil)
	if ok || !errors.Is(err, broken) {
		t.Errorf("ok %v, error %v; want %v", ok, err, broken)
	}
}
