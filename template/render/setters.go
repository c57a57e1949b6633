// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// Set writes a field without a setter of its own. path is the field's path in the Pod, such as spec.runtimeClassName or
// spec.containers[compute].image; write is called if the field exists in Pods and the stage may own it and all of its
// parts. A write that changes anything else is an error and has no effect. A path into an element of a list, other than a
// container, refers to the element.
func (d Draft) Set(path string, write func(*corev1.Pod)) {
	f, ok := d.parse(path)
	switch {
	case !ok:
	case !f.exists():
		d.Fail(Invalid(path, fmt.Sprintf("stage %q writes a field that does not exist in Pods", d.stage.Name), "correct the path"))
	case !d.claimWhole(f.atomic()):
	case d.stage.Trusted:
		d.places = nil
		write(d.pod)
	default:
		d.places = nil
		d.writeAlone(path, f.atomic(), write)
	}
}

// parse parses the path of a field. It rejects any form other than that of Explanation.Fields, which would bypass the
// field's owner.
func (d Draft) parse(path string) (field, bool) {
	f := parseField(path)
	if f.name == "" && f.isCanonical() && !strings.ContainsRune(path, '[') {
		return f, true
	}
	if !strings.HasPrefix(path, f.atomic().String()) || strings.Contains(path, "[]") || !f.isCanonical() || d.isIndexed(f) {
		d.Fail(Invalid(path, fmt.Sprintf("stage %q uses an invalid path", d.stage.Name),
			"use the form of Explanation.Fields, with elements by name in brackets: spec.containers[compute].image"))
		return field{}, false
	}
	return f, true
}

// isIndexed reports whether an element is identified by its index.
func (d Draft) isIndexed(f field) bool {
	if f.isText() {
		return false
	}
	return isNumber(f.name) && !d.ledger.has(field{base: f.base, name: f.name}) || isNumber(f.item) && !d.ledger.has(f)
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// Label sets one label. Setting an existing value again is no conflict, here and for Annotation and NodeSelector.
func (d Draft) Label(key, value string) { d.setKey(fieldLabels, &d.pod.Labels, key, value) }

// Annotation sets one annotation.
func (d Draft) Annotation(key, value string) {
	d.setKey(fieldAnnotations, &d.pod.Annotations, key, value)
}

// NodeSelector requires one node label.
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

// Drop removes one annotation, label or node selector of another stage; path is its path, such as
// spec.nodeSelector[kubernetes.io/arch]. The stage must declare the field in Overrides.
func (d Draft) Drop(path string) {
	f, ok := d.parse(path)
	if !ok {
		return
	}
	var m map[string]string
	switch f.base {
	case fieldLabels:
		m = d.pod.Labels
	case fieldAnnotations:
		m = d.pod.Annotations
	case fieldNodeSelector:
		m = d.pod.Spec.NodeSelector
	}
	if !f.isText() || f.sub != "" {
		d.Fail(Invalid(path, fmt.Sprintf("stage %q must drop a label, annotation or node selector only", d.stage.Name),
			"use a path such as metadata.labels[key], or write the field with Set"))
		return
	}
	if _, there := m[f.name]; there && d.claim(f) {
		delete(m, f.name)
	}
}

// Volume adds a volume. Adding an equal element again has no effect, here and for all lists; a different volume of that
// name replaces it if the stage declares the field in Overrides.
func (d Draft) Volume(v corev1.Volume) {
	if d.pod.Spec.Volumes == nil {
		d.pod.Spec.Volumes = slices.Grow(d.pod.Spec.Volumes, 16) // enough for most Pods
	}
	setItem(d, &d.pod.Spec.Volumes, field{base: fieldVolumes, name: v.Name}, v, volumeKey)
}

// EmptyDir adds an emptyDir volume.
func (d Draft) EmptyDir(name string) {
	d.Volume(corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
}

// PullSecret adds an image pull secret. The empty name adds nothing.
func (d Draft) PullSecret(name string) {
	if name != "" {
		setItem(d, &d.pod.Spec.ImagePullSecrets, field{base: fieldPullSecrets, name: name},
			corev1.LocalObjectReference{Name: name}, secretKey)
	}
}

// ResourceClaim adds a resource claim to the Pod. Containers use it by Container.Claim.
func (d Draft) ResourceClaim(c corev1.PodResourceClaim) {
	setItem(d, &d.pod.Spec.ResourceClaims, field{base: fieldResourceClaims, name: c.Name}, c, podClaimKey)
}

// Toleration adds a toleration.
func (d Draft) Toleration(t corev1.Toleration) {
	setItem(d, &d.pod.Spec.Tolerations, field{base: fieldTolerations, name: tolerationKey(&t)}, t, tolerationKey)
}

// The keys of the elements of a Pod's lists.
func volumeKey(v *corev1.Volume) string                { return v.Name }
func secretKey(s *corev1.LocalObjectReference) string  { return s.Name }
func podClaimKey(c *corev1.PodResourceClaim) string    { return c.Name }
func containerKey(c *corev1.Container) string          { return c.Name }
func mountKey(m *corev1.VolumeMount) string            { return m.MountPath }
func deviceKey(d *corev1.VolumeDevice) string          { return d.DevicePath }
func envKey(e *corev1.EnvVar) string                   { return e.Name }
func containerClaimKey(c *corev1.ResourceClaim) string { return c.Name + "/" + c.Request }

func portKey(p *corev1.ContainerPort) string {
	return strconv.Itoa(int(p.ContainerPort)) + "/" + string(p.Protocol) + "/" + p.Name
}

func tolerationKey(t *corev1.Toleration) string {
	return t.Key + ":" + string(t.Operator) + ":" + t.Value + ":" + string(t.Effect)
}

// setItem adds an element to a list, or replaces the one with the same key, which is the last part of the field.
func setItem[T any](d Draft, list *[]T, at field, value T, key func(*T) string) bool {
	wanted := at.name
	if at.item != "" {
		wanted = at.item
	}
	if i := find(d.rendering, *list, at.list(), wanted, key); i >= 0 {
		old := &(*list)[i]
		switch {
		case equality.Semantic.DeepEqual(*old, value):
			return true
		case d.ledger.owners.get(at).stage == d.stage.Name && !d.overrides(at.String()):
			d.Fail(Invalid(at.String(), fmt.Sprintf("stage %q sets two different values", d.stage.Name),
				"rename the volume or device of the VMI behind one of them"))
			return false
		case d.claim(at):
			*old = value
			return true
		}
		return false
	}
	if !d.claim(at) {
		return false
	}
	*list = append(*list, value)
	d.places.added(at.list(), wanted, len(*list))
	return true
}
