// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/refdaemon/config/crd"
)

// servesDefinitions checks that the API server took every definition without a reservation.
func servesDefinitions(t *testing.T, r *rig.Rig) {
	definitions, err := crd.Definitions()
	if err != nil {
		t.Fatal(err)
	}
	resource := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	for _, d := range definitions {
		got, err := dynamicClient(t, r).Resource(resource).Get(t.Context(), d.Name, metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			continue
		}
		conditions, _, err := unstructured.NestedSlice(got.Object, "status", "conditions")
		if err != nil {
			t.Fatal(err)
		}
		seen := map[any]any{}
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok {
				seen[c["type"]] = c["status"]
			}
		}
		if diff := cmp.Diff(map[any]any{"NamesAccepted": "True", "Established": "True"}, seen); diff != "" {
			t.Errorf("conditions of %s (-want +got):\n%s", d.Name, diff)
		}
	}
}

// separatesStatus checks by what it does whether an object's status is a subresource.
func separatesStatus(t *testing.T, r *rig.Rig) {
	tests := map[string]struct {
		resource, kind, phase string
		spec                  map[string]any
		wantSubresource       bool
	}{
		"instance": {
			resource: "virtualmachineinstances", kind: "VirtualMachineInstance", phase: "Pending",
			spec: map[string]any{"domain": map[string]any{"devices": map[string]any{}}},
		},
		"migration": {
			resource: "virtualmachineinstancemigrations", kind: "VirtualMachineInstanceMigration", phase: "Pending",
			spec: map[string]any{"vmiName": "example"}, wantSubresource: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			client := dynamicClient(t, r).
				Resource(schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: tc.resource}).
				Namespace(metav1.NamespaceDefault)
			object := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "kubevirt.io/v1", "kind": tc.kind,
				"metadata": map[string]any{"name": "status"},
				"spec":     tc.spec,
				"status":   map[string]any{"phase": tc.phase},
			}}
			created, err := client.Create(t.Context(), object, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, kept, _ := unstructured.NestedString(created.Object, "status", "phase"); kept == tc.wantSubresource {
				t.Errorf("status written with the object is kept: %v, want %v", kept, !tc.wantSubresource)
			}
			created.Object["status"] = map[string]any{"phase": tc.phase}
			_, err = client.UpdateStatus(t.Context(), created, metav1.UpdateOptions{})
			if notFound := apierrors.IsNotFound(err); notFound == tc.wantSubresource {
				t.Errorf("update of the subresource: %v, want it to exist: %v", err, tc.wantSubresource)
			}
		})
	}
}

func dynamicClient(t *testing.T, r *rig.Rig) dynamic.Interface {
	t.Helper()
	c, err := dynamic.NewForConfig(r.Config("tester"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
