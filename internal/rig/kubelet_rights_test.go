// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
)

func fromInt(port int) intstr.IntOrString { return intstr.FromInt(port) }

func (c cluster) enforcesSecurity(t *testing.T) {
	const namespace = "restricted"
	_, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods := c.CoreV1().Pods(namespace)
	pod := shellPod("plain", "one", "exec sleep 1000000")
	pod.Namespace = namespace
	err = wait.PollUntilContextTimeout(t.Context(), interval, patience, true, func(ctx context.Context) (bool, error) {
		_, err := c.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a Pod as root: %v, want it forbidden", err)
	}
	user, yes, no := int64(107), true, false
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		RunAsUser: &user, RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no,
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_BIND_SERVICE"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err = wait.PollUntilContextTimeout(t.Context(), interval, patience, true, func(ctx context.Context) (bool, error) {
		got, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		return err == nil && condition(got, corev1.PodReady) == corev1.ConditionTrue, err
	})
	if err != nil {
		t.Fatalf("a Pod without rights does not run: %v", err)
	}
	if got := c.kubectl(t, "exec", "-n", namespace, pod.Name, "--", "id", "-u"); got != "107" {
		t.Errorf("it runs as %s", got)
	}
}

func (c cluster) restrictsKubelets(t *testing.T) {
	kubelet := client(t, c.Rig, "system:node:one")
	for node, allowed := range map[string]bool{"one": true, "two": false} {
		_, err := kubelet.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"example.test/by":"one"}}}`), metav1.PatchOptions{})
		if allowed && err != nil || !allowed && !apierrors.IsForbidden(err) {
			t.Errorf("the kubelet of one writes to Node %s: %v", node, err)
		}
	}
	if _, err := kubelet.CoreV1().Secrets(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet lists secrets: %v", err)
	}
}

func (c cluster) refusesStrangers(t *testing.T) {
	stranger := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // it is the client that is a stranger
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return c.two.Dial(ctx, network, address)
		},
	}}
	defer stranger.CloseIdleConnections()
	answer, err := stranger.Get("https://" + c.one.Address() + ":10250/pods")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("a stranger gets %s", answer.Status)
	}
}

// runsWorkloads needs controllers that a rig without kubelets does not have.
func (c cluster) runsWorkloads(t *testing.T) {
	template := shellPod("work", "", "exec sleep 1000000")
	spec := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: template.Labels}, Spec: template.Spec}
	meta := metav1.ObjectMeta{Name: "work"}
	selector := &metav1.LabelSelector{MatchLabels: template.Labels}
	replicas := int32(2)
	apps := c.AppsV1()
	_, err := apps.Deployments(metav1.NamespaceDefault).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: spec},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec.Labels = map[string]string{"app": "everywhere"}
	_, err = apps.DaemonSets(metav1.NamespaceDefault).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: spec.Labels}, Template: spec},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	err = wait.PollUntilContextTimeout(t.Context(), interval, patience, true, func(ctx context.Context) (bool, error) {
		d, err := apps.Deployments(metav1.NamespaceDefault).Get(ctx, "work", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		s, err := apps.DaemonSets(metav1.NamespaceDefault).Get(ctx, "work", metav1.GetOptions{})
		return err == nil && d.Status.AvailableReplicas == replicas && s.Status.NumberAvailable == 2, err
	})
	if err != nil {
		t.Errorf("they are not available: %v", err)
	}
}
