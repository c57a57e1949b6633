// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/virtloom/virtloom/handoff"
)

// beatAt returns a heartbeat.
func beatAt(at time.Time) string { return at.UTC().Format(time.RFC3339) }

// sceneNode returns node-1 with a heartbeat: KubeVirt's if ours is empty.
func sceneNode(beat, ours string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "node-uid", Labels: map[string]string{v1.NodeSchedulable: "true"}}}
	n.Annotations = map[string]string{}
	if beat != "" {
		n.Annotations[v1.VirtHandlerHeartbeat] = beat
	}
	if ours != "" {
		n.Annotations[handoff.HeartbeatAnnotation] = ours
	}
	return n
}

// withLease sets a lease on the VMI.
func withLease(t *testing.T, l handoff.Lease) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		t.Helper()
		if err := handoff.Put(g, l); err != nil {
			t.Fatal(err)
		}
	}
}

func offered(t *testing.T) func(*v1.VirtualMachineInstance) {
	deadline := metav1.NewTime(postponeEpoch.Add(5 * time.Minute))
	return withLease(t, handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: "node-1", Deadline: &deadline})
}

func lost(t *testing.T) func(*v1.VirtualMachineInstance) {
	t.Helper()
	owned := handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-1"}
	l, _, err := handoff.Step(owned, handoff.Event{Kind: handoff.Suspect, Node: "node-1", Epoch: 1}, postponeEpoch.Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return withLease(t, l)
}

// alive lets the node send heartbeats, by one or the other agent, while time passes.
func (s *scene) alive(t *testing.T, during time.Duration, ours bool) {
	t.Helper()
	for end := s.clock.Now().Add(during); s.clock.Now().Before(end); {
		n := &corev1.Node{}
		if err := s.Get(t.Context(), client.ObjectKey{Name: "node-1"}, n); err != nil {
			t.Fatal(err)
		}
		n.Annotations[v1.VirtHandlerHeartbeat] = beatAt(s.clock.Now())
		if ours {
			n.Annotations[handoff.HeartbeatAnnotation] = n.Annotations[v1.VirtHandlerHeartbeat]
		}
		if err := s.Update(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		s.pass(t)
		s.clock.SetTime(s.clock.Now().Add(time.Minute))
	}
	s.pass(t)
}

// pass makes two passes, as the first write is another event.
func (s *scene) pass(t *testing.T) {
	t.Helper()
	for range 2 {
		if _, err := s.r.Reconcile(t.Context(), request(sceneGuest.Namespace, sceneGuest.Name)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestScheduled_OfferToStockNodeStays(t *testing.T) {
	for name, test := range map[string]struct {
		node *corev1.Node
		ours bool
		want v1.VirtualMachineInstancePhase
	}{
		"our agent reports":                 {sceneNode(beatAt(postponeEpoch), beatAt(postponeEpoch)), true, v1.Failed},
		"KubeVirt's agent reports":          {sceneNode(beatAt(postponeEpoch), ""), false, v1.Scheduled},
		"ours has, and KubeVirt's does now": {sceneNode(beatAt(postponeEpoch), beatAt(postponeEpoch.Add(-time.Hour))), false, v1.Scheduled},
	} {
		t.Run(name, func(t *testing.T) {
			g := sceneVMI(v1.Scheduled, offered(t))
			s := newScene(t, interceptor.Funcs{}, g, scenePod(g), test.node)
			s.alive(t, 20*time.Minute, test.ours)
			if got := s.guest(t).Status.Phase; got != test.want {
				t.Errorf("phase %s, want %s", got, test.want)
			}
		})
	}
}

// In the cache virtloom's agent still reports; in the API server KubeVirt's does.
func TestScheduled_OfferStaysIfOnlyCacheIsOverdue(t *testing.T) {
	g := sceneVMI(v1.Scheduled, offered(t))
	s := newScene(t, interceptor.Funcs{}, g, scenePod(g), sceneNode(beatAt(postponeEpoch), beatAt(postponeEpoch)))
	live := newScene(t, interceptor.Funcs{}, g.DeepCopy(), scenePod(g), sceneNode(beatAt(postponeEpoch.Add(time.Minute)), beatAt(postponeEpoch)))
	s.r.APIReader = live.Client
	s.pass(t)
	s.clock.SetTime(postponeEpoch.Add(6 * time.Minute))
	s.pass(t)
	if got := s.guest(t).Status.Phase; got != v1.Scheduled {
		t.Errorf("phase %s, want %s", got, v1.Scheduled)
	}
}

func TestRunning_StockNodeGone(t *testing.T) {
	for name, test := range map[string]struct {
		edit func(*corev1.Pod)
		want v1.VirtualMachineInstancePhase
	}{
		"its Pod may live": {func(*corev1.Pod) {}, v1.Running},
		"its Pod is terminating": {func(p *corev1.Pod) {
			p.Finalizers, p.DeletionTimestamp = []string{"test/stay"}, new(metav1.NewTime(postponeEpoch))
		}, v1.Running},
		"its Pod has failed": {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, v1.Failed},
		"its compute has ended": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
		}, v1.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			g := sceneVMI(v1.Running)
			p := scenePod(g)
			test.edit(p)
			s := newScene(t, interceptor.Funcs{}, g, p, sceneNode(beatAt(postponeEpoch), ""))
			s.alive(t, 2*time.Minute, false)
			if got := s.guest(t).Status.Phase; got != v1.Running {
				t.Fatalf("phase %s while the node is alive", got)
			}
			s.clock.SetTime(s.clock.Now().Add(6 * time.Minute))
			s.pass(t)
			got := s.guest(t)
			if got.Status.Phase != test.want || test.want == v1.Failed && got.Status.Reason != "NodeUnresponsive" {
				t.Errorf("phase %s, reason %q; want %s", got.Status.Phase, got.Status.Reason, test.want)
			}
		})
	}
}

func TestDelete_PodOfStockNodeKeepsGracePeriod(t *testing.T) {
	for name, test := range map[string]struct {
		node *corev1.Node
		with []func(*v1.VirtualMachineInstance)
		own  bool
	}{
		"a stock controller's offer":         {sceneNode(beatAt(postponeEpoch), ""), nil, true},
		"our offer to a stock node":          {sceneNode(beatAt(postponeEpoch), ""), []func(*v1.VirtualMachineInstance){offered(t)}, true},
		"our offer to a node with our agent": {sceneNode(beatAt(postponeEpoch), beatAt(postponeEpoch)), []func(*v1.VirtualMachineInstance){offered(t)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := sceneVMI(v1.Scheduled, append(test.with, deleted)...)
			var asked []*int64
			s := newScene(t, interceptor.Funcs{Delete: func(_ context.Context, _ client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
				if _, is := o.(*corev1.Pod); is {
					asked = append(asked, (&client.DeleteOptions{}).ApplyOptions(opts).GracePeriodSeconds)
				}
				return nil
			}}, g, scenePod(g), test.node)
			if _, err := s.r.Reconcile(t.Context(), request("ns", "web")); err != nil {
				t.Fatal(err)
			}
			if len(asked) != 1 || (asked[0] == nil) != test.own {
				t.Errorf("deleted with grace %v; want the Pod's own: %v", asked, test.own)
			}
		})
	}
}

func TestNodes_UnresponsiveNodeIsUnschedulable(t *testing.T) {
	for name, test := range map[string]struct {
		beat string
		// waits are time steps, each followed by a pass over the node.
		waits []time.Duration
		beats bool
		want  string
	}{
		"silent":                           {beatAt(postponeEpoch), []time.Duration{0, closeAfter}, false, "false"},
		"not silent for long":              {beatAt(postponeEpoch), []time.Duration{0, closeAfter - time.Second}, false, "true"},
		"alive":                            {beatAt(postponeEpoch), []time.Duration{0, 2 * time.Minute, 2 * time.Minute, 2 * time.Minute}, true, "true"},
		"silent since before this began":   {beatAt(postponeEpoch.Add(-time.Hour)), []time.Duration{0}, false, "false"},
		"its clock is a little behind":     {beatAt(postponeEpoch.Add(-4 * time.Minute)), []time.Duration{0}, false, "true"},
		"never reported":                   {"", []time.Duration{0, time.Hour}, false, "true"},
		"reported what is no time, silent": {"soon", []time.Duration{0, closeAfter}, false, "false"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, interceptor.Funcs{}, sceneNode(test.beat, ""))
			s.r.nodes.closes, s.r.nodes.recorder = closeAfter, s.recorder
			node := &corev1.Node{}
			for _, wait := range test.waits {
				s.clock.SetTime(s.clock.Now().Add(wait))
				if err := s.Get(t.Context(), client.ObjectKey{Name: "node-1"}, node); err != nil {
					t.Fatal(err)
				}
				if test.beats {
					node.Annotations[v1.VirtHandlerHeartbeat] = beatAt(s.clock.Now())
					if err := s.Update(t.Context(), node); err != nil {
						t.Fatal(err)
					}
				}
				result, err := s.r.nodes.Reconcile(t.Context(), request("", "node-1"))
				if err != nil {
					t.Fatal(err)
				}
				if node.Annotations[v1.VirtHandlerHeartbeat] != "" && result.RequeueAfter > s.r.nodes.after {
					t.Errorf("looked at again after %s", result.RequeueAfter)
				}
			}
			if err := s.Get(t.Context(), client.ObjectKey{Name: "node-1"}, node); err != nil {
				t.Fatal(err)
			}
			if got := node.Labels[v1.NodeSchedulable]; got != test.want || (len(s.events()) == 1) != (test.want == "false") {
				t.Errorf("schedulable is %s, want %s, and an event if it was changed", got, test.want)
			}
		})
	}
}

