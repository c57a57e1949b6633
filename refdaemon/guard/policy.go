// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const message = "virtual machines exist, which depend on this. Delete them first (kubectl get virtualmachineinstances --all-namespaces). " +
	"If this was by mistake, apply the manifests again now: policies of admission, which nothing can keep, may have been deleted already. " +
	"To delete it under running virtual machines, annotate it with " + Override + "=true"

// exempt are the accounts that complete deletions which were allowed.
const exempt = "!(request.userInfo.username in ['system:serviceaccount:kube-system:namespace-controller', " +
	"'system:serviceaccount:kube-system:generic-garbage-collector', 'system:kube-controller-manager'])"

// policy returns the spec of the policy. It compares the names of objects, not of requests: a request for a collection has none.
func policy(guarded []*unstructured.Unstructured) map[string]any {
	resources, keys := map[string][]string{}, []string{}
	for _, o := range guarded {
		group := o.GroupVersionKind().Group
		if group == "admissionregistration.k8s.io" && strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy") {
			continue
		}
		plural, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		if !slices.Contains(resources[group], plural.Resource) {
			resources[group] = append(resources[group], plural.Resource)
		}
		keys = append(keys, strconv.Quote(plural.Resource+" "+o.GetNamespace()+"/"+o.GetName()))
	}
	groups := []string{}
	for group := range resources {
		groups = append(groups, group)
	}
	slices.Sort(groups)
	var rules []any
	for _, group := range groups {
		var names []any
		for _, r := range resources[group] {
			names = append(names, r)
		}
		rules = append(rules, map[string]any{
			"apiGroups": []any{group}, "apiVersions": []any{"*"}, "operations": []any{"DELETE"}, "resources": names, "scope": "*",
		})
	}
	return map[string]any{
		"failurePolicy":    "Fail",
		"matchConstraints": map[string]any{"resourceRules": rules, "matchPolicy": "Equivalent"},
		"matchConditions": []any{
			map[string]any{"name": "of-the-installation", "expression": "request.resource.resource + ' ' + oldObject.metadata.?namespace.orValue('') + '/' + oldObject.metadata.name in [" + strings.Join(keys, ", ") + "]"},
			map[string]any{"name": "not-by-kubernetes-itself", "expression": exempt},
		},
		"validations": []any{map[string]any{
			"expression": "oldObject.metadata.?annotations[?'" + Override + "'].orValue('') == 'true'", "message": message, "reason": "Forbidden",
		}},
	}
}
