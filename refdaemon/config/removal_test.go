// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/refdaemon/config"
	"github.com/virtloom/virtloom/refdaemon/config/rbac"
	"github.com/virtloom/virtloom/refdaemon/guard"
)

// kubectl runs a command on manifests.
func (w *world) kubectl(t *testing.T, text []byte, args ...string) (string, error) {
	t.Helper()
	bin, err := rig.BinDir()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "kubectl"), append([]string{"--kubeconfig", w.Kubeconfig(rig.UserAdmin)}, args...)...)
	cmd.Stdin = bytes.NewReader(text)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// deletable asks whether the namespace of the controller may be deleted.
func (w *world) deletable(ctx context.Context) error {
	return w.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: rbac.Namespace}}, client.DryRunAll)
}

// testRemoval deletes everything as the documentation says not to, and then as it says to.
func (w *world) testRemoval(t *testing.T, flat []byte) {
	w.unask(t)
	pods, err := w.pods(t.Context(), "controller")
	must(t, err)
	controller := w.run(t, "controller", &pods[0], "--leader-elect-namespace="+pods[0].Namespace)
	w.await(t, "the guard of earlier guests to go", w.deletable)
	vmi := guest("stays")
	must(t, w.Create(t.Context(), vmi))
	w.await(t, "the guard", func(ctx context.Context) error {
		if err := w.deletable(ctx); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "virtual machines exist") {
			return fmt.Errorf("the namespace can be deleted: %w", err)
		}
		return nil
	})
	for range 2 { // whoever has got errors tries again
		out, err := w.kubectl(t, flat, "delete", "--wait=false", "--ignore-not-found", "-f", "-")
		if err == nil || !strings.Contains(out, guard.Override) {
			t.Fatalf("%v\n%s", err, out)
		}
		w.testWhole(t)
	}
	must(t, w.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi))
	if vmi.DeletionTimestamp != nil {
		t.Fatal("the guest is being deleted")
	}
	w.apply(t, flat) // as the message says
	w.unasked(t)
	t.Run("nor as a collection", func(t *testing.T) {
		if err := w.DeleteAllOf(t.Context(), &corev1.ServiceAccount{}, client.InNamespace(rbac.NodeNamespace)); !apierrors.IsForbidden(err) {
			t.Errorf("all accounts: %v", err)
		}
	})
	t.Run("but where somebody insists", func(t *testing.T) {
		out, err := w.kubectl(t, flat, "annotate", "--overwrite", "-f", "-", guard.Override+"=true")
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		must(t, w.deletable(t.Context()))
		if out, err := w.kubectl(t, flat, "annotate", "--overwrite", "-f", "-", guard.Override+"-"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if err := w.deletable(t.Context()); !apierrors.IsForbidden(err) {
			t.Errorf("not any more: %v", err)
		}
	})
	w.gone(t, vmi)
	w.await(t, "the guard to go", w.deletable)
	if out, err := w.kubectl(t, flat, "delete", "--wait=false", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	must(t, controller.Stop(time.Minute))
	w.await(t, "everything to be gone", w.empty)
}

// unask has the API server ask no controller here any more, as the manifests say.
func (w *world) unask(t *testing.T) {
	t.Helper()
	w.webhooks(t, func(hook map[string]any) error {
		asked, found, err := unstructured.NestedString(hook, "clientConfig", "url")
		if u, err := url.Parse(asked); found && err == nil {
			hook["clientConfig"] = map[string]any{"service": map[string]any{"namespace": rbac.Namespace, "name": "virtloom-webhook", "path": u.Path}}
		}
		hook["failurePolicy"] = "Ignore"
		return err
	})
}

// testWhole fails if anything is being deleted that can be kept.
func (w *world) testWhole(t *testing.T) {
	t.Helper()
	all, err := config.Manifests()
	must(t, err)
	for _, o := range all {
		if strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy") {
			continue
		}
		key := client.ObjectKeyFromObject(o)
		if err := w.Get(t.Context(), key, o); err != nil || o.GetDeletionTimestamp() != nil {
			t.Errorf("%s %s is deleted: %v", o.GetKind(), key, err)
		}
	}
}

// empty reports what is left of the installation.
func (w *world) empty(ctx context.Context) error {
	all, err := config.Manifests()
	if err != nil {
		return err
	}
	for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("admissionregistration.k8s.io/v1")
		o.SetKind(kind)
		o.SetName(guard.Name)
		all = append(all, o)
	}
	for _, o := range all {
		err := w.Get(ctx, client.ObjectKeyFromObject(o), o)
		// Kubernetes looks again at a namespace when half of the grace period of the agents' Pods has passed.
		if ends := o.GetKind() == "Namespace" && err == nil && o.GetDeletionTimestamp() != nil; !ends && !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s %s is left: finalizers %v %w", o.GetKind(), o.GetName(), o.GetFinalizers(), err)
		}
	}
	return nil
}
