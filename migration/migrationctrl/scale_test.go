// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/queue"
	"github.com/virtloom/virtloom/template"
)

// "make nightly ONLY=waiting" lets 1,000 migrations wait and watches a minute of idleness.
var (
	scalePending = flag.Int("pending", 60, "how many migrations wait for slots")
	scaleMove    = flag.Duration("move", 0, "how long guests move, on average")
	scaleIdle    = flag.Duration("idle", 5*time.Second, "for how long nobody may ask the API server for anything while they wait")
)

const (
	scaleNodes      = 10
	scaleNamespaces = 5
	scaleSlots      = 5
	// scaleWriters is how many clients create objects at the same time.
	scaleWriters = 16
	// scalePatience bounds each stage; scaleInterval is how often a stage is looked at: lists of
	// a thousand objects, more often, would be what is measured.
	scalePatience = 20 * time.Minute
	scaleInterval = 2 * time.Second
)

// crowd is many VMIs with a migration each.
type crowd struct {
	*cluster
	*testing.T
	namespaces []string
	// node is where each VMI began, priority what its migration has.
	node     map[types.NamespacedName]string
	priority map[types.NamespacedName]int
}

// TestAdmission_ManyWaiting lets many migrations wait for a limit of zero, checks that no controller
// acts, and opens the slots. The assertions are about the API server's audit log.
func TestAdmission_ManyWaiting(t *testing.T) {
	q := &crowd{cluster: newClusterOf(t, scaleNodes, *scaleMove), T: t, node: map[types.NamespacedName]string{}, priority: map[types.NamespacedName]int{}}
	for range scaleNamespaces {
		q.namespaces = append(q.namespaces, q.namespace(t))
	}
	p := q.spawn(t)
	q.limit(0)
	q.populate()
	q.awaitAll("to wait", func(m *v1.VirtualMachineInstanceMigration) bool {
		c := migration.Condition(m.Status, migration.ConditionWaiting)
		return c != nil && c.Reason == string(migration.ReasonWaitingForSlot)
	})

	before, spent := q.asked(), p.busy()
	time.Sleep(*scaleIdle) // what is measured is that nothing happens
	spent = p.busy() - spent
	share := 100 * spent.Seconds() / scaleIdle.Seconds()
	t.Logf("while %d waited for %s, the controller asked for %d things and used %.2f %% of a core", *scalePending, *scaleIdle, q.asked()-before, share)
	if n := q.asked() - before; n > 0 {
		t.Errorf("while nothing changed there were %d requests of the controller", n)
	}

	begun, idle := time.Now(), p.busy()
	q.limit(scaleSlots)
	q.awaitAll("to succeed", func(m *v1.VirtualMachineInstanceMigration) bool {
		if m.Status.Phase == v1.MigrationFailed {
			t.Fatalf("%s failed: %+v", m.Name, m.Status.Conditions)
		}
		return m.Status.Phase == v1.MigrationSucceeded
	})
	t.Logf("%d migrations took %s, and the controller %s of processor time", *scalePending, time.Since(begun).Round(time.Millisecond), p.busy()-idle)
	q.judge(begun)
}

// populate creates VMIs, which run, and a migration of each.
func (q *crowd) populate() {
	q.Helper()
	priorities := []v1.MigrationPriority{"", v1.PrioritySystemMaintenance, v1.PriorityUserTriggered, v1.PrioritySystemCritical}
	var group errgroup.Group
	group.SetLimit(scaleWriters)
	for i := range *scalePending {
		key := types.NamespacedName{Namespace: q.namespaces[i%len(q.namespaces)], Name: fmt.Sprintf("guest-%d", i)}
		node := fmt.Sprintf("sim-%d", i%scaleNodes)
		// Every namespace and node has all priorities.
		priority := priorities[(i/(scaleNodes*len(q.namespaces)/5))%len(priorities)]
		q.node[key], q.priority[key] = node, queue.PriorityOf(&priority)
		group.Go(func() error { return q.guestWaits(key, node, priority) })
	}
	if err := group.Wait(); err != nil {
		q.Fatal(err)
	}
}

