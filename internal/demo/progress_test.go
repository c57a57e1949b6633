// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"testing"

	"github.com/virtloom/virtloom/domain"
)

func TestBar_Progress(t *testing.T) {
	for name, tt := range map[string]struct {
		p    domain.Progress
		want string
	}{
		"nothing known": {domain.Progress{}, "[..............................]   0 %  0 of 0 MiB remain"},
		"half": {domain.Progress{Total: 128 * mebi, Remaining: 64 * mebi, BytesPerSecond: 32 * mebi, Iteration: 2},
			"[###############...............]  50 %  64 of 128 MiB remain, 32 MiB/s, iteration 2"},
		"done": {domain.Progress{Total: 128 * mebi, Iteration: 3}, "[##############################] 100 %  0 of 128 MiB remain, iteration 3"},
		"only disks yet, nearly copied": {domain.Progress{Total: mebi, Remaining: mebi / 16, Processed: mebi},
			"[..............................]   0 %  0 of 1 MiB remain"},
		"only disks yet, copied": {domain.Progress{Total: mebi}, "[..............................]   0 %  0 of 1 MiB remain"},
		"more than in all":       {domain.Progress{Total: mebi, Remaining: 2 * mebi, Iteration: 1}, "[..............................]   0 %  2 of 1 MiB remain, iteration 1"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := bar(tt.p); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestBar_LastLine(t *testing.T) {
	for name, tt := range map[string]struct {
		terminal bool
		want     string
	}{
		"terminal": {true, "one\n" + eraseLine + "bar" + eraseLine + "two\nbar" + eraseLine + "three\n"},
		"file":     {false, "one\ntwo\nthree\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			s := &transcript{out: &out, terminal: tt.terminal}
			s.print("one")
			s.draw("bar")
			s.print("two")
			s.draw("")
			s.print("three")
			if got := out.String(); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestTranscript_Summary(t *testing.T) {
	for name, tt := range map[string]struct {
		ok   bool
		want string
	}{
		"seen":     {true, "  ok      one guest\n  took    the start took 99.5 s\n"},
		"not seen": {false, "  FAILED  one guest\n  took    the start took 99.5 s\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			s := &transcript{out: &out}
			err := s.promise(tt.ok, "one guest")
			if (err == nil) != tt.ok {
				t.Errorf("the promise ends with %v", err)
			}
			s.measure("the start took %.1f s", 99.5)
			out.Reset()
			s.summary(errors.New("the end"))
			if got := out.String(); got != "\n== Summary\n"+tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
