// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestSpread(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i+1) * time.Second
	}
	rand.Shuffle(len(hundred), func(i, j int) { hundred[i], hundred[j] = hundred[j], hundred[i] })
	for name, test := range map[string]struct {
		took []time.Duration
		want Spread
	}{
		"nothing":                {nil, Spread{}},
		"one is all":             {[]time.Duration{1500 * time.Millisecond}, Spread{N: 1, P50: 1.5, P95: 1.5, P99: 1.5, Max: 1.5}},
		"two: half is the less":  {[]time.Duration{3 * time.Second, time.Second}, Spread{N: 2, P50: 1, P95: 3, P99: 3, Max: 3}},
		"a hundred, in no order": {hundred, Spread{N: 100, P50: 50, P95: 95, P99: 99, Max: 100}},
		"times are in thousandths of a second": {
			[]time.Duration{1234567 * time.Microsecond}, Spread{N: 1, P50: 1.235, P95: 1.235, P99: 1.235, Max: 1.235},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := append([]time.Duration(nil), test.took...)
			if got := spreadOf(test.took); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			for i := range before {
				if before[i] != test.took[i] {
					t.Fatal("the times were put in another order")
				}
			}
		})
	}
}
