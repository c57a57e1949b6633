// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"fmt"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

const (
	evicting   = "descheduler.alpha.kubernetes.io/eviction-in-progress"
	backupHook = "pre.hook.backup.velero.io/container"
)

// awaitPod reads the Pod until the condition holds.
func (w *world) awaitPod(pod *corev1.Pod, what string, ok func() bool) {
	w.t.Helper()
	w.eventually(func() string {
		pod.Labels, pod.Annotations = nil, nil
		if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err.Error()
		}
		if ok() {
			return ""
		}
		return fmt.Sprintf("waiting for %s: labels %v, annotations %v", what, pod.Labels, pod.Annotations)
	})
}

// synced: the Pod of a running VMI follows its labels and annotations.
func synced(w *world) {
	w.start(setup{edit: func(r *vmictrl.Reconciler) {
		r.Config = vmi.Config{SyncLabels: []string{"example.test/team-*", "stage"}, SyncAnnotations: []string{"example.test/note", "*"}}
		r.NeverRetry()
	}})
	g := w.running("guest")
	w.await(g, "Ready", func() bool { return condition(g, v1.VirtualMachineInstanceReady).Status == corev1.ConditionTrue })
	pod := w.awaitPods(1)[0]
	subset := func(m map[string]string, keys ...string) map[string]string {
		out := map[string]string{}
		for _, k := range keys {
			if v, has := m[k]; has {
				out[k] = v
			}
		}
		return out
	}
	labels := []string{"example.test/team-a", "example.test/team-b", "stage", "example.test/other"}
	notes := []string{"example.test/note", "example.test/other"}
	for i, step := range []struct{ labels, annotations, wantLabels, wantAnnotations map[string]string }{
		{
			map[string]string{labels[0]: "1", labels[1]: "1", "stage": "x", labels[3]: "1"}, map[string]string{notes[0]: "n", notes[1]: "n"},
			map[string]string{labels[0]: "1", labels[1]: "1", "stage": "x"}, map[string]string{notes[0]: "n"},
		},
		{
			map[string]string{labels[0]: "2"}, nil,
			map[string]string{labels[0]: "2"}, map[string]string{},
		},
	} {
		w.change(g, func(g *v1.VirtualMachineInstance) {
			for _, key := range labels {
				delete(g.Labels, key)
			}
			for _, key := range notes {
				delete(g.Annotations, key)
			}
			for key, value := range step.labels {
				g.Labels[key] = value
			}
			for key, value := range step.annotations {
				g.Annotations[key] = value
			}
		})
		w.awaitPod(&pod, fmt.Sprintf("step %d", i), func() bool {
			return cmp.Equal(step.wantLabels, subset(pod.Labels, labels...)) && cmp.Equal(step.wantAnnotations, subset(pod.Annotations, notes...))
		})
	}
	// The VMI's node, labels of step one, those of step two.
	if n := w.writes(false)["patch pods"] + w.writes(false)["patch pods/status"]; n != 3 {
		w.t.Errorf("the Pod was written %d times, want 3: %v", n, w.writes(false))
	}
}

// evicted: the Pod is marked for the client that evicts it.
func evicted(w *world) {
	w.start(onlyWatches)
	g := w.running("guest")
	w.await(g, "Ready", func() bool { return condition(g, v1.VirtualMachineInstanceReady).Status == corev1.ConditionTrue })
	pod := w.awaitPods(1)[0]
	requested := func() corev1.ConditionStatus { return condition(g, v1.VirtualMachineInstanceEvictionRequested).Status }
	w.change(g, func(g *v1.VirtualMachineInstance) { g.Status.EvacuationNodeName = g.Status.NodeName })
	w.await(g, "EvictionRequested", func() bool { return requested() == corev1.ConditionTrue })
	w.awaitPod(&pod, evicting, func() bool { return pod.Annotations[evicting] == "true" })
	w.change(g, func(g *v1.VirtualMachineInstance) { g.Status.EvacuationNodeName = "" })
	w.await(g, "no EvictionRequested", func() bool { return requested() == "" })
	w.awaitPod(&pod, "no "+evicting, func() bool { _, has := pod.Annotations[evicting]; return !has })
}