// A heartbeat that arrives while the node is being marked unschedulable wins.
func TestNodes_ConcurrentHeartbeat(t *testing.T) {
	var s *scene
	s = newScene(t, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
		n := &corev1.Node{}
		if err := c.Get(ctx, client.ObjectKey{Name: "node-1"}, n); err != nil {
			return err
		}
		n.Annotations[v1.VirtHandlerHeartbeat] = beatAt(s.clock.Now())
		if err := c.Update(ctx, n); err != nil {
			return err
		}
		return c.Patch(ctx, o, p, opts...)
	}}, sceneNode(beatAt(postponeEpoch.Add(-time.Hour)), ""))
	s.r.nodes.closes = closeAfter
	if _, err := s.r.nodes.Reconcile(t.Context(), request("", "node-1")); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
}

func TestEvidence_NodeGoneFromAPIServer(t *testing.T) {
	for name, test := range map[string]struct {
		read error
		node bool
		want v1.VirtualMachineInstancePhase
		err  bool
	}{
		"it does not exist":                    {want: v1.Failed},
		"it exists, and the cache has lost it": {node: true, want: v1.Running},
		"the server cannot be read":            {read: errors.New("connection refused"), want: v1.Running, err: true},
		"the server may not be read":           {read: apierrors.NewForbidden(corev1.Resource("nodes"), "node-1", errors.New("no")), want: v1.Running, err: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := sceneVMI(v1.Running, lost(t))
			s := newScene(t, interceptor.Funcs{}, g, scenePod(g))
			var there []client.Object
			if test.node {
				there = append(there, sceneNode(beatAt(postponeEpoch), beatAt(postponeEpoch)))
			}
			live := newScene(t, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if test.read != nil {
					return test.read
				}
				return c.Get(ctx, key, o, opts...)
			}}, there...)
			s.r.APIReader = live.Client
			for range 2 { // the first pass observes the node; a failure shows in the last pass as well
				_, _ = s.r.Reconcile(t.Context(), request("ns", "web"))
				s.clock.SetTime(s.clock.Now().Add(time.Hour))
			}
			_, err := s.r.Reconcile(t.Context(), request("ns", "web"))
			if got := s.guest(t).Status.Phase; got != test.want || (err != nil) != test.err {
				t.Errorf("phase %s, error %v; want %s", got, err, test.want)
			}
		})
	}
}

