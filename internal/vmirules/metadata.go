// SPDX-License-Identifier: Apache-2.0

package vmirules

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
)

const (
	useLabelName  = "use letters, digits, dashes, underscores and dots, at most 63, with an optional DNS name and slash as prefix"
	useLabelValue = "use at most 63 letters, digits, dashes, underscores and dots, beginning and ending with a letter or digit"

	istioInject = "sidecar.istio.io/inject"
)

// text is one string of a VMI with the API server's rule for it.
type text struct {
	field, value string
	rule         func(string) []string
	remedy       string
}

// broken returns the faults of the strings that their rules reject.
func broken(texts ...text) (faults []Fault) {
	for _, t := range texts {
		if Plain(t.value) {
			continue
		}
		if problems := t.rule(t.value); len(problems) > 0 {
			faults = append(faults, Fault{Field: t.field, Reason: fmt.Sprintf("%q: %s", t.value, problems[0]), Remedy: t.remedy})
		}
	}
	return faults
}

// Metadata returns the faults of a VMI's metadata: what the API server would reject in its Pods.
func Metadata(vmi *v1.VirtualMachineInstance) []Fault {
	faults := broken(
		text{"metadata.name", vmi.Name, validation.IsDNS1123Subdomain, "use lower case letters, digits, dashes and dots"},
		text{"metadata.namespace", vmi.Namespace, validation.IsDNS1123Label, "use at most 63 lower case letters, digits and dashes"},
		text{"metadata.uid", string(vmi.UID), LabelValue, "use an object read from the API server"},
	)
	faults = append(faults, Labels("metadata.labels", vmi.Labels)...)
	for _, key := range sorted(vmi.Annotations) {
		faults = append(faults, broken(text{"metadata.annotations", strings.ToLower(key), LabelKey, useLabelName})...)
	}
	if filters := vmi.Annotations[v1.CustomLibvirtLogFiltersAnnotation]; strings.HasPrefix(filters, "--") {
		faults = append(faults, Fault{
			Field:  "metadata.annotations[" + v1.CustomLibvirtLogFiltersAnnotation + "]",
			Reason: fmt.Sprintf("%q must not begin like an argument of the launcher", filters),
			Remedy: "use filters of libvirt, such as 3:remote 1:*",
		})
	}
	if inject, ok := vmi.Annotations[istioInject]; ok {
		faults = append(faults, broken(text{
			"metadata.annotations[" + istioInject + "]", inject, LabelValue, "use true or false: the value becomes a label",
		})...)
	}
	return faults
}

// Labels returns the faults of labels, or of selectors for labels.
func Labels(field string, labels map[string]string) (faults []Fault) {
	for _, key := range sorted(labels) {
		faults = append(faults, broken(
			text{field, key, LabelKey, useLabelName}, text{field + "[" + key + "]", labels[key], LabelValue, useLabelValue},
		)...)
	}
	return faults
}

func sorted(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
