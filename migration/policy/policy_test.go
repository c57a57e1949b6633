// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"kubevirt.io/api/migrations/v1alpha1"
)

func policy(name string, guest, namespace map[string]string) v1alpha1.MigrationPolicy {
	return v1alpha1.MigrationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.MigrationPolicySpec{Selectors: &v1alpha1.Selectors{VirtualMachineInstanceSelector: guest, NamespaceSelector: namespace}},
	}
}

// labels returns the labels k0..kn-1, each with value v.
func labels(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprintf("k%d", i)] = "v"
	}
	return m
}

// explained returns the candidates of a match, each with its reason.
func explained(m Match) (out []string) {
	for _, c := range m.Candidates() {
		out = append(out, c.Name+": "+c.Why())
	}
	return out
}

func winner(m Match) string {
	if m.Winner == nil {
		return ""
	}
	return m.Winner.Name
}

func TestPolicyPrecedence(t *testing.T) {
	type policies = []v1alpha1.MigrationPolicy
	nilSelectors := v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "nil"}}
	other := map[string]string{"k0": "w"}
	empty := map[string]string{}
	for name, tc := range map[string]struct {
		policies         policies
		guest, namespace map[string]string
		want             string
		explained        []string
	}{
		"S14/83 one label of the guest and four of the namespace, alone": {
			policies: policies{policy("p", labels(1), labels(4))}, guest: labels(4), namespace: labels(4), want: "p",
			explained: []string{"p: no other matches"},
		},
		"S14/85 two that are alike, zz first": {
			policies: policies{policy("zz", labels(2), labels(2)), policy("aa", labels(2), labels(2))}, guest: labels(4), namespace: labels(4), want: "aa",
			explained: []string{`aa: it is as specific as "zz" and comes first by name`, `zz: "aa" is as specific as it and comes first by name`},
		},
		"S14/85 two that are alike, aa first": {
			policies: policies{policy("aa", labels(2), labels(2)), policy("zz", labels(2), labels(2))}, guest: labels(4), namespace: labels(4), want: "aa",
		},
		"S14/86 as many labels of the guest as of the namespace": {
			policies: policies{policy("a", nil, labels(2)), policy("b", labels(2), nil)}, guest: labels(4), namespace: labels(4), want: "b",
			explained: []string{`b: it names more labels of the VMI than "a" (2 instead of 0)`, `a: "b" names more labels of the VMI than it (2 instead of 0)`},
		},
		"S14/88 no selectors":                            {policies: policies{nilSelectors}, guest: labels(4), explained: []string{"nil: it has no selectors"}},
		"S14/88 empty selectors":                         {policies: policies{policy("p", nil, nil)}, guest: labels(4), want: "p"},
		"S14/88 empty selectors, and nothing has labels": {policies: policies{policy("q", empty, empty), policy("p", nil, nil)}, want: "p"},
		"S14/130 a guest without labels, nil": {
			policies: policies{policy("p", labels(1), nil)}, namespace: labels(4), explained: []string{"p: the VMI has no label k0=v"},
		},
		"S14/130 a guest without labels, empty":                        {policies: policies{policy("p", labels(1), labels(1))}, guest: empty, namespace: labels(4)},
		"S14/130 a guest without labels, of a namespace that has them": {policies: policies{policy("p", nil, labels(2))}, namespace: labels(2), want: "p"},
		"a namespace without labels, nil":                              {policies: policies{policy("p", nil, labels(1))}, guest: labels(4), explained: []string{"p: the namespace has no label k0=v"}},
		"a namespace without labels, empty":                            {policies: policies{policy("p", nil, labels(1))}, guest: labels(4), namespace: empty},
		"a namespace without labels, though the guest has them":        {policies: policies{policy("p", labels(1), labels(1))}, guest: labels(1)},
		"another value":                         {policies: policies{policy("p", other, nil)}, guest: labels(1), explained: []string{"p: the VMI has no label k0=w"}},
		"an empty value is not an absent label": {policies: policies{policy("p", map[string]string{"k0": ""}, nil)}, namespace: labels(1)},
		"an empty value":                        {policies: policies{policy("p", map[string]string{"k0": ""}, nil)}, guest: map[string]string{"k0": ""}, want: "p"},
		"no policies":                           {guest: labels(1), namespace: labels(1)},
		"more labels win, others are named": {
			policies: policies{policy("z", labels(1), nil), nilSelectors, policy("y", labels(2), labels(1)), policy("b", other, nil), policy("all", nil, nil), policy("a", nil, other)},
			guest:    labels(4), namespace: labels(4), want: "y",
			explained: []string{
				`y: it names more labels than "z" (3 instead of 1)`, `z: "y" names more labels than it (3 instead of 1)`, `all: "y" names more labels than it (3 instead of 0)`,
				"a: the namespace has no label k0=w", "b: the VMI has no label k0=w", "nil: it has no selectors",
			},
		},
		"the label by which a policy is found is not all of it": {
			policies: policies{policy("p", map[string]string{"k0": "v", "x": "y"}, nil), policy("q", labels(1), nil)}, guest: labels(2), want: "q",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewPolicies(tc.policies).Match(tc.guest, tc.namespace)
			if got := winner(m); got != tc.want {
				t.Errorf("winner is %q, want %q", got, tc.want)
			}
			if diff := cmp.Diff(tc.explained, explained(m)); tc.explained != nil && diff != "" {
				t.Errorf("candidates (-want +got):\n%s", diff)
			}
			if n := len(m.Candidates()); n != len(tc.policies) {
				t.Errorf("%d candidates of %d policies", n, len(tc.policies))
			}
			backwards := slices.Clone(tc.policies)
			slices.Reverse(backwards)
			again := NewPolicies(backwards).Match(tc.guest, tc.namespace)
			if diff := cmp.Diff(explained(m), explained(again)); diff != "" {
				t.Errorf("in another order the candidates differ:\n%s", diff)
			}
		})
	}
}

func TestMatch_Name(t *testing.T) {
	for name, tc := range map[string]struct {
		guest map[string]string
		want  *string
	}{
		"S14/91 a policy": {guest: labels(1), want: new("p")},
		"S14/91 none":     {},
	} {
		t.Run(name, func(t *testing.T) {
			got := NewPolicies([]v1alpha1.MigrationPolicy{policy("p", labels(1), nil)}).Match(tc.guest, nil).Name()
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("name (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPolicies_ZeroValue(t *testing.T) {
	var none Policies
	if m := none.Match(labels(1), nil); m.Winner != nil || m.Name() != nil || len(m.Candidates()) != 0 || len(Match{}.Candidates()) != 0 {
		t.Errorf("the match is %+v", m)
	}
}
