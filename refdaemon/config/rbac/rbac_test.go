// SPDX-License-Identifier: Apache-2.0

package rbac_test

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/virtloom/virtloom/refdaemon/config/rbac"
)

func manifests(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	objects, err := rbac.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestManifests_ReferencedFirst(t *testing.T) {
	seen := map[string]bool{}
	needs := func(o *unstructured.Unstructured, kind, name string) {
		if !seen[kind+"/"+name] {
			t.Errorf("%s %s refers to %s %s, which does not come before it", o.GetKind(), o.GetName(), kind, name)
		}
	}
	for _, o := range manifests(t) {
		if ns := o.GetNamespace(); ns != "" {
			needs(o, "Namespace", ns)
		}
		if kind, name := nested(t, o, "roleRef", "kind"), nested(t, o, "roleRef", "name"); kind != "" {
			needs(o, kind, name)
		}
		if name := nested(t, o, "spec", "policyName"); name != "" {
			needs(o, "ValidatingAdmissionPolicy", name)
		}
		seen[o.GetKind()+"/"+o.GetName()] = true
	}
	for _, want := range []string{
		"ClusterRoleBinding/virtloom-controller", "RoleBinding/virtloom-controller", "ClusterRoleBinding/virtloom-node",
		"ValidatingAdmissionPolicyBinding/virtloom-node-guests", "ValidatingAdmissionPolicyBinding/virtloom-node-self",
		"ValidatingAdmissionPolicyBinding/virtloom-controller-nodes",
		"ValidatingAdmissionPolicyBinding/virtloom-migrations", "ValidatingAdmissionPolicyBinding/virtloom-guests",
		"ValidatingAdmissionPolicyBinding/virtloom-guest-templates", "ValidatingAdmissionPolicyBinding/virtloom-guest-pods",
	} {
		if !seen[want] {
			t.Errorf("there is no %s", want)
		}
	}
}

func TestRoles_NoWildcards(t *testing.T) {
	for _, o := range manifests(t) {
		rules, _, err := unstructured.NestedSlice(o.Object, "rules")
		if err != nil {
			t.Fatal(err)
		}
		for _, rule := range rules {
			for field, values := range rule.(map[string]any) {
				if slices.Contains(values.([]any), any("*")) {
					t.Errorf("%s %s: %s allows everything", o.GetKind(), o.GetName(), field)
				}
			}
		}
	}
}

func TestManifests_ReturnCopies(t *testing.T) {
	manifests(t)[0].SetName("changed")
	if name := manifests(t)[0].GetName(); name == "changed" {
		t.Error("the change of one caller is seen by the next")
	}
}

func nested(t *testing.T, o *unstructured.Unstructured, path ...string) string {
	t.Helper()
	s, _, err := unstructured.NestedString(o.Object, path...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
