// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

func TestController(t *testing.T) {
	c := newCluster(t)
	for name, test := range map[string]func(*world){
		"a guest comes to its node in one Pod":                started,
		"a start costs few writes":                            frugal,
		"the readiness gate follows a pause":                  paused,
		"a guest without room waits for its quota":            quotaRefused,
		"Pod security is explained and awaited":               securityRefused,
		"a name that is taken is explained and awaited":       nameTaken,
		"a missing claim is reported once and awaited":        claimMissing,
		"what cannot be rendered waits for the configuration": unrenderable,
		"a missing ConfigMap is looked for again":             configMapMissing,
		"a claim of the guest's state is awaited":             stateMissing,
		"a Pod that vanishes before the hand-over":            vanishedEarly,
		"a Pod that vanishes under a running guest":           vanishedLate,
		"a Pod that outlives its guest":                       outlived,
		"an offer nobody takes":                               unaccepted,
		"deleted while waiting":                               deletedPending,
		"deleted while being placed":                          deletedScheduling,
		"deleted while offered":                               deletedScheduled,
		"deleted while running":                               deletedRunning,
		"deleted after its end":                               deletedFinal,
		"killed after each write of a start":                  killedStarting,
		"killed after each write of a deletion":               killedDeleting,
		"killed at each write of a plugging":                  killedPlugging,
		"killed at each write of an unplugging":               killedUnplugging,
		"killed at each write of an eviction":                 killedEvicting,
		"killed at each write of an eviction's end":           killedKeeping,
		"two shards":                                                 sharded,
		"guests with a label":                                        selected,
		"guests of a namespace":                                      elsewhere,
		"a Pod that vanishes unseen":                                 forgotten,
		"a cache of guests that catches up in between":               outdatedBetween,
		"a cache of Pods that lags behind a creation":                heldBack,
		"a cache of Pods that lags behind a move":                    overtaken,
		"a cache of guests that lags behind a write":                 outdated,
		"another writer who never rests":                             storm,
		"deleted and created again under the same name":              recreated,
		"two controllers at once":                                    rivals,
		"a silent node that is gone":                                 silentNodeGone,
		"a silent node that is fenced":                               silentNodeFenced,
		"a silent node that is tainted":                              silentNodeTainted,
		"a silent node takes no guests":                              silentNodeClosed,
		"a silent node that returns":                                 silentNodeBack,
		"a node that falls silent wakes its guests":                  silentNodeWakes,
		"32, 34: the claim of the guest's state is made and awaited": stateBound,
		"35: state that is lost is reported":                         stateLost,
		"a claim that grows is reported":                             claimGrows,
		"80: a VirtualMachine keeps its finalizer":                   machineGone,
		"127: a StorageClass is awaited":                             classAwaited,
		"89, 92: a volume is plugged and unplugged":                  plugged,
		"100: volumes in a row are plugged at once":                  pluggedInARow,
		"a plugged volume waits for its claim and holds none up":     unbound,
		"62: labels and annotations are followed":                    synced,
		"64: an eviction is reported, then no longer":                evicted,
		"50: addresses on VSOCK":                                     addressed,
		"backup hooks follow the configuration":                      backups,
		"14: a clock is awaited":                                     clocked,
		"a feature gate is awaited":                                  gateOpened,
		"10: a migration is awaited":                                 movedBefore,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(c.world(t))
		})
	}
}

func started(w *world) {
	w.start(setup{})
	g := w.guest("guest")
	w.awaitPhase(g, v1.Scheduled)

	pod := w.awaitPods(1)[0]
	if pod.Name != template.LauncherName(g) || !metav1.IsControlledBy(&pod, g) {
		w.t.Errorf("Pod %s of %v, want %s of the guest", pod.Name, pod.OwnerReferences, template.LauncherName(g))
	}
	if !slices.Contains(g.Finalizers, v1.VirtualMachineInstanceFinalizer) {
		w.t.Errorf("finalizers %v", g.Finalizers)
	}
	node := pod.Spec.NodeName
	if g.Labels[v1.NodeNameLabel] != node || g.Status.NodeName != node || node == "" {
		w.t.Errorf("label %q, nodeName %q; the Pod is on %q", g.Labels[v1.NodeNameLabel], g.Status.NodeName, node)
	}
	if diff := cmp.Diff(map[types.UID]string{pod.UID: node}, g.Status.ActivePods); diff != "" {
		w.t.Errorf("activePods (-want +got):\n%s", diff)
	}
	l := w.lease(g)
	if l.State != handoff.Offered || l.Holder != node || l.Epoch != 1 || l.Deadline == nil {
		w.t.Errorf("the lease is %+v", l)
	}
	if c := condition(g, v1.VirtualMachineInstanceReady); c.Status != corev1.ConditionFalse || c.Reason != "GuestNotRunning" {
		w.t.Errorf("Ready is %+v", c)
	}
	if c := condition(g, v1.VirtualMachineInstanceSynchronized); c.Type != "" {
		w.t.Errorf("there is a condition %+v", c)
	}
	var phases []v1.VirtualMachineInstancePhase
	for _, p := range g.Status.PhaseTransitionTimestamps {
		phases = append(phases, p.Phase)
	}
	if diff := cmp.Diff([]v1.VirtualMachineInstancePhase{v1.Pending, v1.Scheduling, v1.Scheduled}, phases); diff != "" {
		w.t.Errorf("phases (-want +got):\n%s", diff)
	}

	w.node(g, handoff.Accept, v1.Running)
	w.await(g, "Ready", func() bool { return condition(g, v1.VirtualMachineInstanceReady).Status == corev1.ConditionTrue })
	w.onePodEach(1)
}

