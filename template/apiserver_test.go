// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/template"
)

// TestAPIServerAcceptsRenderedPods sends each golden Pod to a real API server, as a dry run.
func TestAPIServerAcceptsRenderedPods(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a control plane")
	}
	c, err := kubernetes.NewForConfig(rigtest.New(t).Config("template-test"))
	if err != nil {
		t.Fatal(err)
	}
	prepareCluster(t, c)
	for name, render := range map[string]func() (*corev1.Pod, error){
		"r0":     func() (*corev1.Pod, error) { return template.Default().Launcher(input(newVMI())) },
		"r1":     func() (*corev1.Pod, error) { return template.Default().Launcher(input(read(t, "r1.vmi.yaml"))) },
		"rich":   func() (*corev1.Pod, error) { return template.Default().Launcher(richInput(t)) },
		"target": func() (*corev1.Pod, error) { return template.Default().MigrationTarget(targetInput(t)) },
		"r3":     func() (*corev1.Pod, error) { return template.Default().HotplugAttachment(plugInput(t, "v1")) },
		"attachment of everything": func() (*corev1.Pod, error) {
			return template.Default().HotplugAttachment(plugInput(t, "v1", "v2", "v3", "v4"))
		},
		"trigger":       func() (*corev1.Pod, error) { return template.Default().HotplugTrigger(plugInput(t, "v1")) },
		"block trigger": func() (*corev1.Pod, error) { return template.Default().HotplugTrigger(plugInput(t, "v2")) },
		"exporter":      func() (*corev1.Pod, error) { return template.Default().Exporter(exportInput()) },
		"export server": func() (*corev1.Pod, error) {
			return template.Default().Exporter(exportInput(serving(
				exportedClaim("disk", corev1.PersistentVolumeBlock, nil), exportedClaim("token", corev1.PersistentVolumeFilesystem, nil),
			)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := render()
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{
				DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
			})
			if err != nil {
				t.Errorf("refused: %v", err)
			}
		})
	}
}

// prepareCluster creates what the goldens refer to.
func prepareCluster(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	ctx := t.Context()
	_, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "shop", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.CoreV1().ServiceAccounts("shop").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "db"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: "important"}, Value: 1000,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.NodeV1().RuntimeClasses().Create(ctx, &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "kata"}, Handler: "kata",
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