// bare renders Pods without device requests: simulated nodes have no devices.
type bare struct{ vmictrl.Renderer }

func (b bare) Launcher(in template.Input) (*corev1.Pod, error) {
	pod, err := b.Renderer.Launcher(in)
	if err == nil {
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Resources = corev1.ResourceRequirements{}
		}
	}
	return pod, err
}

// addressed: no two VMIs have the same CID, whichever controller assigned it.
func addressed(w *world) {
	onDevices := setup{edit: func(r *vmictrl.Reconciler) { r.Renderer = bare{template.Default()}; r.NeverRetry() }}
	vsock := func(g *v1.VirtualMachineInstance) { g.Spec.Domain.Devices.AutoattachVSOCK = ptr.To(true) }
	w.configure(gates("VSOCK"))
	stop := w.start(onDevices)
	all := map[uint32]string{}
	stored := func(name string) uint32 {
		w.t.Helper()
		g := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
		w.awaitPhase(g, v1.Scheduled)
		cid := ptr.Deref(g.Status.VSOCKCID, 0)
		if other, taken := all[cid]; cid < 3 || taken && other != name {
			w.t.Errorf("the address of %s is %d, as that of %q", name, cid, other)
		}
		all[cid] = name
		return cid
	}
	w.guest("first", vsock)
	w.guest("second", vsock)
	first := stored("first")
	stored("second")
	stop()

	w.start(setup{edit: func(r *vmictrl.Reconciler) {
		onDevices.edit(r)
		r.CIDs = vmi.NewCIDs(func() uint32 { return first - 3 }) // start of the search
	}})
	w.guest("third", vsock)
	stored("third")
	if again := stored("first"); again != first {
		w.t.Errorf("the address of first was %d and is %d", first, again)
	}
	if _, next := all[first+1]; !next && first != 1<<32-2 {
		w.t.Errorf("the allocator was not asked: %v", all)
	}
}

// backups: the cluster's configuration decides about the Pod's backup annotations.
func backups(w *world) {
	w.start(onlyWatches)
	g := w.running("guest")
	w.await(g, "Ready", func() bool { return condition(g, v1.VirtualMachineInstanceReady).Status == corev1.ConditionTrue })
	pod := w.awaitPods(1)[0]
	has := func(want bool) func() bool {
		return func() bool { _, is := pod.Annotations[backupHook]; return is == want }
	}
	w.awaitPod(&pod, "hooks by default", has(true))
	skip := func(value string) func(*v1.KubeVirt) {
		return func(kv *v1.KubeVirt) {
			metav1.SetMetaDataAnnotation(&kv.ObjectMeta, "kubevirt.io/skip-backup-hooks", value)
		}
	}
	w.configure(skip("true"))
	w.awaitPod(&pod, "no hooks", has(false))
	w.configure(skip("false"))
	w.awaitPod(&pod, "hooks", has(true))
	w.configure(skip("true"))
	w.awaitPod(&pod, "no hooks again", has(false))
	w.unconfigure()
	w.awaitPod(&pod, "hooks without a configuration", has(true))
}

func (w *world) unconfigure() {
	w.t.Helper()
	w.delete(&v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "kubevirt"}})
}

