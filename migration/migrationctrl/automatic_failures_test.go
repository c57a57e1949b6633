// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/migration/evacuation"
)

// TestEvictions_FailedGoLast has the eviction of one VMI fail for each of the reasons.
func TestEvictions_FailedGoLast(t *testing.T) {
	answers := map[string]error{
		"refused":     apierrors.NewTooManyRequests("a budget", 0),
		"two-budgets": apierrors.NewInternalError(errors.New("this pod has more than one PodDisruptionBudget")),
		"vanished":    apierrors.NewNotFound(corev1.Resource("pods"), "vanished"),
		"evicted":     nil,
	}
	s := newScene(t, interceptor.Funcs{SubResourceCreate: func(_ context.Context, _ client.Client, _ string, o, _ client.Object, _ ...client.SubResourceCreateOption) error {
		return answers[o.GetName()]
	}})
	u := &Updater{automatic: s.automatic, refused: map[types.UID]time.Time{}}
	var all []evacuation.Standing
	for name := range answers {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("pod-" + name)}}
		all = append(all, evacuation.Standing{VMI: leaving(name, "n"), Verb: evacuation.EvictPod, Pod: p})
	}
	if err := u.evictAll(t.Context(), all); !apierrors.IsInternalError(err) || errors.Is(err, errRefused) {
		t.Errorf("error %v: only what is no refusal is one", err)
	}
	if u.batch != start || len(u.refused) != 2 || u.refused["uid-refused"] != start || u.refused["uid-two-budgets"] != start {
		t.Errorf("refused are %v, of batch %v", u.refused, u.batch)
	}
}

// TestEvict_PendingEviction has evictions take effect that the cache does not show, until their outcome is read live.
func TestEvict_PendingEviction(t *testing.T) {
	var asked []string
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "kubevirt"}}
	one, two := 1, 2
	kv.Spec.WorkloadUpdateStrategy = v1.KubeVirtWorkloadUpdateStrategy{
		WorkloadUpdateMethods: []v1.WorkloadUpdateMethod{v1.WorkloadUpdateMethodEvict},
		BatchEvictionSize:     &one, BatchEvictionInterval: &metav1.Duration{Duration: time.Second},
	}
	kv.Status.OutdatedVirtualMachineInstanceWorkloads = &two
	objects := []client.Object{kv}
	for _, name := range []string{"a", "b"} {
		vmi := leaving(name, "n")
		vmi.Spec.EvictionStrategy, vmi.Status.Conditions = nil, nil
		vmi.Status.LauncherContainerImageVersion = "older"
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID("pod-" + name),
			Labels:          map[string]string{v1.AppLabel: "virt-launcher", v1.CreatedByLabel: string(vmi.UID)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)},
		}}
		p.Spec.NodeName, p.Status.Phase = "n", corev1.PodRunning
		objects = append(objects, vmi, p)
	}
	s := newScene(t, interceptor.Funcs{
		SubResourceCreate: func(_ context.Context, _ client.Client, _ string, o, _ client.Object, _ ...client.SubResourceCreateOption) error {
			asked = append(asked, o.GetName())
			return nil
		},
		SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
			t.Error("the VMIs are counted again without a change")
			return nil
		},
	}, objects...)
	u := &Updater{automatic: s.automatic, refused: map[types.UID]time.Time{}}
	for _, step := range []struct {
		after time.Duration
		want  []string
	}{
		{0, nil}, {time.Second, []string{"a"}}, {time.Second, []string{"b"}}, {time.Second, nil}, {expectations.DefaultTTL - 3*time.Second, nil},
	} {
		asked = nil
		s.clock.SetTime(s.clock.Now().Add(step.after))
		if _, err := u.Reconcile(t.Context(), reconcile.Request{NamespacedName: workloads}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(asked, step.want) {
			t.Errorf("at %s evicted are %v, want %v", s.clock.Now().Sub(start), asked, step.want)
		}
	}
}

// TestConclude_ErrorKeepsDeadlines has a VMI whose migration can never be created, beside one in its cooldown.
func TestConclude_ErrorKeepsDeadlines(t *testing.T) {
	left := &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m", UID: "m", CreationTimestamp: metav1.NewTime(start.Add(-time.Minute))},
		Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: "left"},
		Status: v1.VirtualMachineInstanceMigrationStatus{Phase: v1.MigrationSucceeded, MigrationState: &v1.VirtualMachineInstanceMigrationState{SourceNode: "a", MigrationUID: "m"},
			PhaseTransitionTimestamps: []v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{{Phase: v1.MigrationSucceeded, PhaseTransitionTimestamp: metav1.NewTime(start)}}},
	}
	broken := true
	s := newScene(t, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if broken {
			return apierrors.NewForbidden(corev1.Resource("migrations"), o.GetName(), errors.New("never"))
		}
		return c.Create(ctx, o, opts...)
	}}, drained("a"), leaving("left", "a"), leaving("broken", "a"), left)
	e := &Evacuator{automatic: s.automatic}
	pass := func() time.Duration {
		t.Helper()
		r, err := e.Reconcile(t.Context(), nodeRequest("a"))
		if err != nil {
			t.Fatal(err)
		}
		return r.RequeueAfter
	}
	rest := time.Minute + time.Millisecond
	for _, want := range []time.Duration{firstRetry, 2 * firstRetry, 4 * firstRetry, 8 * firstRetry, 16 * firstRetry, 32 * firstRetry, rest, rest} {
		if got := pass(); got != want {
			t.Errorf("looks again after %v, want %v", got, want)
		}
	}
	broken = false
	// The write is to be seen within a while, which is sooner.
	if got := pass(); got <= 0 || got > rest {
		t.Errorf("looks again after %v", got)
	}
	if n := e.retries.NumRequeues(types.NamespacedName{Name: "a"}); n != 0 {
		t.Errorf("%d failures are remembered", n)
	}
}

