// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// patience bounds waiting for what must happen.
const patience = 2 * time.Minute

// The operator as it is run, at a real API server: a Desktop of desktop.yaml comes to a node, and goes without a trace.
func TestDesktop_Lifecycle(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	config := rigtest.Start(t, rig.Options{SimulatedNodes: 1}).Config(rig.UserAdmin)
	_, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: []string{"crd.yaml"}, MaxTime: patience})
	must(t, err)
	mgr, err := newManager(t.Context(), config)
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() { stop(); must(t, <-ended) })

	text, err := os.ReadFile("desktop.yaml")
	must(t, err)
	desktop := &Desktop{}
	must(t, yaml.UnmarshalStrict(text, desktop))
	c, err := client.New(config, client.Options{Scheme: mgr.GetScheme()})
	must(t, err)
	must(t, c.Create(ctx, desktop))
	until(t, "the Desktop is on a node", func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(desktop), desktop)
		return desktop.Status.Phase == v1.Scheduled && desktop.Status.Node != "", err
	})
	var pods corev1.PodList
	must(t, c.List(ctx, &pods, client.InNamespace("default")))
	if len(pods.Items) != 1 || !slices.ContainsFunc(pods.Items[0].Spec.Containers, func(c corev1.Container) bool { return c.Name == "seat" }) {
		t.Errorf("%d Pods, the first is %+v; want one with the container of the seat", len(pods.Items), pods.Items)
	}
	must(t, c.Delete(ctx, desktop, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	// No node has accepted the VMI, so it is removed at once.
	until(t, "nothing is left", func(ctx context.Context) (bool, error) {
		var guests v1.VirtualMachineInstanceList
		if err := c.List(ctx, &guests); err != nil {
			return false, err
		}
		err := c.List(ctx, &pods, client.InNamespace("default"))
		return len(guests.Items) == 0 && len(pods.Items) == 0, err
	})
}

func until(t *testing.T, what string, done wait.ConditionWithContextFunc) {
	t.Helper()
	if err := rigtest.Poll(t.Context(), patience, done); err != nil {
		t.Fatalf("wait until %s: %v", what, err)
	}
}

// What the API server takes for a Desktop is what the operator understands of one.
func TestDefinition_MatchesType(t *testing.T) {
	text, err := os.ReadFile("crd.yaml")
	must(t, err)
	var crd apiextensionsv1.CustomResourceDefinition
	must(t, yaml.UnmarshalStrict(text, &crd))
	if crd.Spec.Group != groupVersion.Group || crd.Spec.Versions[0].Name != groupVersion.Version {
		t.Errorf("crd.yaml defines %s/%s, want %s", crd.Spec.Group, crd.Spec.Versions[0].Name, groupVersion)
	}
}
