// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/fleet"
	"github.com/virtloom/virtloom/domain/informer"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/workspace"
	"github.com/virtloom/virtloom/handoff"
)

// launcherPod is a Pod of the VMI on node-a in a phase, with its container in a state.
func launcherPod(phase corev1.PodPhase, state corev1.ContainerState, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "virt-launcher-guest", UID: "pod-1"},
		Spec:       corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "compute"}}},
		Status: corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "compute", State: state},
		}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// unseenBy is a reconciler whose connector finds no launcher, in a cluster with these Pods.
func unseenBy(t *testing.T, pods ...client.Object) *Reconciler {
	t.Helper()
	byNode := func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }
	r := &Reconciler{
		NodeName: "node-a", Hypervisor: &fleet.Fleet{}, Informer: &informer.Informer{}, Clock: clock.RealClock{}, CallTimeout: time.Minute,
		Connector: failing{fmt.Errorf("no launcher's socket in pod pod-1 yet: %w", domain.ErrNotReady)},
		Workspace: &workspace.Workspace{Root: t.TempDir()}, Caches: &Caches{Pods: &informertest.FakeInformers{}},
		APIReader: fake.NewClientBuilder().WithObjects(pods...).WithIndex(&corev1.Pod{}, "spec.nodeName", byNode).Build(),
	}
	r.migrations, r.agents = newMigrations(r.Clock, time.Minute), newAgents(r.Hypervisor, r.Informer)
	return r
}

// TestDomainGone_LauncherNotFound has agents for which the folder of the launcher Pod does not
// exist, or has no socket: a wrong folder of Pods, one that is not mounted, or a launcher that has
// ended.
func TestDomainGone_LauncherNotFound(t *testing.T) {
	running, terminated := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	owned := func(p *corev1.Pod) {
		p.UID = "pod-2"
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "guest", UID: "uid-1", Controller: ptr.To(true)}}
	}
	elsewhere := func(p *corev1.Pod) { p.Spec.NodeName = "node-b" }
	here := handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-a"}
	comes := handoff.Lease{State: handoff.Moving, Epoch: 2, Holder: "node-b", Target: "node-a", Tag: "migration-1", Stalled: true}
	for name, tt := range map[string]struct {
		pod     *corev1.Pod
		lease   handoff.Lease
		deleted bool
		gone    bool
	}{
		"its Pod runs":                            {pod: launcherPod(corev1.PodRunning, running), lease: here},
		"its Pod runs and it is being deleted":    {pod: launcherPod(corev1.PodRunning, running), lease: here, deleted: true},
		"a Pod that it owns runs":                 {pod: launcherPod(corev1.PodRunning, running, owned), lease: here},
		"nothing is known of the container":       {pod: launcherPod(corev1.PodRunning, corev1.ContainerState{}), lease: here},
		"somebody wrote that the Pod has failed":  {pod: launcherPod(corev1.PodFailed, running), lease: here},
		"it is about to end":                      {pod: launcherPod(corev1.PodRunning, running), lease: handoff.Lease{State: handoff.Releasing, Epoch: 1, Holder: "node-a"}},
		"it moves here and only its target knows": {pod: launcherPod(corev1.PodRunning, running), lease: comes},
		"its container has ended":                 {pod: launcherPod(corev1.PodRunning, terminated), lease: here, gone: true},
		"its Pod has ended before it ran":         {pod: launcherPod(corev1.PodFailed, corev1.ContainerState{}), lease: here, gone: true},
		"there is no such Pod":                    {lease: here, gone: true},
		"its Pod is on another node":              {pod: launcherPod(corev1.PodRunning, running, elsewhere), lease: here, gone: true},
		"its target's Pod has ended":              {pod: launcherPod(corev1.PodFailed, terminated), lease: comes, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-1"},
				Status:     v1.VirtualMachineInstanceStatus{Phase: v1.Running, ActivePods: map[types.UID]string{"pod-1": "node-a"}},
			}
			if tt.deleted {
				vmi.DeletionTimestamp = ptr.To(metav1.Now())
			}
			if err := handoff.Put(vmi, tt.lease); err != nil {
				t.Fatal(err)
			}
			var pods []client.Object
			if tt.pod != nil {
				pods = append(pods, tt.pod)
			}
			s, err := unseenBy(t, pods...).snapshot(t.Context(), client.ObjectKeyFromObject(vmi), vmi)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := plan.Decide(s, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			after, err := handoff.Of(plan.VMI)
			if err != nil {
				t.Fatal(err)
			}
			if tt.gone {
				if after.State == tt.lease.State {
					t.Errorf("the lease remains %+v", after)
				}
				return
			}
			if len(plan.Actions) > 0 || plan.VMI.Status.Phase != v1.Running || after.State == handoff.Released || after.Epoch != tt.lease.Epoch || after.Holder != tt.lease.Holder {
				t.Errorf("lease %+v, phase %s, tasks %v", after, plan.VMI.Status.Phase, plan.Actions)
			}
			if plan.RequeueAt == nil {
				t.Error("the guest is not looked at again")
			}
			if says := outOfSync(plan.VMI); tt.lease.Holder == "node-a" && (!strings.Contains(says, "pod-") || !strings.Contains(says, "--launchers")) {
				t.Errorf("the condition says %q", says)
			}
		})
	}
}

