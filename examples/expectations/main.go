// SPDX-License-Identifier: Apache-2.0

// Command expectations is a typical controller that uses package expectations:
// it never acts on a cache that does not yet show its own writes.
//
// The controller keeps the number of Pods that a ConfigMap specifies in its
// annotation example.com/workers. Pods have random names, so a stale cache would let
// it create too many. The four lines marked "expectations" alone prevent that;
// nothing else of virtloom is used.
//
//	go run ./examples/expectations --kubeconfig ~/.kube/config
//	kubectl create configmap web
//	kubectl annotate configmap web example.com/workers=3
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations/expectationsctrl"
)

const (
	workersAnnotation = "example.com/workers"
	poolLabel         = "example.com/pool"
)

// pools keeps the Pods of ConfigMaps.
type pools struct {
	client.Client
	gate *expectationsctrl.Gate
}

// SetupWithManager registers the controller.
func (p *pools) SetupWithManager(mgr ctrl.Manager) (err error) {
	p.Client = mgr.GetClient()
	if p.gate, err = expectationsctrl.NewGate(mgr, expectationsctrl.Options{}); err != nil { // expectations: one gate
		return err
	}
	return p.gate.Attach(ctrl.NewControllerManagedBy(mgr)). // expectations: it observes all events
								For(&corev1.ConfigMap{}).Owns(&corev1.Pod{}).Named("pools").Complete(p)
}

// Reconcile creates missing Pods of the pool or deletes surplus ones.
func (p *pools) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pool := &corev1.ConfigMap{}
	if err := p.Get(ctx, req.NamespacedName, pool); err != nil {
		p.gate.Forget(req.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	want, isPool := workers(pool)
	if !isPool {
		return ctrl.Result{}, nil
	}
	owner := expectationsctrl.OwnerOf(pool)
	verdict, err := p.gate.Check(ctx, owner) // expectations: does the cache show the writes?
	if err != nil || !verdict.Satisfied() {
		return ctrl.Result{RequeueAfter: verdict.RequeueAfter}, err
	}
	return ctrl.Result{}, scale(ctx, p.gate.For(owner), pool, want) // expectations: this client's writes are awaited
}

// workers returns the desired number of Pods, and whether the ConfigMap is a pool.
func workers(pool *corev1.ConfigMap) (int, bool) {
	n, err := strconv.Atoi(pool.Annotations[workersAnnotation])
	return n, err == nil && n >= 0
}

// scale is independent of expectations; any existing code would do.
func scale(ctx context.Context, c client.Client, pool *corev1.ConfigMap, want int) error {
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(pool.Namespace), client.MatchingLabels{poolLabel: pool.Name}); err != nil {
		return fmt.Errorf("list the Pods of %s: %w", pool.Name, err)
	}
	var live []*corev1.Pod
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp == nil {
			live = append(live, &pods.Items[i])
		}
	}
	for range want - len(live) {
		pod, err := worker(c, pool)
		if err != nil {
			return err
		}
		if err := c.Create(ctx, pod); err != nil {
			return fmt.Errorf("create a Pod of %s: %w", pool.Name, err)
		}
	}
	for _, pod := range live[min(want, len(live)):] {
		if err := c.Delete(ctx, pod); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete a Pod of %s: %w", pool.Name, err)
		}
	}
	return nil
}

// worker returns a new Pod of the pool. Its name is chosen here: a creation with a generated name cannot be awaited.
func worker(c client.Client, pool *corev1.ConfigMap) (*corev1.Pod, error) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pool.Namespace, Name: pool.Name + "-" + strings.ToLower(rand.Text()[:8]), Labels: map[string]string{poolLabel: pool.Name},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "worker", Image: "registry.k8s.io/pause:3.10"}}},
	}
	if err := ctrl.SetControllerReference(pool, pod, c.Scheme()); err != nil {
		return nil, fmt.Errorf("own a Pod of %s: %w", pool.Name, err)
	}
	return pod, nil
}

func run() error {
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{})
	if err != nil {
		return err
	}
	if err := (&pools{}).SetupWithManager(mgr); err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
