// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const after = " S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 9 0"
	for name, test := range map[string]struct {
		stat string
		want time.Duration
		bad  bool
	}{
		"user and system time":         {"42 (refdaemon)" + after, 2 * time.Second, false},
		"a name with blanks and signs": {"42 (a ) b (c)" + after, 2 * time.Second, false},
		"empty":                        {"", 0, true},
		"cut":                          {"42 (refdaemon) S 1 2 3", 0, true},
		"no numbers":                   {"42 (x) S 1 2 3 4 5 6 7 8 9 10 a b 0", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat(test.stat)
			if (err != nil) != test.bad || got != test.want {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestParseStatus(t *testing.T) {
	for name, test := range map[string]struct {
		status string
		want   memory
		bad    bool
	}{
		"as the kernel has it": {"Name:\tx\nVmHWM:\t    4096 kB\nVmRSS:\t    2048 kB\nThreads:\t3\n", memory{resident: 2, peak: 4}, false},
		"empty":                {"", memory{}, true},
		"no peak":              {"VmRSS:\t2048 kB\n", memory{}, true},
		"no number":            {"VmHWM:\tlots\nVmRSS:\t2048 kB\n", memory{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseStatus(test.status)
			if (err != nil) != test.bad || got != test.want {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestProc_Self(t *testing.T) {
	m, err := memoryOf(os.Getpid())
	if err != nil || m.resident <= 0 || m.peak < m.resident {
		t.Errorf("memory %+v, %v", m, err)
	}
	if _, err := busy(os.Getpid()); err != nil {
		t.Error(err)
	}
	if _, err := busy(-1); err == nil {
		t.Error("a process that does not exist was busy")
	}
	if _, err := memoryOf(-1); err == nil {
		t.Error("a process that does not exist has memory")
	}
}