// TestDomainGone_ObjectDeleted: the files of a deleted VMI stay for as long as a Pod of it may use
// them.
func TestDomainGone_ObjectDeleted(t *testing.T) {
	key := types.NamespacedName{Namespace: "ns", Name: "guest"}
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "uid-1"}}
	for state, cleared := range map[corev1.ContainerState]bool{
		{Running: &corev1.ContainerStateRunning{}}:       false,
		{Terminated: &corev1.ContainerStateTerminated{}}: true,
	} {
		r := unseenBy(t, launcherPod(corev1.PodRunning, state, func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: vmi.Name, UID: vmi.UID, Controller: ptr.To(true)}}
		}))
		if _, err := r.Workspace.Prepare(t.Context(), vmi, domain.Host{Arch: "x86_64", KVM: true}); err != nil {
			t.Fatal(err)
		}
		s, err := r.snapshot(t.Context(), key, nil)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := plan.Decide(s, time.Now())
		if err != nil || (len(plan.Actions) > 0) != cleared {
			t.Errorf("%+v: tasks %v, %v", state, plan.Actions, err)
		}
	}
}

// unreachable is a launcher that has left its socket behind.
type unreachable struct {
	domain.Hypervisor
	answer error
}

func (h unreachable) Get(context.Context, string) (domain.State, error) {
	return domain.State{}, h.answer
}

// TestDomainGone_LauncherDoesNotServe: of a deleted VMI, whose launcher has left a socket behind
// that is not served, the Pods are the evidence. A launcher that is only unresponsive may run it.
func TestDomainGone_LauncherDoesNotServe(t *testing.T) {
	key := types.NamespacedName{Namespace: "ns", Name: "guest"}
	for answer, reported := range map[error]bool{domain.ErrDisconnected: true, domain.ErrNotReady: true, domain.ErrTimeout: false} {
		r := unseenBy(t)
		r.Hypervisor = unreachable{answer: fmt.Errorf("dial: %w", answer)}
		s, err := r.snapshot(t.Context(), key, nil)
		if (err == nil) != reported || s.StateUnknown != nil {
			t.Errorf("%v, and no Pod of it is left: error %v, %v", answer, err, s.StateUnknown)
		}
	}
}

// TestDomainGone_UnresponsiveLauncherIsNotGone: as long as the VMI exists, a launcher that does not
// serve any more may come back with the domain, whatever is known of its Pods.
func TestDomainGone_UnresponsiveLauncherIsNotGone(t *testing.T) {
	for answer, silent := range map[error]bool{domain.ErrDisconnected: true, domain.ErrTimeout: true, domain.ErrNotReady: false} {
		vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-1"}}
		if err := handoff.Put(vmi, handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-a"}); err != nil {
			t.Fatal(err)
		}
		r := unseenBy(t)
		r.Hypervisor = unreachable{answer: fmt.Errorf("dial: %w", answer)}
		s, err := r.snapshot(t.Context(), client.ObjectKeyFromObject(vmi), vmi)
		if silent && (err != nil || s.SilentSince.IsZero()) || !silent && !errors.Is(err, answer) {
			t.Errorf("%v: silent since %s, error %v", answer, s.SilentSince, err)
		}
	}
}

// TestFleet_DomainOfNobody: no member is no evidence.
func TestFleet_DomainOfNobody(t *testing.T) {
	if _, err := new(fleet.Fleet).Get(t.Context(), "ns_guest"); !errors.Is(err, domain.ErrNoHypervisor) || !errors.Is(err, domain.ErrNotFound) {
		t.Error(err)
	}
}
