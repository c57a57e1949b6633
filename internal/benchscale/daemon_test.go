// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestMetric(t *testing.T) {
	const text = "# HELP live_bytes x\nlive_bytes_total 7\nlive_bytes 1.5e+06\nlabelled{a=\"b\"} 3\nlabelled{a=\"c d\"} 4\nbad one\nworse{a=\"b\"} two\n"
	for name, test := range map[string]struct {
		want float64
		bad  bool
	}{
		"live_bytes": {1.5e6, false},
		"live":       {0, true},
		"labelled":   {7, false},
		"worse":      {0, true},
		"bad":        {0, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := metric(text, name); got != test.want || (err != nil) != test.bad {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestFreeAddresses(t *testing.T) {
	got, err := freeAddresses(3)
	if err != nil || len(got) != 3 || got[0] == got[1] || got[1] == got[2] || got[0] == got[2] {
		t.Errorf("got %v, %v", got, err)
	}
}