func TestFence_OutOfServiceTaint(t *testing.T) {
	taint := corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}
	for name, test := range map[string]struct {
		taints []corev1.Taint
		ready  corev1.ConditionStatus
		read   error
		want   v1.VirtualMachineInstancePhase
	}{
		"tainted":                   {[]corev1.Taint{taint}, corev1.ConditionUnknown, nil, v1.Failed},
		"tainted, and ready":        {[]corev1.Taint{taint}, corev1.ConditionTrue, nil, v1.Running},
		"another taint":             {[]corev1.Taint{{Key: corev1.TaintNodeUnreachable}}, corev1.ConditionUnknown, nil, v1.Running},
		"no taint":                  {nil, corev1.ConditionUnknown, nil, v1.Running},
		"the server cannot be read": {[]corev1.Taint{taint}, corev1.ConditionUnknown, errors.New("connection refused"), v1.Running},
	} {
		t.Run(name, func(t *testing.T) {
			g := sceneVMI(v1.Running, lost(t))
			n := sceneNode(beatAt(postponeEpoch), beatAt(postponeEpoch))
			n.Spec.Taints, n.Status.Conditions = test.taints, []corev1.NodeCondition{{Type: corev1.NodeReady, Status: test.ready}}
			s := newScene(t, interceptor.Funcs{}, g, scenePod(g), n)
			live := newScene(t, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if test.read != nil {
					return test.read
				}
				return c.Get(ctx, key, o, opts...)
			}}, n.DeepCopy())
			s.r.Fencer = OutOfService{Reader: live.Client}
			s.pass(t)
			s.clock.SetTime(s.clock.Now().Add(time.Hour))
			s.pass(t)
			if got := s.guest(t).Status.Phase; got != test.want {
				t.Errorf("phase %s, want %s", got, test.want)
			}
		})
	}
}

