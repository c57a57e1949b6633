// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/expectations"
)

// benchOwners is how many owners a benchmark goes round, as many as a large cluster has guests.
const benchOwners = 10_000

type subject struct {
	owner expectations.Owner
	ref   expectations.Ref
	uid   types.UID
}

func subjects() []subject {
	all := make([]subject, benchOwners)
	for i := range all {
		name := fmt.Sprintf("vm-%05d", i)
		all[i] = subject{
			owner: expectations.Owner{Key: types.NamespacedName{Namespace: "ns", Name: name}, UID: types.UID("uid-of-" + name)},
			ref:   expectations.Ref{Kind: pods, Namespace: "ns", Name: "virt-launcher-" + name},
			uid:   types.UID("pod-of-" + name),
		}
	}
	return all
}

func benchTracker(b *testing.B) *expectations.Tracker {
	b.Helper()
	start := time.Unix(0, 0)
	t, err := expectations.New(expectations.Options{Now: func() time.Time { return start }})
	if err != nil {
		b.Fatal(err)
	}
	return t
}

// worker goes round its own part of the owners.
type worker struct {
	all []subject
	obj *metav1.PartialObjectMetadata
	at  int
}

// workers returns the part of each of n workers.
func workers(n int) []*worker {
	all := subjects()
	out := make([]*worker, n)
	for i := range out {
		out[i] = &worker{all: all[i*len(all)/n : (i+1)*len(all)/n], obj: object("u1", "5")}
	}
	return out
}

func (w *worker) next() *subject {
	if w.at++; w.at >= len(w.all) {
		w.at = 0
	}
	return &w.all[w.at]
}

// cycle notes a creation, observes its event and checks its owner.
func (w *worker) cycle(b *testing.B, t *expectations.Tracker) {
	s := w.next()
	t.ExpectCreate(s.owner, s.ref)
	w.obj.Name, w.obj.UID = s.ref.Name, s.uid
	t.Observe(pods, w.obj, expectations.Added)
	if !t.Check(s.owner).Satisfied() {
		b.Error("not satisfied")
	}
}

func BenchmarkExpectCycle(b *testing.B) {
	t, w := benchTracker(b), workers(1)[0]
	b.ReportAllocs()
	for b.Loop() {
		w.cycle(b, t)
	}
}

func BenchmarkExpectCycleParallel(b *testing.B) {
	parallel(b, func(t *expectations.Tracker, w *worker) { w.cycle(b, t) })
}

// parallel runs step on as many goroutines as there are processors, each with owners of its own.
func parallel(b *testing.B, step func(*expectations.Tracker, *worker)) {
	b.Helper()
	t := benchTracker(b)
	var started atomic.Int64
	const most = 64
	parts := workers(most)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		w := parts[(started.Add(1)-1)%most]
		for pb.Next() {
			step(t, w)
		}
	})
}

// The cycle among many writes that stay outstanding, two for each owner.
func BenchmarkExpectCycleCrowded(b *testing.B) {
	t, w := benchTracker(b), workers(1)[0]
	for i := range w.all {
		s := w.all[i]
		s.owner.UID = "predecessor"
		t.ExpectUpdate(s.owner, s.ref, "", "9")
		s.ref.Name += "-other"
		t.ExpectUpdate(s.owner, s.ref, "", "9")
	}
	b.ReportAllocs()
	for b.Loop() {
		w.cycle(b, t)
	}
}

func BenchmarkCheckSatisfied(b *testing.B) {
	t, w := benchTracker(b), workers(1)[0]
	b.ReportAllocs()
	for b.Loop() {
		if !t.Check(w.next().owner).Satisfied() {
			b.Fatal("not satisfied")
		}
	}
}

// Most events are about objects that nobody waits for.
func BenchmarkObserveNothingExpected(b *testing.B) {
	t, w := benchTracker(b), workers(1)[0]
	b.ReportAllocs()
	for b.Loop() {
		w.obj.Name = w.next().ref.Name
		t.Observe(pods, w.obj, expectations.Updated)
	}
}
