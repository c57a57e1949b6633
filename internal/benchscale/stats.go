// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"slices"
	"time"
)

// Spread sums up how long one step took for each of many objects.
type Spread struct {
	// N is how many took the step.
	N int `json:"n"`
	// P50, P95, P99 and Max are in seconds.
	P50 float64 `json:"p50Seconds"`
	P95 float64 `json:"p95Seconds"`
	P99 float64 `json:"p99Seconds"`
	Max float64 `json:"maxSeconds"`
}

// spreadOf is the spread of the times, in any order; zero if there are none.
func spreadOf(took []time.Duration) Spread {
	if len(took) == 0 {
		return Spread{}
	}
	took = slices.Sorted(slices.Values(took))
	at := func(percent float64) float64 { return round3(percentile(took, percent).Seconds()) }
	return Spread{N: len(took), P50: at(50), P95: at(95), P99: at(99), Max: at(100)}
}

// percentile is the smallest of the sorted times that the given percentage of them does not exceed.
func percentile(sorted []time.Duration, percent float64) time.Duration {
	rank := int(math.Ceil(percent / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// round3 keeps three digits after the point, more than any measurement here deserves.
func round3(x float64) float64 { return math.Round(x*1000) / 1000 }
