// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/migration/queue"
)

// BenchmarkQueue adds, gets and finishes an item, beside controller-runtime's
// priorityqueue in the same run, with as many others waiting as the name says. The
// last line of each pair is by how much this one is faster.
//
//	go test ./migration/migrationctrl -run '^$' -bench BenchmarkQueue -benchmem
func BenchmarkQueue(b *testing.B) {
	for _, waiting := range []int{0, 10_000} {
		var ours, theirs float64
		b.Run(fmt.Sprintf("virtloom/waiting=%d", waiting), func(b *testing.B) { ours = benchOurs(b, waiting) })
		b.Run(fmt.Sprintf("controller-runtime/waiting=%d", waiting), func(b *testing.B) { theirs = benchTheirs(b, waiting) })
		b.Run(fmt.Sprintf("ratio/waiting=%d", waiting), func(b *testing.B) {
			b.ReportMetric(0, "ns/op") // leaves the line out
			b.ReportMetric(theirs/ours, "times-faster")
		})
	}
}

func benchKeys(n int) []types.NamespacedName {
	out := make([]types.NamespacedName, n)
	for i := range out {
		out[i] = types.NamespacedName{Namespace: fmt.Sprint("namespace-", i%20), Name: fmt.Sprint("migration-", i)}
	}
	return out
}

func benchOurs(b *testing.B, waiting int) float64 {
	q := queue.NewQueue(queue.Options{})
	for _, k := range benchKeys(waiting) {
		q.Add(queue.Item{Key: k})
	}
	keys := benchKeys(1000)
	for i := range keys {
		keys[i].Name += "-urgent"
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		k := keys[i%len(keys)]
		i++
		q.Add(queue.Item{Key: k, Priority: queue.PriorityUser})
		it, err := q.Get(b.Context())
		if err != nil || it.Key != k {
			b.Fatal(it, err)
		}
		q.Done(it.Key)
	}
	return float64(b.Elapsed()) / float64(b.N)
}

func benchTheirs(b *testing.B, waiting int) float64 {
	q := priorityqueue.New[reconcile.Request]("bench")
	defer q.ShutDown()
	none, user := 0, queue.PriorityUser
	for _, k := range benchKeys(waiting) {
		q.AddWithOpts(priorityqueue.AddOpts{Priority: &none}, reconcile.Request{NamespacedName: k})
	}
	keys := benchKeys(1000)
	for i := range keys {
		keys[i].Name += "-urgent"
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		q.AddWithOpts(priorityqueue.AddOpts{Priority: &user}, reconcile.Request{NamespacedName: keys[i%len(keys)]})
		i++
		// With others waiting it may hand out one of those first: an addition is
		// not in order before a goroutine has seen it.
		req, _, _ := q.GetWithPriority()
		q.Done(req)
	}
	return float64(b.Elapsed()) / float64(b.N)
}