// guestWaits creates a VMI, its Pod and its migration.
func (q *crowd) guestWaits(key types.NamespacedName, node string, priority v1.MigrationPriority) error {
	ctx := q.Context()
	vmi := smallGuest(key.Namespace, key.Name)
	if err := q.Create(ctx, vmi); err != nil {
		return err
	}
	pod, err := template.Default().Launcher(template.Input{VMI: vmi, Config: template.Config{LauncherImage: image}})
	if err != nil {
		return err
	}
	pod.Spec.NodeName = node
	if err := q.Create(ctx, pod); err != nil {
		return err
	}
	vmi.Status.Phase, vmi.Status.NodeName, vmi.Status.SelinuxContext = v1.Running, node, "none"
	vmi.Labels[v1.NodeNameLabel] = node
	if err := handoff.Put(vmi, handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: node}); err != nil {
		return err
	}
	if err := q.Update(ctx, vmi); err != nil {
		return err
	}
	m := &v1.VirtualMachineInstanceMigration{}
	m.Namespace, m.Name, m.Spec.VMIName = key.Namespace, key.Name, key.Name
	if priority != "" {
		m.Spec.Priority = &priority
	}
	return q.Create(ctx, m)
}

// limit sets the slots of the cluster.
func (q *crowd) limit(n uint32) {
	q.Helper()
	kv := &v1.KubeVirt{}
	kv.Namespace, kv.Name = q.namespaces[0], "kubevirt"
	err := q.Get(q.Context(), client.ObjectKeyFromObject(kv), kv)
	kv.Spec.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{ParallelMigrationsPerCluster: &n}
	if err != nil {
		q.create(q.T, kv)
		return
	}
	if err := q.Update(q.Context(), kv); err != nil {
		q.Fatal(err)
	}
}

// awaitAll waits until all migrations are as wanted.
func (q *crowd) awaitAll(what string, ok func(*v1.VirtualMachineInstanceMigration) bool) {
	q.Helper()
	n := 0
	err := wait.PollUntilContextTimeout(q.Context(), scaleInterval, scalePatience, true, func(ctx context.Context) (bool, error) {
		n = 0
		for _, ns := range q.namespaces {
			var list v1.VirtualMachineInstanceMigrationList
			if err := q.List(ctx, &list, client.InNamespace(ns)); err != nil {
				return false, err
			}
			for i := range list.Items {
				if ok(&list.Items[i]) {
					n++
				}
			}
		}
		return n == *scalePending, nil
	})
	if err != nil {
		q.Fatalf("waiting for all %s: %d of %d do: %v", what, n, *scalePending, err)
	}
}

// asked counts the controller's requests but watches.
func (q *crowd) asked() (n int) {
	q.Helper()
	requests, err := q.Requests()
	if err != nil {
		q.Fatal(err)
	}
	for i := range requests {
		if requests[i].User.Username == rig.UserController {
			n++
		}
	}
	return n
}