// A Pod with the launcher Pod's name is adopted only if the VMI controls it.
func TestAdopt_PodOfAnotherOwner(t *testing.T) {
	for name, owned := range map[string]bool{"its own": true, "another's": false} {
		t.Run(name, func(t *testing.T) {
			g := sceneVMI(v1.Pending)
			p := scenePod(g)
			if !owned {
				p.OwnerReferences[0].UID = "another-uid"
			}
			s := newScene(t, interceptor.Funcs{}, g, p)
			made := &gathered{}
			made.VMI, made.input.VMI = g, g
			made.owner.Key = sceneGuest
			want := p.DeepCopy()
			want.OwnerReferences = scenePod(g).OwnerReferences
			err := actor{s.r}.adopt(t.Context(), made, want)
			if (err == nil) != owned || (len(made.Pods) == 1) != owned {
				t.Errorf("error %v, %d Pods; want it taken: %v", err, len(made.Pods), owned)
			}
		})
	}
}

// After the handoff the condition belongs to the node agent, so the problem is reported in an event.
func TestRunning_MissingVirtiofsContainer(t *testing.T) {
	for _, phase := range []v1.VirtualMachineInstancePhase{v1.Scheduled, v1.Running} {
		t.Run(string(phase), func(t *testing.T) {
			g := sceneVMI(phase, func(g *v1.VirtualMachineInstance) {
				g.Spec.Domain.Devices.Filesystems = []v1.Filesystem{{Name: "tools", Virtiofs: &v1.FilesystemVirtiofs{}}}
				g.Spec.Volumes = []v1.Volume{{Name: "tools", VolumeSource: v1.VolumeSource{ContainerPath: &v1.ContainerPathVolumeSource{Path: "/opt/tools"}}}}
			})
			s := newScene(t, interceptor.Funcs{}, g, scenePod(g), sceneNode(beatAt(postponeEpoch), ""))
			s.alive(t, 5*time.Minute, false)
			var emitted int
			for _, e := range s.events() {
				if strings.Contains(e, "Warning MissingVirtiofsContainers") && strings.Contains(e, "virtiofs-tools") {
					emitted++
				}
			}
			if emitted != 1 {
				t.Errorf("%d events, want one", emitted)
			}
		})
	}
}
