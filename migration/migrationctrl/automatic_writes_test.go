// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/migration/migrationctrl"
)

// twice runs two controllers, each of which observes the other's writes too late.
func twice(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	for i := range 6 {
		c.movable(t, ns, fmt.Sprintf("guest-%d", i), func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = "sim-0" })
	}
	c.startAutomatic(t, nil)
	c.startAutomatic(t, nil)
	c.await(t, "all guests to leave", ns, are(6, inPhase(v1.MigrationSucceeded)))
	if made := c.made(t, ns); len(made) != 6 {
		t.Errorf("created were %v", made)
	}
}

// drainKilled kills the controllers after each of their writes in turn; their successors must drain the node
// with one migration per VMI.
func drainKilled(t *testing.T, c *cluster) {
	for n := int64(1); n <= 6; n++ {
		t.Run(fmt.Sprintf("after write %d", n), func(t *testing.T) {
			ns := c.namespace(t)
			for _, name := range []string{"a", "b"} {
				c.movable(t, ns, name, func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = "sim-0" })
			}
			var left atomic.Int64
			left.Store(n)
			dead := make(chan struct{})
			stop := c.startAutomatic(t, func(r *migrationctrl.Reconciler) {
				r.Client = dying{Client: r.Client, left: &left, die: func() { close(dead) }}
			})
			select {
			case <-dead:
			case <-time.After(patience):
				t.Error("there were fewer writes")
			}
			stop()
			c.startAutomatic(t, nil)
			c.await(t, "all guests to leave", ns, are(2, inPhase(v1.MigrationSucceeded)))
			if made := c.made(t, ns); len(made) != 2 {
				t.Errorf("created were %v", made)
			}
		})
	}
}

// kubevirt makes the object by which VMIs are updated.
func (c *cluster) kubevirt(t *testing.T, namespace string, edit func(*v1.KubeVirtSpec)) *v1.KubeVirt {
	t.Helper()
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kubevirt"}}
	kv.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods = []v1.WorkloadUpdateMethod{v1.WorkloadUpdateMethodLiveMigrate}
	edit(&kv.Spec)
	c.create(t, kv)
	return kv
}

func (c *cluster) waitOutdated(t *testing.T, kv *v1.KubeVirt, n int) {
	t.Helper()
	c.waitFor(t, fmt.Sprintf("%d outdated guests to be counted", n), kv, func() bool {
		have := kv.Status.OutdatedVirtualMachineInstanceWorkloads
		return have != nil && *have == n
	})
}

func outdated(vmi *v1.VirtualMachineInstance) {
	vmi.Status.LauncherContainerImageVersion = "example.test/virt-launcher:0"
}

func updated(t *testing.T, c *cluster) {
	c.startAutomatic(t, nil)
	ns := c.namespace(t)
	two := uint32(2)
	kv := c.kubevirt(t, ns, func(s *v1.KubeVirtSpec) {
		s.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{ParallelMigrationsPerCluster: &two}
	})
	guests := map[string]*v1.VirtualMachineInstance{}
	for _, name := range []string{"a", "b", "c", "d"} {
		vmi := c.movable(t, ns, name, nil)
		c.holdAt(t, vmi, holdBegin)
		guests[name] = vmi
	}
	for _, vmi := range guests {
		c.change(t, vmi, func() { outdated(vmi) })
	}
	c.waitOutdated(t, kv, 4)
	c.await(t, "as many updates as may run", ns, are(2, inPhase(v1.MigrationTargetReady)))
	// The image is reported once the VMI has arrived: an update that has not begun is called off by it.
	released := map[string]bool{}
	for range 2 {
		for _, m := range c.migrations(t, ns) {
			if vmi := guests[m.Spec.VMIName]; !released[vmi.Name] {
				c.holdAt(t, vmi, "")
				c.waitFor(t, "the VMI to arrive", vmi, func() bool { return vmi.Status.LauncherContainerImageVersion == "" })
				c.change(t, vmi, func() { vmi.Status.LauncherContainerImageVersion = image })
				released[vmi.Name] = true
			}
		}
		c.await(t, "four in all, no more than two at a time", ns, func(all []v1.VirtualMachineInstanceMigration) bool {
			open, done := 0, 0
			for i := range all {
				if all[i].IsFinal() {
					done++
					continue
				}
				open++
			}
			if open > 2 {
				t.Errorf("%d updates at a time", open)
			}
			return len(all) == 4 || done == 4
		})
	}
	c.await(t, "all to be updated", ns, are(4, inPhase(v1.MigrationSucceeded)))
	c.waitOutdated(t, kv, 0)
}