// TestUpdatesInVain_ReportedOnce makes passes over an update that has not helped, and one that has not helped later.
func TestUpdatesInVain_ReportedOnce(t *testing.T) {
	s := newScene(t, interceptor.Funcs{})
	u := &Updater{automatic: s.automatic}
	vain := func(uid types.UID) evacuation.Standing {
		return evacuation.Standing{VMI: leaving("g", "n"), Reason: evacuation.ReasonUpdateInVain, Message: "in vain",
			Migration: &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{UID: uid}}}
	}
	other := evacuation.Standing{VMI: leaving("h", "n"), Reason: evacuation.ReasonCooldown}
	for i, pass := range []struct {
		all  []evacuation.Standing
		want int
	}{{[]evacuation.Standing{other}, 0}, {[]evacuation.Standing{vain("a"), other}, 1}, {[]evacuation.Standing{vain("a")}, 0}, {[]evacuation.Standing{vain("b")}, 1}} {
		u.reportVain(pass.all)
		if n := len(s.recorded.Events); n != pass.want {
			t.Errorf("pass %d says %d times, want %d", i, n, pass.want)
		}
		for len(s.recorded.Events) > 0 {
			<-s.recorded.Events
		}
	}
}

// TestStaleCache_CancelsNothing deletes migrations of a VMI whose object, as it is, may say more than what was
// decided by.
func TestStaleCache_CancelsNothing(t *testing.T) {
	moves := func(vmi *v1.VirtualMachineInstance) {
		now := metav1.NewTime(start)
		vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", StartTimestamp: &now}
	}
	for name, tc := range map[string]struct {
		phase v1.VirtualMachineInstanceMigrationPhase
		edit  func(*v1.VirtualMachineInstance)
		stays bool
	}{
		"waiting":              {v1.MigrationPending, moves, false},
		"with the nodes":       {v1.MigrationTargetReady, nil, false},
		"begun, unseen":        {v1.MigrationTargetReady, moves, true},
		"handed over, unseen":  {v1.MigrationScheduled, moves, true},
		"begun, not stored":    {v1.MigrationScheduling, moves, true},
		"its Pod is made":      {v1.MigrationScheduling, nil, false},
		"a guest made anew":    {v1.MigrationScheduled, func(vmi *v1.VirtualMachineInstance) { vmi.UID = "other" }, true},
		"only a label is late": {v1.MigrationScheduled, func(vmi *v1.VirtualMachineInstance) { vmi.Labels = map[string]string{"a": "b"} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m", UID: "m"}}
			m.Status.Phase = tc.phase
			seen, live := leaving("g", "a"), leaving("g", "a")
			if tc.edit != nil {
				tc.edit(live)
			}
			s := newScene(t, interceptor.Funcs{}, m, live)
			if err := s.Get(t.Context(), client.ObjectKeyFromObject(m), m); err != nil {
				t.Fatal(err)
			}
			err := s.cancel(t.Context(), types.NamespacedName{Name: "a"}, &evacuation.Standing{VMI: seen, Verb: evacuation.Cancel, Cancel: []*v1.VirtualMachineInstanceMigration{m}})
			if apierrors.IsConflict(err) != tc.stays || !tc.stays && err != nil {
				t.Errorf("error %v", err)
			}
			if err := s.Get(t.Context(), client.ObjectKeyFromObject(m), m); (err == nil) != tc.stays {
				t.Errorf("the migration is there: %v", err)
			}
		})
	}
}

// TestPendingWrite_DroppedWithoutStanding deletes a VMI whose Pod was evicted, so that no pass checks the eviction.
func TestPendingWrite_DroppedWithoutStanding(t *testing.T) {
	s := newScene(t, interceptor.Funcs{})
	tracker := s.automatic.gate.Tracker()
	pod := expectations.Ref{Kind: corev1.SchemeGroupVersion.WithKind(podKind).GroupKind(), Namespace: "ns", Name: "p"}
	tracker.Confirm(tracker.ExpectDelete(owner(workloads, leaving("gone", "n")), pod, "uid", "1"), nil)
	for _, step := range []struct {
		after, looks time.Duration
		left         int
	}{
		{0, unaskedLook, 1}, {expectations.DefaultTTL - 1, unaskedLook, 1}, {1, 0, 0},
	} {
		s.clock.SetTime(s.clock.Now().Add(step.after))
		r, err := s.automatic.conclude(t.Context(), workloads, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.RequeueAfter.Truncate(time.Second); got != step.looks || tracker.Outstanding() != step.left {
			t.Errorf("after %s it looks again in %s, with %d writes outstanding; want %s and %d",
				s.clock.Now().Sub(start), r.RequeueAfter, tracker.Outstanding(), step.looks, step.left)
		}
	}
}
