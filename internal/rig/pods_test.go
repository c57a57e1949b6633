// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"context"
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

func newPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "compute", Image: "example.test/compute:1"}}},
	}
}

func quantity(s string) resource.Quantity { return resource.MustParse(s) }

func create(t *testing.T, c kubernetes.Interface, pod *corev1.Pod) {
	t.Helper()
	if _, err := c.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func createJob(t *testing.T, c kubernetes.Interface, namespace string) *batchv1.Job {
	t.Helper()
	template := newPod("").Spec
	template.RestartPolicy = corev1.RestartPolicyNever
	job, err := c.BatchV1().Jobs(namespace).Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: template}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// running creates a Pod and waits until it runs.
func running(t *testing.T, c kubernetes.Interface, name string) *corev1.Pod {
	t.Helper()
	create(t, c, newPod(name))
	return waitPod(t, c, name, "phase Running", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
}

func remove(t *testing.T, c kubernetes.Interface, name string, grace int64) {
	t.Helper()
	if err := c.CoreV1().Pods(metav1.NamespaceDefault).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		t.Fatal(err)
	}
}

// waitPod waits until the Pod is as wanted.
func waitPod(t *testing.T, c kubernetes.Interface, name, want string, ok func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	err := wait.PollUntilContextTimeout(t.Context(), interval, patience, true, func(ctx context.Context) (bool, error) {
		got, err := c.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		pod = got
		return ok(got), nil
	})
	if err != nil {
		t.Fatalf("pod %s: want %s: %v; it is %+v", name, want, err, pod.Status)
	}
	return pod
}

// condition is the status of a Pod's condition, empty if there is none.
func condition(pod *corev1.Pod, of corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range pod.Status.Conditions {
		if c.Type == of {
			return c.Status
		}
	}
	return ""
}

// setCondition patches one condition of a Pod, as the owner of a readiness gate does.
func setCondition(t *testing.T, c kubernetes.Interface, name, of string, to corev1.ConditionStatus) {
	t.Helper()
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q}]}}`, of, to)
	_, err := c.CoreV1().Pods(metav1.NamespaceDefault).Patch(t.Context(), name, types.StrategicMergePatchType,
		[]byte(patch), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
}
