// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"bytes"
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/refdaemon/config"
)

// pollInterval is how often the state of an installation is looked at.
const pollInterval = 200 * time.Millisecond

// describeTimeout bounds the description of an installation that did not become ready.
const describeTimeout = 20 * time.Second

// Install applies the manifests of refdaemon/config/default, changed by each of edits, and waits until every Deployment and
// DaemonSet of them is ready. When ctx ends first, the error has the state of the Pods that are not, and what they said last.
func (c *Cluster) Install(ctx context.Context, edits ...func(*unstructured.Unstructured)) error {
	objects, err := config.Manifests()
	if err != nil {
		return err
	}
	var manifests bytes.Buffer
	for _, o := range objects {
		for _, edit := range edits {
			edit(o)
		}
		text, err := yaml.Marshal(o)
		if err != nil {
			return err
		}
		fmt.Fprintf(&manifests, "---\n%s", text)
	}
	if err := c.Apply(ctx, manifests.Bytes()); err != nil {
		return err
	}
	return c.AwaitReady(ctx, objects)
}

// Apply is "kubectl apply --server-side -f -" of manifests.
func (c *Cluster) Apply(ctx context.Context, manifests []byte) error {
	cmd := c.Rig.Kubectl(ctx, "apply", "--server-side", "-f", "-")
	cmd.Stdin = bytes.NewReader(manifests)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl apply: %w\n%s", err, out)
	}
	return nil
}

// AwaitReady waits until every Deployment and DaemonSet among the objects has its Pods, in their last version, and all are ready.
// When ctx ends first, the error has the state of the Pods that are not, and what they said last.
func (c *Cluster) AwaitReady(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		var state string
		err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (done bool, err error) {
			done, state, err = c.ready(ctx, o)
			return done, err
		})
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), describeTimeout)
			defer cancel()
			return fmt.Errorf("%s %s/%s: %s: %w%s", o.GetKind(), o.GetNamespace(), o.GetName(), state, err, c.describe(ctx, o.GetNamespace()))
		}
	}
	return nil
}

// ready reports whether a workload is ready, and its state for a message; an object without Pods is.
func (c *Cluster) ready(ctx context.Context, o *unstructured.Unstructured) (done bool, state string, err error) {
	switch o.GetKind() {
	case "Deployment":
		d, err := c.Clientset.AppsV1().Deployments(o.GetNamespace()).Get(ctx, o.GetName(), metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		done, state = deployed(d)
		return done, state, nil
	case "DaemonSet":
		d, err := c.Clientset.AppsV1().DaemonSets(o.GetNamespace()).Get(ctx, o.GetName(), metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		done, state = everywhere(d, len(c.Nodes))
		return done, state, nil
	}
	return true, "", nil
}

func deployed(d *appsv1.Deployment) (bool, string) {
	want, s := int32(1), d.Status
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	done := s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == want && s.Replicas == want && s.ReadyReplicas == want
	return done, fmt.Sprintf("%d of %d Pods are ready, %d of them up to date, %d in all", s.ReadyReplicas, want, s.UpdatedReplicas, s.Replicas)
}

func everywhere(d *appsv1.DaemonSet, nodes int) (bool, string) {
	want, s := int32(nodes), d.Status
	done := s.ObservedGeneration >= d.Generation && s.DesiredNumberScheduled == want && s.UpdatedNumberScheduled == want && s.NumberReady == want
	return done, fmt.Sprintf("Pods are ready on %d of %d nodes, wanted on %d, up to date on %d",
		s.NumberReady, want, s.DesiredNumberScheduled, s.UpdatedNumberScheduled)
}
