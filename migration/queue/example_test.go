// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/migration/queue"
)

// The queue serves anything that has a name in a namespace. Here backups wait for
// a worker; the storage they would be read from is their lane, and one of two is
// down for maintenance.
func ExampleQueue() {
	q := queue.NewQueue(queue.Options{})
	since := time.Now()
	add := func(ns, name, storage string, priority int) {
		since = since.Add(time.Millisecond)
		q.Add(queue.Item{Key: types.NamespacedName{Namespace: ns, Name: name}, Since: since, Priority: priority, Lane: storage})
	}
	add("shop", "orders", "ceph", 0)
	add("shop", "pictures", "ceph", 0)
	add("shop", "logs", "nfs", 0)
	add("bank", "ledger", "ceph", 0)
	add("bank", "audit", "ceph", 100)
	q.Block("nfs")

	ctx, cancel := context.WithCancel(context.Background())
	for range 4 {
		it, err := q.Get(ctx)
		if err != nil {
			fmt.Println(err)
		}
		fmt.Println("back up", it.Key)
		q.Done(it.Key)
	}
	fmt.Println(q.Len(), "waits")
	cancel()
	_, err := q.Get(ctx)
	fmt.Println(errors.Is(err, context.Canceled))
	q.Close()
	_, err = q.Get(context.Background())
	fmt.Println(errors.Is(err, queue.ErrClosed))
	// Output:
	// back up bank/audit
	// back up shop/orders
	// back up bank/ledger
	// back up shop/pictures
	// 1 waits
	// true
	// true
}

// Within a namespace the caller decides: here the smallest VMI is moved first,
// and namespaces still take turns.
func ExampleOptions() {
	q := queue.NewQueue(queue.Options{
		Order: func(a, b queue.Item) int { return cmp.Compare(a.Size, b.Size) },
	})
	for name, gib := range map[string]int64{"database": 64, "web": 4, "cache": 16} {
		q.Add(queue.Item{Key: types.NamespacedName{Namespace: "shop", Name: name}, Size: gib << 30})
	}
	q.Add(queue.Item{Key: types.NamespacedName{Namespace: "bank", Name: "ledger"}, Size: 512 << 30})
	for _, it := range q.Snapshot() {
		fmt.Println(it.Key, it.Size>>30, "GiB")
	}
	// Output:
	// shop/web 4 GiB
	// bank/ledger 512 GiB
	// shop/cache 16 GiB
	// shop/database 64 GiB
}

// A waiting migration gets the limits that apply, an observer gets what blocks it, and the
// migration is woken when it may proceed.
func ExampleAdmission() {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	a := queue.NewAdmission(queue.Limits{Cluster: 5, Outbound: 1, Inbound: 2}, queue.Options{})
	first := queue.Claim{Key: types.NamespacedName{Namespace: "shop", Name: "web"}, Since: now, SourceNode: "node-1"}
	second := queue.Claim{Key: types.NamespacedName{Namespace: "shop", Name: "db"}, Since: now, SourceNode: "node-1"}

	v, _ := a.Ask(first, now)
	fmt.Println("web admitted:", v.Held)
	v, _ = a.Ask(second, now)
	fmt.Println("db", v.Text())
	v = a.Explain(second.Key, now)
	fmt.Printf("place %d of %d, behind %v\n", v.Position, v.Waiting, v.Blockers[0].Holders)
	fmt.Println("woken:", a.Release(first.Key, now))
	// Output:
	// web admitted: true
	// db waiting for a slot: at most 5 migrations in the cluster (parallelMigrationsPerCluster), 1 leaving node node-1 (parallelOutboundMigrationsPerNode)
	// place 1 of 1, behind [shop/web]
	// woken: [shop/db]
}

// A user follows the place of a backup, calls it off, and sees why another one does not start.
func ExampleQueue_Position() {
	q := queue.NewQueue(queue.Options{})
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "shop", Name: name} }
	since := time.Now()
	for i, name := range []string{"orders", "pictures", "logs"} {
		q.Add(queue.Item{Key: key(name), Since: since.Add(time.Duration(i) * time.Millisecond), Lane: "nfs"})
	}
	fmt.Println("logs is number", q.Position(key("logs")))
	fmt.Println("pictures was called off:", q.Remove(key("pictures")))
	fmt.Println("logs is number", q.Position(key("logs")))

	q.Block("nfs") // nothing of it is handed out, and places are kept
	fmt.Println("orders waits:", q.Contains(key("orders")))
	q.Unblock("nfs")
	it, err := q.Get(context.Background())
	fmt.Println("back up", it.Key, err, "- it waits:", q.Contains(it.Key))
	// Output:
	// logs is number 3
	// pictures was called off: true
	// logs is number 2
	// orders waits: true
	// back up shop/orders <nil> - it waits: false
}
