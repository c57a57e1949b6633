// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/migration"
)

// shelf is a cache of policies that counts how often it is listed.
type shelf struct {
	client.Reader
	names atomic.Pointer[[]string]
	lists atomic.Int64
	err   error
}

func (s *shelf) show(names ...string) { s.names.Store(&names) }

func (s *shelf) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	s.lists.Add(1)
	for _, name := range *s.names.Load() {
		p := v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MigrationPolicySpec{Selectors: &v1alpha1.Selectors{}}}
		list.(*v1alpha1.MigrationPolicyList).Items = append(list.(*v1alpha1.MigrationPolicyList).Items, p)
	}
	return s.err
}

func TestPolicies_IndexedOncePerChange(t *testing.T) {
	var p policies
	s := &shelf{}
	wins := func(want string) {
		t.Helper()
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				x, err := p.get(t.Context(), s)
				if err != nil {
					t.Error(err)
				} else if m := x.Match(nil, nil); m.Winner == nil || m.Winner.Name != want {
					t.Errorf("winner is %+v, want %s", m.Winner, want)
				}
			})
		}
		all.Wait()
	}
	s.show("b")
	wins("b")
	s.show("a", "b")
	wins("b") // nothing was said of a change
	p.changed()
	wins("a")
	if n := s.lists.Load(); n != 2 {
		t.Errorf("policies were listed %d times, want twice", n)
	}
	p.changed()
	s.err = errors.New("not now")
	if _, err := p.get(t.Context(), s); err == nil {
		t.Error("what cannot be listed is taken for what was")
	}
}

// standing is a migration in a phase that waits for that reason.
func standing(namespace, name string, phase v1.VirtualMachineInstanceMigrationPhase, waits migration.Reason) *v1.VirtualMachineInstanceMigration {
	m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	m.Status.Phase = phase
	m.Status.Conditions = []v1.VirtualMachineInstanceMigrationCondition{{Type: migration.ConditionWaiting, Status: corev1.ConditionTrue, Reason: string(waits)}}
	return m
}

func TestOptionsChange_WakesAffectedMigrations(t *testing.T) {
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	index := func(o client.Object) []string {
		if minds(o.(*v1.VirtualMachineInstanceMigration)) {
			return []string{yes}
		}
		return nil
	}
	r := &Reconciler{Client: fake.NewClientBuilder().WithScheme(s).WithIndex(&v1.VirtualMachineInstanceMigration{}, mindful, index).WithObjects(
		standing("a", "queued", v1.MigrationPending, migration.ReasonWaitingForSlot),
		standing("a", "held", v1.MigrationPending, migration.ReasonPolicyInvalid),
		standing("a", "late", v1.MigrationScheduled, migration.ReasonPolicyInvalid),
		standing("a", "scheduled", v1.MigrationScheduled, migration.ReasonWaitingForSlot),
		standing("a", "preparing", v1.MigrationPreparingTarget, ""), standing("b", "ready", v1.MigrationTargetReady, ""),
		standing("b", "running", v1.MigrationRunning, ""), standing("b", "done", v1.MigrationSucceeded, ""), standing("b", "failed", v1.MigrationFailed, ""),
	).Build()}
	inA, all := []string{"a/held", "a/late", "a/preparing"}, []string{"a/held", "a/late", "a/preparing", "b/ready", "b/running"}
	policy := func(edit func(*v1alpha1.MigrationPolicy)) client.Object {
		p := &v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
		edit(p)
		return p
	}
	namespace := func(edit func(*corev1.Namespace)) client.Object {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		edit(ns)
		return ns
	}
	kubeVirt := func(edit func(*v1.KubeVirt)) client.Object {
		kv := &v1.KubeVirt{}
		edit(kv)
		return kv
	}
	allow := true
	for name, tc := range map[string]struct {
		of      part
		was, is client.Object
		want    []string
		rebuilt bool
	}{
		"a policy comes": {of: policySpec, is: policy(func(*v1alpha1.MigrationPolicy) {}), want: all, rebuilt: true},
		"a policy goes":  {of: policySpec, was: policy(func(*v1alpha1.MigrationPolicy) {}), want: all, rebuilt: true},
		"a policy's spec changes": {of: policySpec, was: policy(func(*v1alpha1.MigrationPolicy) {}),
			is: policy(func(p *v1alpha1.MigrationPolicy) { p.Spec.AllowPostCopy = &allow }), want: all, rebuilt: true},
		"a policy's labels change": {of: policySpec, was: policy(func(*v1alpha1.MigrationPolicy) {}), is: policy(func(p *v1alpha1.MigrationPolicy) { p.Labels = map[string]string{"a": "b"} })},
		"a namespace's labels change": {of: namespaceLabels, was: namespace(func(*corev1.Namespace) {}),
			is: namespace(func(ns *corev1.Namespace) { ns.Labels = map[string]string{"a": "b"} }), want: inA},
		"a namespace's annotations change": {of: namespaceLabels, was: namespace(func(*corev1.Namespace) {}),
			is: namespace(func(ns *corev1.Namespace) { ns.Annotations = map[string]string{"a": "b"} })},
		"the cluster's configuration changes": {of: migrationConfiguration, was: kubeVirt(func(*v1.KubeVirt) {}),
			is: kubeVirt(func(kv *v1.KubeVirt) {
				kv.Spec.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{AllowPostCopy: &allow}
			}), want: all},
		"the cluster's status changes": {of: migrationConfiguration, was: kubeVirt(func(*v1.KubeVirt) {}), is: kubeVirt(func(kv *v1.KubeVirt) { kv.Status.Phase = v1.KubeVirtPhaseDeployed })},
	} {
		t.Run(name, func(t *testing.T) {
			q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			t.Cleanup(q.ShutDown)
			h, before := watcher{r}.whenOptionsChange(tc.of), r.policies.changes.Load()
			switch {
			case tc.was == nil:
				h.Create(t.Context(), event.CreateEvent{Object: tc.is}, q)
			case tc.is == nil:
				h.Delete(t.Context(), event.DeleteEvent{Object: tc.was}, q)
			default:
				h.Update(t.Context(), event.UpdateEvent{ObjectOld: tc.was, ObjectNew: tc.is}, q)
			}
			var got []string
			for q.Len() > 0 {
				req, _ := q.Get()
				got = append(got, req.String())
			}
			slices.Sort(got)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("woken (-want +got):\n%s", diff)
			}
			if rebuilt := r.policies.changes.Load() != before; rebuilt != tc.rebuilt {
				t.Errorf("the policies are indexed again: %t", rebuilt)
			}
		})
	}
}
