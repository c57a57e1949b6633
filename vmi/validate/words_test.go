// SPDX-License-Identifier: Apache-2.0

package validate_test

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/virtloom/virtloom/vmi/validate"
)

// FuzzLabelRules compares the optimized rules with those of the API server.
func FuzzLabelRules(f *testing.F) {
	for _, s := range []string{
		"", "a", "kubevirt.io", "kubevirt.io/created-by", "a/b/c", "/", "a/", "/a", "-a", "a-", "A_b.C", "a..b", "é", "a b",
		"example.com/" + "x", "EXAMPLE.com/x", "a.-b/x", "5f1c9a52-6d1e-4a0c-9f3c-3d8e0b6b7c11", "a\n", "kubevirt.io/_", "1.2/3",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, want := validate.LabelValue(s), validation.IsValidLabelValue(s); !slices.Equal(got, want) {
			t.Errorf("value %q: %v, want %v", s, got, want)
		}
		if got, want := validate.LabelKey(s), validation.IsQualifiedName(s); !slices.Equal(got, want) {
			t.Errorf("key %q: %v, want %v", s, got, want)
		}
		if validate.Plain(s) {
			for _, rule := range []func(string) []string{
				validation.IsDNS1123Label, validation.IsDNS1123Subdomain, validation.IsValidPortName, validation.IsHTTPHeaderName,
				validation.IsValidLabelValue, validation.IsQualifiedName, validation.IsDNS1123SubdomainWithUnderscore,
			} {
				if problems := rule(s); len(problems) > 0 {
					t.Errorf("%q counts as plain: %v", s, problems)
				}
			}
		}
	})
}
