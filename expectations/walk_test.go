// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/virtloom/virtloom/expectations"
)

// try runs a program and returns the difference between tracker and model, with the shortest program found that shows it.
func try(ops []op, every bool) string {
	fails := func(ops []op) bool { return newRun(newWorld("ns", "elsewhere"), every, false).execute(ops) != "" }
	if !fails(ops) {
		return ""
	}
	for size := len(ops) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(ops); {
			shorter := slices.Delete(slices.Clone(ops), at, at+size)
			if fails(shorter) {
				ops = shorter
			} else {
				at += size
			}
		}
	}
	r := newRun(newWorld("ns", "elsewhere"), every, true)
	diff := r.execute(ops)
	return strings.Join(r.script, "\n") + "\n" + diff
}

func randomProgram(rng *rand.Rand, n int) []op {
	ops := make([]op, n)
	for i := range ops {
		for j := range ops[i] {
			ops[i][j] = byte(rng.UintN(256))
		}
	}
	return ops
}

// The tracker behaves as the model of its documentation, for any operations in any order.
func TestTracker_RandomWalks(t *testing.T) {
	walks := 2000
	if testing.Short() {
		walks = 200
	}
	for seed := range walks {
		rng := rand.New(rand.NewPCG(uint64(seed), 1))
		if failure := try(randomProgram(rng, 150), seed%4 == 0); failure != "" {
			t.Fatalf("seed %d:\n%s", seed, failure)
		}
	}
}

func FuzzTracker(f *testing.F) {
	for seed := range 8 {
		rng := rand.New(rand.NewPCG(uint64(seed), 2))
		var data []byte
		for _, o := range randomProgram(rng, 40) {
			data = append(data, o[:]...)
		}
		f.Add(data, seed%2 == 0)
	}
	f.Fuzz(func(t *testing.T, data []byte, every bool) {
		if failure := try(parse(data), every); failure != "" {
			t.Fatal("\n" + failure)
		}
	})
}

// Runs on one tracker, each with owners and objects of its own, do not disturb each other.
func TestTracker_ConcurrentWalks(t *testing.T) {
	const runs = 8
	byNamespace := map[string]*run{}
	start := time.Unix(1000, 0)
	tracker, err := expectations.New(expectations.Options{
		Now: func() time.Time { return start }, TTL: modelTTL, Observer: dispatch(byNamespace),
		Wake: func(o expectations.Owner) {
			r := byNamespace[o.Key.Namespace]
			r.woken = append(r.woken, o)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range runs {
		r := newRun(newWorld(fmt.Sprint("ns", i)), i%2 == 0, true)
		r.tracker, r.model.now, r.clock, r.shared = tracker, start, false, true
		byNamespace[r.owners[0].Key.Namespace] = r
	}
	var wg sync.WaitGroup
	for ns, r := range byNamespace {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(len(ns)), uint64(ns[len(ns)-1])))
			if diff := r.execute(randomProgram(rng, 3000)); diff != "" {
				t.Errorf("%s:\n%s\n%s", ns, strings.Join(r.script[max(0, len(r.script)-40):], "\n"), diff)
			}
		})
	}
	wg.Wait()
	want := 0
	for _, r := range byNamespace {
		want += r.model.outstanding()
	}
	if got := tracker.Outstanding(); got != want {
		t.Errorf("%d writes outstanding, want %d", got, want)
	}
}

// dispatch forwards the Observer's calls to the run that the owner belongs to.
type dispatch map[string]*run

func (d dispatch) of(w expectations.Write) *run { return d[w.Owner.Key.Namespace] }

func (d dispatch) Noted(w expectations.Write) { d.of(w).Noted(w) }

func (d dispatch) Settled(w expectations.Write, by expectations.Evidence, age time.Duration) {
	d.of(w).Settled(w, by, age)
}

func (d dispatch) Dropped(w expectations.Write, why expectations.DropReason) { d.of(w).Dropped(w, why) }

func (d dispatch) Troubled(w expectations.Write, p expectations.Problem) { d.of(w).Troubled(w, p) }
