// SPDX-License-Identifier: Apache-2.0

package realcluster_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	virtv1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/realcluster"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/refdaemon/config"
)

const patience = 2 * time.Minute

// workload is a Deployment or a DaemonSet of Pods that run a script.
func workload(t *testing.T, kind, name, script string) (manifest string, objects []*unstructured.Unstructured) {
	t.Helper()
	manifest = fmt.Sprintf(`apiVersion: apps/v1
kind: %s
metadata: {name: %s, namespace: default}
spec:
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec:
      containers:
      - {name: main, image: %q, command: [/bin/sh, -c, %q]}
`, kind, name, rigtest.Busybox, script)
	objects, err := config.Decode(strings.NewReader(manifest))
	if err != nil {
		t.Fatal(err)
	}
	return manifest, objects
}

func TestCluster(t *testing.T) {
	rigtest.Need(t)
	if os.Geteuid() != 0 {
		t.Skip(rig.ErrNeedsRoot)
	}
	started := time.Now()
	c, err := realcluster.Start(t.Context(), realcluster.Options{Images: []string{}, Rig: rig.Options{Log: t.Logf}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started in %v", time.Since(started).Round(time.Millisecond))
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	rigtest.LoadBusybox(t, c.Nodes...)
	t.Run("has nothing but Kubernetes", func(t *testing.T) {
		if err := c.Client.List(t.Context(), &virtv1.VirtualMachineInstanceList{}); !meta.IsNoMatchError(err) {
			t.Errorf("KubeVirt's definitions: %v, want none", err)
		}
	})
	for _, kind := range []string{"Deployment", "DaemonSet"} {
		t.Run("waits for a "+kind, func(t *testing.T) { waits(t, c, kind) })
		t.Run("says why a "+kind+" is not ready", func(t *testing.T) { saysWhy(t, c, kind) })
	}
	t.Run("says what is wrong with a manifest", func(t *testing.T) {
		if err := c.Apply(t.Context(), []byte("apiVersion: v1\nkind: Nonsense\nmetadata: {name: x}\n")); err == nil || !strings.Contains(err.Error(), "Nonsense") {
			t.Errorf("error %v", err)
		}
	})
}

func waits(t *testing.T, c *realcluster.Cluster, kind string) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	manifest, objects := workload(t, kind, "good-"+strings.ToLower(kind), "exec sleep 1000000")
	if err := c.Apply(ctx, []byte(manifest)); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitReady(ctx, objects); err != nil {
		t.Error(err)
	}
}

func saysWhy(t *testing.T, c *realcluster.Cluster, kind string) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	name := "bad-" + strings.ToLower(kind)
	manifest, objects := workload(t, kind, name, "echo no such luck; exit 7")
	if err := c.Apply(ctx, []byte(manifest)); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		pods, err := c.Clientset.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		return err == nil && slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
			return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount > 0
		}), err
	})
	if err != nil {
		t.Fatal(err)
	}
	enough, stop := context.WithCancel(ctx)
	stop()
	if err = c.AwaitReady(enough, objects); err == nil {
		t.Fatal("it is ready")
	}
	for _, want := range []string{kind, name, "exit code 7", "| no such luck"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}