// judge looks at the order and the number of those that acted.
func (q *crowd) judge(begun time.Time) {
	q.Helper()
	requests, err := q.Requests()
	if err != nil {
		q.Fatal(err)
	}
	moves, err := rig.MovesOf(requests)
	if err != nil {
		q.Fatal(err)
	}
	if len(moves.All) != *scalePending {
		q.Fatalf("%d target Pods were made for %d migrations", len(moves.All), *scalePending)
	}
	if moves.Pods > scaleSlots || moves.Cluster > scaleSlots {
		q.Errorf("%d migrations had Pods and %d moved at a time, want %d at most", moves.Pods, moves.Cluster, scaleSlots)
	}
	for _, per := range []map[string]int{moves.Outbound, moves.Inbound} {
		for node, n := range per {
			if n > 2 {
				q.Errorf("%d migrations left or entered node %s at a time, want 2 at most", n, node)
			}
		}
	}
	freed := q.freed(moves.All)
	q.order(moves.All, freed, q.latency(moves.All, freed))
	q.turns(moves.All)
	writes, refused, kinds := 0, 0, map[string]int{}
	for i := range requests {
		r := &requests[i]
		if r.User.Username != rig.UserController || r.Received.Before(begun) || strings.Contains(r.ObjectRef.Resource, "events") || r.ReadOnly() {
			continue
		}
		writes, kinds[r.What()] = writes+1, kinds[r.What()]+1
		if !r.Accepted() {
			refused++
		}
	}
	q.Logf("%.2f writes of the controller for each from the slot on, events not counted; %d of all were refused: %v",
		float64(writes)/float64(*scalePending), refused, kinds)
}

// freed is when the slot was free that each of them took: those ended one after the other.
func (q *crowd) freed(all []rig.Move) []time.Time {
	q.Helper()
	var freed []time.Time
	for _, o := range all {
		freed = append(freed, o.Freed)
	}
	slices.SortFunc(freed, time.Time.Compare)
	return append(make([]time.Time, min(scaleSlots, len(all))), freed[:max(0, len(all)-scaleSlots)]...)
}

// latency says how long a freed slot was without a target Pod, and returns the longest.
func (q *crowd) latency(all []rig.Move, freed []time.Time) time.Duration {
	q.Helper()
	var waits []time.Duration
	for i, o := range all {
		if !freed[i].IsZero() {
			waits = append(waits, o.Created.Sub(freed[i]))
		}
	}
	slices.Sort(waits)
	if len(waits) == 0 {
		q.Fatal("no slot was used twice")
	}
	longest := waits[len(waits)-1]
	q.Logf("from a slot freed to the next target Pod: p50 %s, p99 %s, at most %s", waits[len(waits)/2], waits[len(waits)*99/100], longest)
	return longest
}

// order checks that no migration was overtaken by a less urgent one while its node had a slot left. The time
// of a choice cannot be observed: it is between the slot becoming free and the target Pod, and the controller
// knew of a free node at the latest when it acted on one.
func (q *crowd) order(all []rig.Move, freed []time.Time, late time.Duration) {
	q.Helper()
	compared := 0
	for i, o := range all {
		leaving := map[string]int{}
		for _, e := range all[:i] {
			if e.Ended.After(freed[i].Add(-late)) {
				leaving[q.node[e.VMI]]++
			}
		}
		for j := i + 1; j < len(all); j++ {
			later := all[j].VMI
			if leaving[q.node[later]] >= 2 || !freed[j].After(o.Created) {
				continue
			}
			compared++
			if q.priority[later] > q.priority[o.VMI] {
				q.Fatalf("%s, of priority %d, passed %s, of priority %d, which could have left node %s",
					o.VMI, q.priority[o.VMI], later, q.priority[later], q.node[later])
			}
		}
	}
	q.Logf("%d times one went before another one that could have gone", compared)
	if compared < len(all) {
		q.Errorf("%d times one went before another one that could have gone: that proves nothing about the order of %d", compared, len(all))
	}
}

// turns checks that the namespaces took turns.
func (q *crowd) turns(all []rig.Move) {
	q.Helper()
	served := map[string]int{}
	for _, o := range all[:len(all)/8] { // all of the highest priority
		served[o.VMI.Namespace]++
	}
	q.Logf("of the first %d, the namespaces had %v", len(all)/8, served)
	for _, ns := range q.namespaces {
		if fair := len(all) / 8 / len(q.namespaces); served[ns] < fair-2 {
			q.Errorf("namespace %s had %d of the first %d, want %d or so", ns, served[ns], len(all)/8, fair)
		}
	}
}
