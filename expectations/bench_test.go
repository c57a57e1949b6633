// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/expectations"
)

// benchOwners is how many owners a benchmark cycles through, as many as a large cluster has VMIs.
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

// worker cycles through its own part of the owners.
type worker struct {
	part []subject
	obj  *metav1.PartialObjectMetadata
	at   int
}

// newWorker returns worker i of n. Its goroutine calls it, so that its memory is its own.
func newWorker(all []subject, i, n int) *worker {
	i %= n
	return &worker{part: all[i*len(all)/n : (i+1)*len(all)/n], obj: object("u1", "5")}
}

func (w *worker) next() *subject {
	if w.at++; w.at >= len(w.part) {
		w.at = 0
	}
	return &w.part[w.at]
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
	t, w := benchTracker(b), newWorker(subjects(), 0, 1)
	b.ReportAllocs()
	for b.Loop() {
		w.cycle(b, t)
	}
}

// Each goroutine has owners of its own.
func BenchmarkExpectCycleParallel(b *testing.B) {
	t := benchTracker(b)
	parallel(b, func(w *worker) { w.cycle(b, t) })
}

// parallel runs step on as many goroutines as there are processors.
func parallel(b *testing.B, step func(*worker)) {
	b.Helper()
	all := subjects()
	var started atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		w := newWorker(all, int(started.Add(1)-1), runtime.GOMAXPROCS(0))
		for pb.Next() {
			step(w)
		}
	})
}

// The cycle among many writes that stay outstanding, two for each owner.
func BenchmarkExpectCycleCrowded(b *testing.B) {
	t, w := benchTracker(b), newWorker(subjects(), 0, 1)
	for i := range w.part {
		s := w.part[i]
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
	t, w := benchTracker(b), newWorker(subjects(), 0, 1)
	b.ReportAllocs()
	for b.Loop() {
		if !t.Check(w.next().owner).Satisfied() {
			b.Fatal("not satisfied")
		}
	}
}

// Most events are about objects that no owner waits for.
func BenchmarkObserveNothingExpected(b *testing.B) {
	t, w := benchTracker(b), newWorker(subjects(), 0, 1)
	b.ReportAllocs()
	for b.Loop() {
		w.obj.Name = w.next().ref.Name
		t.Observe(pods, w.obj, expectations.Updated)
	}
}