func calledOff(t *testing.T, c *cluster) {
	c.startAutomatic(t, nil)
	ns := c.namespace(t)
	kv := c.kubevirt(t, ns, func(*v1.KubeVirtSpec) {})
	vmi := c.movable(t, ns, "guest", nil)
	c.holdAt(t, vmi, holdBegin)
	migratable := vmi.Status.Conditions
	c.change(t, vmi, func() {
		vmi.Status.Conditions = append(migratable, v1.VirtualMachineInstanceCondition{
			Type: v1.VirtualMachineInstanceVolumesChange, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		})
	})
	c.waitOutdated(t, kv, 1)
	c.holdAt(t, vmi, holdTakeOver)
	all := c.await(t, "the update to run", ns, are(1, inPhase(v1.MigrationRunning)))
	if m := all[0]; *m.Spec.Priority != v1.PriorityUserTriggered || m.Labels[v1.VolumesUpdateMigration] != "guest" {
		t.Errorf("migration %+v", m.ObjectMeta)
	}
	c.change(t, vmi, func() { vmi.Status.Conditions = migratable })
	c.await(t, "the update to be called off", ns, are(0, whatever))
	c.onlyPodOn(t, vmi, "sim-0")
	c.waitOutdated(t, kv, 0)
}

func evicted(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	one := 1
	ifPossible := v1.EvictionStrategyLiveMigrateIfPossible
	kv := c.kubevirt(t, ns, func(s *v1.KubeVirtSpec) {
		s.WorkloadUpdateStrategy.WorkloadUpdateMethods = []v1.WorkloadUpdateMethod{v1.WorkloadUpdateMethodEvict}
		s.WorkloadUpdateStrategy.BatchEvictionSize = &one
		s.WorkloadUpdateStrategy.BatchEvictionInterval = &metav1.Duration{Duration: 10 * time.Millisecond}
		s.Configuration.EvictionStrategy = &ifPossible
	})
	for _, name := range []string{"a", "b"} {
		c.movable(t, ns, name, func(vmi *v1.VirtualMachineInstance) {
			outdated(vmi)
			vmi.Spec.EvictionStrategy, vmi.Status.Conditions = nil, nil
		})
	}
	c.startAutomatic(t, nil)
	c.waitOutdated(t, kv, 2)
	c.waitFor(t, "the Pods to be ended", kv, func() bool {
		var pods corev1.PodList
		if err := c.List(t.Context(), &pods, client.InNamespace(ns)); err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp == nil })
	})
	// A Pod's deletion is observed before the request for it is answered and logged.
	c.waitFor(t, "the evictions to be logged", kv, func() bool { return len(c.evictions(t, ns)) >= 2 })
	pods := c.evictions(t, ns)
	if slices.Sort(pods); len(slices.Compact(slices.Clone(pods))) != 2 || len(pods) != 2 || len(c.made(t, ns)) != 0 {
		t.Errorf("evictions of %v, migrations %v", pods, c.made(t, ns))
	}
	c.waitEvents(t, ns, "SuccessfulEvict")
}

// evictions are the Pods of a namespace that were evicted, each as often as it was.
func (c *cluster) evictions(t *testing.T, namespace string) []string {
	t.Helper()
	requests, err := c.Requests()
	if err != nil {
		t.Fatal(err)
	}
	var pods []string
	for _, q := range requests {
		if q.What() == "create pods/eviction" && q.ObjectRef.Namespace == namespace && q.Accepted() {
			pods = append(pods, q.ObjectRef.Name)
		}
	}
	return pods
}
