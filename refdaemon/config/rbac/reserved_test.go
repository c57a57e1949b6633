// SPDX-License-Identifier: Apache-2.0

package rbac_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/virtloom/virtloom/vmi/admit"
)

// variables are those of a policy, with their expressions.
func variables(t *testing.T, policy string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, o := range manifests(t) {
		if o.GetKind() != "ValidatingAdmissionPolicy" || o.GetName() != policy {
			continue
		}
		for _, field := range []string{"variables", "matchConditions"} {
			list, _, err := unstructured.NestedSlice(o.Object, "spec", field)
			must(t, err)
			for _, v := range list {
				out[v.(map[string]any)["name"].(string)] = v.(map[string]any)["expression"].(string)
			}
		}
	}
	if len(out) == 0 {
		t.Fatalf("there is no policy %s", policy)
	}
	return out
}

var quoted = regexp.MustCompile(`'([^']*)'`)

// words are the quoted ones of an expression.
func words(expression string) []string {
	var out []string
	for _, m := range quoted.FindAllStringSubmatch(expression, -1) {
		out = append(out, m[1])
	}
	return slices.Sorted(slices.Values(out))
}

func TestPolicies_ReservedKeysAreThoseOfTheWebhook(t *testing.T) {
	guests, pods, migrations := admit.ReservedOfVMIs(), admit.ReservedOfPods(), admit.ReservedOfMigrations()
	for _, tt := range []struct {
		policy, variable string
		want             []string
	}{
		{"virtloom-guests", "reservedLabels", guests.Labels},
		{"virtloom-guests", "reservedAnnotations", guests.Annotations},
		{"virtloom-guests", "reservedFinalizers", guests.Finalizers},
		{"virtloom-guest-templates", "reservedLabels", guests.Labels},
		{"virtloom-guest-templates", "reservedAnnotations", guests.Annotations},
		{"virtloom-guest-pods", "reservedLabels", pods.Labels},
		{"virtloom-guest-pods", "reservedAnnotations", pods.Annotations},
		{"virtloom-guest-pods", "reservedApps", admit.ReservedApps()},
		{"virtloom-migrations", "reservedAnnotations", migrations.Annotations},
		{"virtloom-migrations", "reservedFinalizers", migrations.Finalizers},
	} {
		if got, want := words(variables(t, tt.policy)[tt.variable]), slices.Sorted(slices.Values(tt.want)); !slices.Equal(got, want) {
			t.Errorf("%s: %s is %q, want %q", tt.policy, tt.variable, got, want)
		}
	}
	for policy, variable := range map[string]string{
		"virtloom-guests": "wrongLabels", "virtloom-guest-templates": "wrong", "virtloom-guest-pods": "wrongAnnotations", "virtloom-migrations": "wrongKeys",
	} {
		if !slices.Contains(words(variables(t, policy)[variable]), admit.ReservedPrefix) {
			t.Errorf("%s does not reserve %s", policy, admit.ReservedPrefix)
		}
	}
}

// TestPolicies_NameAccounts makes sure that whoever is let through is named: accounts of a namespace come and go.
func TestPolicies_NameAccounts(t *testing.T) {
	for policy, variable := range map[string]string{
		"virtloom-guests": "not-by-the-control-plane", "virtloom-guest-pods": "not-by-the-control-plane", "virtloom-migrations": "controlPlane",
		"virtloom-guest-templates": "not-by-an-administrator-of-the-cluster",
	} {
		for _, who := range words(variables(t, policy)[variable]) {
			if strings.HasPrefix(who, "system:serviceaccounts") || strings.HasPrefix(who, "system:serviceaccount:") && strings.Count(who, ":") != 3 {
				t.Errorf("%s lets %s through", policy, who)
			}
		}
	}
}
