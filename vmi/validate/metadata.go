// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
)

// Metadata returns the structural faults of a VMI's metadata, which all its Pods inherit. The API server has checked all
// but the annotations of a VMI in a cluster.
func Metadata(vmi *v1.VirtualMachineInstance) []Fault {
	k, at := &checker{}, &fieldPath{name: "metadata"}
	k.text(at.child("name"), vmi.Name, validation.IsDNS1123Subdomain, useDNSName)
	k.text(at.child("namespace"), vmi.Namespace, validation.IsDNS1123Label, useDNSLabel)
	k.text(at.child("uid"), string(vmi.UID), LabelValue, "use an object read from the API server")
	k.labels(at.child("labels"), vmi.Labels)
	for _, key := range sortedKeys(vmi.Annotations) {
		k.text(atAnnotations, strings.ToLower(key), LabelKey, useKey)
	}
	return append(k.faults, structural(vmi, annotationRules)...)
}

// Labels returns the faults of labels, or of selectors for labels.
func Labels(field string, labels map[string]string) []Fault {
	k := &checker{}
	k.labels(&fieldPath{name: field}, labels)
	return k.faults
}

func (k *checker) labels(at *fieldPath, labels map[string]string) {
	for _, key := range sortedKeys(labels) {
		k.text(at, key, LabelKey, useKey)
		k.text(at.key(key), labels[key], LabelValue, useLabel)
	}
}