// frugal counts the writes of a start; KubeVirt's controller makes seven requests.
func frugal(w *world) {
	w.start(setup{})
	g := w.guest("guest", func(g *v1.VirtualMachineInstance) {
		// As KubeVirt's webhook leaves it.
		g.Finalizers, g.Status.Phase = []string{v1.VirtualMachineInstanceFinalizer}, v1.Pending
	})
	w.awaitPhase(g, v1.Scheduled)
	// The event is written asynchronously, and so may the gate.
	w.eventually(func() string {
		if done := w.writes(false); done["create events"] == 0 || done["patch pods/status"] == 0 {
			return fmt.Sprint(done)
		}
		return ""
	})
	done := w.writes(false)
	refused := w.writes(true)
	w.t.Logf("writes of one start: %v, refused: %v", done, refused)
	if len(refused) > 0 {
		w.t.Errorf("nobody else writes, and yet refused were %v", refused)
	}
	want := map[string]int{"patch virtualmachineinstances": 2, "create pods": 1, "patch pods/status": 1, "create events": 1}
	if diff := cmp.Diff(want, done); diff != "" {
		w.t.Errorf("writes (-want +got):\n%s", diff)
	}
}

func paused(w *world) {
	w.start(setup{})
	g := w.running("guest")
	gate := func(want corev1.ConditionStatus) {
		w.t.Helper()
		w.eventually(func() string {
			for _, c := range w.awaitPods(1)[0].Status.Conditions {
				if c.Type == v1.VirtualMachineUnpaused && c.Status == want {
					return ""
				}
			}
			return "the readiness gate is not " + string(want)
		})
	}
	gate(corev1.ConditionTrue)
	w.change(g, func(g *v1.VirtualMachineInstance) {
		g.Status.Conditions = append(g.Status.Conditions, v1.VirtualMachineInstanceCondition{
			Type: v1.VirtualMachineInstancePaused, Status: corev1.ConditionTrue, Reason: "PausedByUser"})
	})
	gate(corev1.ConditionFalse)
	w.await(g, "not Ready", func() bool { return condition(g, v1.VirtualMachineInstanceReady).Status == corev1.ConditionFalse })
	w.change(g, func(g *v1.VirtualMachineInstance) {
		g.Status.Conditions = slices.DeleteFunc(g.Status.Conditions, func(c v1.VirtualMachineInstanceCondition) bool {
			return c.Type == v1.VirtualMachineInstancePaused
		})
	})
	gate(corev1.ConditionTrue)
	w.await(g, "Ready", func() bool { return condition(g, v1.VirtualMachineInstanceReady).Status == corev1.ConditionTrue })
	if n := w.writes(false)["patch pods/status"]; n != 3 {
		w.t.Errorf("the gate was written %d times, want 3", n)
	}
}

// unaccepted has no node agent: the VMI must not wait forever.
func unaccepted(w *world) {
	w.start(setup{edit: func(r *vmictrl.Reconciler) { r.Config = vmi.Config{AcceptWithin: 2 * time.Second} }})
	g := w.guest("guest")
	w.await(g, "the end", func() bool { return g.Status.Phase == v1.Failed && len(g.Finalizers) == 0 })
	if l := w.lease(g); l.State != handoff.Released || g.Status.Reason != vmi.ReasonNodeUnresponsive {
		w.t.Errorf("the lease is %+v, status.reason %q", l, g.Status.Reason)
	}
	if c := condition(g, v1.VirtualMachineInstanceSynchronized); c.Reason != vmi.ReasonNodeUnresponsive {
		w.t.Errorf("Synchronized is %+v", c)
	}
	w.awaitPods(0)
	w.onePodEach(1)
}

func TestReconciler_MissingFields(t *testing.T) {
	err := (&vmictrl.Reconciler{}).SetupWithManager(t.Context(), nil)
	want := "vmictrl: Reconciler.Client is required\nvmictrl: Reconciler.APIReader is required\nvmictrl: Reconciler.LauncherImage is required"
	if err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}
