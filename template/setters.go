// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// Set writes a field for which there is no other setter. path is the field's path in the Pod, such as
// spec.runtimeClassName or spec.containers[compute].image; write is called if the stage may own the field and all parts
// of it, and must change nothing else.
func (d Draft) Set(path string, write func(*corev1.Pod)) {
	if d.claimWhole(parseField(path)) {
		write(d.pod)
	}
}

// Label sets one label. A value that is already there is no conflict, here and for Annotation and NodeSelector.
func (d Draft) Label(key, value string) { d.setKey(fieldLabels, &d.pod.Labels, key, value) }

// Annotation sets one annotation.
func (d Draft) Annotation(key, value string) {
	d.setKey(fieldAnnotations, &d.pod.Annotations, key, value)
}

// NodeSelector asks for one node label.
func (d Draft) NodeSelector(key, value string) {
	d.setKey(fieldNodeSelector, &d.pod.Spec.NodeSelector, key, value)
}

func (d Draft) setKey(base string, m *map[string]string, key, value string) {
	if old, ok := (*m)[key]; ok && old == value {
		return
	}
	if !d.claim(field{base: base, name: key}) {
		return
	}
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
}

// Drop removes one annotation, label or node selector that another stage has set; field is its path, such as
// spec.nodeSelector[kubernetes.io/arch]. The stage must declare the field in Overrides.
func (d Draft) Drop(path string) {
	f := parseField(path)
	m := map[string]map[string]string{
		fieldLabels: d.pod.Labels, fieldAnnotations: d.pod.Annotations, fieldNodeSelector: d.pod.Spec.NodeSelector,
	}[f.base]
	if _, there := m[f.name]; there && d.claim(f) {
		delete(m, f.name)
	}
}

// Volume adds a volume. The same volume added twice is there once, here and for all lists; another one of that name
// replaces it if the stage declares the field in Overrides.
func (d Draft) Volume(v corev1.Volume) {
	setItem(d, &d.pod.Spec.Volumes, item[corev1.Volume]{
		at: field{base: fieldVolumes, name: v.Name}, value: v,
		same: func(o *corev1.Volume) bool { return o.Name == v.Name },
	})
}

// EmptyDir adds an empty folder that lives as long as the Pod.
func (d Draft) EmptyDir(name string) {
	d.Volume(corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
}

// PullSecret adds an image pull secret. The empty name adds nothing.
func (d Draft) PullSecret(name string) {
	if name == "" {
		return
	}
	setItem(d, &d.pod.Spec.ImagePullSecrets, item[corev1.LocalObjectReference]{
		at: field{base: "spec.imagePullSecrets", name: name}, value: corev1.LocalObjectReference{Name: name},
		same: func(o *corev1.LocalObjectReference) bool { return o.Name == name },
	})
}

// ResourceClaim adds a claim for devices to the Pod. Containers use it by Claim.
func (d Draft) ResourceClaim(c corev1.PodResourceClaim) {
	setItem(d, &d.pod.Spec.ResourceClaims, item[corev1.PodResourceClaim]{
		at: field{base: "spec.resourceClaims", name: c.Name}, value: c,
		same: func(o *corev1.PodResourceClaim) bool { return o.Name == c.Name },
	})
}

// Toleration adds a toleration.
func (d Draft) Toleration(t corev1.Toleration) {
	setItem(d, &d.pod.Spec.Tolerations, item[corev1.Toleration]{
		at: field{base: "spec.tolerations", name: fmt.Sprintf("%s:%s:%s:%s", t.Key, t.Operator, t.Value, t.Effect)}, value: t,
		same: func(o *corev1.Toleration) bool {
			return o.Key == t.Key && o.Operator == t.Operator && o.Value == t.Value && o.Effect == t.Effect
		},
	})
}

// item is one element of a list whose elements have a merge key.
type item[T any] struct {
	at    field
	value T
	same  func(*T) bool // has the same key
}

func setItem[T any](d Draft, list *[]T, it item[T]) bool {
	for i := range *list {
		old := &(*list)[i]
		if !it.same(old) {
			continue
		}
		switch {
		case equality.Semantic.DeepEqual(*old, it.value):
			return true
		case d.owners[it.at].stage == d.stage.Name && !d.overrides(it.at.String()):
			d.fail(invalid(it.at.String(), fmt.Sprintf("stage %q sets it twice, each time differently", d.stage.Name),
				"rename the volume or device of the guest that leads to one of them"))
			return false
		case d.claim(it.at):
			*old = it.value
			return true
		}
		return false
	}
	if !d.claim(it.at) {
		return false
	}
	*list = append(*list, it.value)
	return true
}