// clocked: changes of TSC frequencies wake the VMIs that require one.
func clocked(w *world) {
	const label = "cpu-timer.node.kubevirt.io/tsc-frequency"
	w.start(onlyWatches)
	timed := func(name string) *v1.VirtualMachineInstance {
		w.t.Helper()
		g := w.guest(name, unplaceable, func(g *v1.VirtualMachineInstance) {
			g.Spec.Domain.CPU = &v1.CPU{Features: []v1.CPUFeature{{Name: "invtsc", Policy: "require"}}}
		})
		w.awaitTrouble(g, vmi.ReasonFailedTopologyHints, label, "minimumClusterTSCFrequency")
		return g
	}
	counts := func(g *v1.VirtualMachineInstance, on int64) {
		w.t.Helper()
		w.awaitPhase(g, v1.Scheduling)
		if h := g.Status.TopologyHints; h == nil || ptr.Deref(h.TSCFrequency, 0) != on {
			w.t.Errorf("guest %s counts on %+v, want %d", g.Name, h, on)
		}
	}
	first := timed("first")
	w.configure(func(kv *v1.KubeVirt) {
		kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{MinimumClusterTSCFrequency: ptr.To[int64](1000)}
	})
	counts(first, 1000)
	w.unconfigure()

	second := timed("second")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-of-" + w.ns, Labels: map[string]string{v1.NodeSchedulable: "true"}}}
	w.clusterObject(node)
	if c := condition(second, v1.VirtualMachineInstanceSynchronized); c.Reason != vmi.ReasonFailedTopologyHints {
		w.t.Errorf("Synchronized is %+v", c)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"2000"}}}`, label)
	if err := w.Patch(w.t.Context(), node, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		w.t.Fatal(err)
	}
	counts(second, 2000)
	w.onePodEach(2)
}

// gates switches feature gates on.
func gates(names ...string) func(*v1.KubeVirt) {
	return func(kv *v1.KubeVirt) {
		kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{FeatureGates: names}
	}
}

// gateOpened: a feature gate wakes the VMI that needs it.
func gateOpened(w *world) {
	w.start(onlyWatches)
	g := w.guest("guest", unplaceable, func(g *v1.VirtualMachineInstance) {
		g.Spec.Domain.Devices.Filesystems = []v1.Filesystem{{Name: "share", Virtiofs: &v1.FilesystemVirtiofs{}}}
		g.Spec.Volumes = []v1.Volume{{Name: "share", VolumeSource: v1.VolumeSource{ContainerPath: &v1.ContainerPathVolumeSource{Path: "/var/run/kubevirt"}}}}
	})
	w.awaitTrouble(g, vmi.ReasonContainerPathVolumesDisabled, "ContainerPathVolumes")
	w.configure(gates("ContainerPathVolumes"))
	w.awaitPhase(g, v1.Scheduling)
	w.onePodEach(1)
}

// classAwaited: first the configuration names no class, then one that does not exist.
func classAwaited(w *world) {
	w.start(onlyWatches)
	g := w.guest("guest", withTPM)
	w.awaitTrouble(g, vmi.ReasonBackendStorageCreate, "no default StorageClass")
	class := w.ns + "-immediate"
	w.configure(stateClass(class))
	w.awaitTrouble(g, vmi.ReasonBackendStorageCreate, "StorageClass "+class, "does not exist")
	w.volume(class, vmi.StateClaimName(g))
	w.class(storagev1.VolumeBindingImmediate)
	w.awaitPhase(g, v1.Scheduled)
	w.onePodEach(1)
}

// movedBefore: a VMI with an active migration waits for its end.
func movedBefore(w *world) {
	m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "move"},
		Spec: v1.VirtualMachineInstanceMigrationSpec{VMIName: "guest"}}
	w.create(m)
	phase := func(p v1.VirtualMachineInstanceMigrationPhase) {
		w.t.Helper()
		m.Status.Phase = p
		if err := w.Status().Update(w.t.Context(), m); err != nil {
			w.t.Fatal(err)
		}
	}
	phase(v1.MigrationRunning)
	w.start(onlyWatches)
	g := w.guest("guest")
	w.awaitTrouble(g, vmi.ReasonFailedCreate, "move", string(v1.MigrationRunning))
	phase(v1.MigrationFailed)
	w.awaitPhase(g, v1.Scheduled)
	if l := w.lease(g); l.State != handoff.Offered {
		w.t.Errorf("the lease is %+v", l)
	}
	w.onePodEach(1)
}
