// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/migration/evacuation"
	"github.com/virtloom/virtloom/template"
)

// running is a guest that runs, as far as its object says, in the Pod that the controller has made for it, and can
// be migrated.
func (w *world) running(t *testing.T, name string) (*v1.VirtualMachineInstance, *corev1.Pod) {
	t.Helper()
	vmi := guest(name, "64Mi")
	strategy := v1.EvictionStrategyLiveMigrate
	vmi.Spec.EvictionStrategy = &strategy
	must(t, w.Create(t.Context(), vmi))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace, Name: template.LauncherName(vmi)}}
	w.await(t, "the Pod to run", func(ctx context.Context) (bool, error) {
		err := w.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		return err == nil && pod.Status.Phase == corev1.PodRunning, client.IgnoreNotFound(err)
	})
	w.await(t, "the guest to be handed over", func(ctx context.Context) (bool, error) {
		err := w.Get(ctx, client.ObjectKeyFromObject(vmi), vmi)
		return vmi.Status.NodeName == pod.Spec.NodeName, err
	})
	was := vmi.DeepCopy()
	vmi.Status.Phase = v1.Running
	vmi.Status.Conditions = append(vmi.Status.Conditions, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue,
	})
	must(t, w.controller.Patch(t.Context(), vmi, client.MergeFrom(was)))
	return vmi, pod
}

func (w *world) await(t *testing.T, what string, ok func(context.Context) (bool, error)) {
	t.Helper()
	if err := rigtest.Poll(t.Context(), patience, ok); err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

func (w *world) evict(t *testing.T, p *corev1.Pod, annotations map[string]string, opts ...client.SubResourceCreateOption) error {
	t.Helper()
	e := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Annotations: annotations}}
	return w.SubResource("eviction").Create(t.Context(), p.DeepCopy(), e, opts...)
}

// denied checks that whoever drains the node asks again, and why.
func denied(t *testing.T, err error, says string) {
	t.Helper()
	if !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), says) {
		t.Errorf("the answer is %v, want it to be denied: %s", err, says)
	}
}

// awaitDenied waits until the webhook is asked and knows that the guest can be migrated.
func (w *world) awaitDenied(t *testing.T, p *corev1.Pod) {
	t.Helper()
	w.await(t, "the webhook to know the guest", func(context.Context) (bool, error) {
		err := w.evict(t, p, nil, client.DryRunAll)
		return apierrors.IsTooManyRequests(err) && strings.Contains(err.Error(), ": Eviction triggered evacuation of VMI"), nil
	})
}

// TestWebhooks_Evictions evicts Pods of guests; what is answered in detail is tested with package migration.
func TestWebhooks_Evictions(t *testing.T) {
	w := newWorld(t)
	vmi, pod := w.running(t, "moves")
	key := client.ObjectKeyFromObject(vmi)
	read := func() *v1.VirtualMachineInstance {
		t.Helper()
		must(t, w.Get(t.Context(), key, vmi))
		return vmi
	}

	w.awaitDenied(t, pod)
	if node := read().Status.EvacuationNodeName; node != "" {
		t.Errorf("a dry run has it leave %s", node)
	}
	denied(t, w.evict(t, pod, nil), `Eviction triggered evacuation of VMI "default/moves"`)
	if read().Status.EvacuationNodeName != pod.Spec.NodeName || vmi.Annotations[v1.EvictionSourceAnnotation] != "" {
		t.Errorf("status %+v, annotations %v", vmi.Status, vmi.Annotations)
	}
	denied(t, w.evict(t, pod, nil), "Evacuation in progress: Eviction triggered evacuation")
	var made v1.VirtualMachineInstanceMigrationList
	w.await(t, "the guest's migration", func(ctx context.Context) (bool, error) {
		return len(made.Items) == 1, w.List(ctx, &made)
	})
	if m := &made.Items[0]; m.Spec.VMIName != "moves" || m.Annotations[v1.EvacuationMigrationAnnotation] != pod.Spec.NodeName {
		t.Errorf("migration %+v", m)
	}
	t.Run("a descheduler's", func(t *testing.T) { w.testDescheduler(t) })
	t.Run("plugged volumes", func(t *testing.T) { w.testAttachment(t, pod) })
	t.Run("who is nobody's", func(t *testing.T) { w.testNobodys(t) })

	// How to call it off, as webhook.yaml says it.
	patch := `[{"op":"test","path":"/status/evacuationNodeName","value":"` + pod.Spec.NodeName + `"},{"op":"remove","path":"/status/evacuationNodeName"}]`
	must(t, w.controller.Patch(t.Context(), vmi, client.RawPatch(types.JSONPatchType, []byte(patch))))
	w.await(t, "the migration to go, or to have begun", func(ctx context.Context) (bool, error) {
		err := w.Get(ctx, client.ObjectKeyFromObject(&made.Items[0]), &made.Items[0])
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

func (w *world) testDescheduler(t *testing.T) {
	vmi, pod := w.running(t, "balanced")
	w.awaitDenied(t, pod)
	denied(t, w.evict(t, pod, map[string]string{"requested-by": "sigs.k8s.io/descheduler"}), "Eviction triggered evacuation")
	must(t, w.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi))
	if vmi.Status.EvacuationNodeName == "" || vmi.Annotations[v1.EvictionSourceAnnotation] != evacuation.SourceDescheduler {
		t.Errorf("status %+v, annotations %v", vmi.Status, vmi.Annotations)
	}
}

func (w *world) testAttachment(t *testing.T, holder *corev1.Pod) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: holder.Namespace, Name: "hp-volume-a", Labels: map[string]string{v1.AppLabel: "hotplug-disk"},
			// The controller deletes it, as the guest has no such volume; it is to be there nevertheless.
			Finalizers:      []string{"example.test/held"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(holder, corev1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec: corev1.PodSpec{NodeName: holder.Spec.NodeName, Containers: []corev1.Container{{Name: "c", Image: "example.test/c:1"}}},
	}
	must(t, w.Create(t.Context(), p))
	denied(t, w.evict(t, p, nil), "hotplugged into VMI")
	// What stands in for the kubelet may set the phase once more, and a refusal may be of before.
	w.await(t, "the Pod to be let go when it has ended", func(ctx context.Context) (bool, error) {
		ended := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`))
		if err := w.Status().Patch(ctx, p.DeepCopy(), ended); err != nil {
			return false, err
		}
		err := w.evict(t, p, nil)
		if apierrors.IsTooManyRequests(err) {
			return false, nil
		}
		return err == nil, err
	})
}

func (w *world) testNobodys(t *testing.T) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "virt-launcher-by-name"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.test/c:1"}}},
	}
	must(t, w.Create(t.Context(), p))
	must(t, w.evict(t, p, nil))
	if err := w.evict(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "virt-launcher-none"}}, nil); !apierrors.IsNotFound(err) {
		t.Errorf("a Pod that does not exist: %v", err)
	}
}
