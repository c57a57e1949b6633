// SPDX-License-Identifier: Apache-2.0

package template

import (
	"crypto/sha1"
	"encoding/hex"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	computeContainer = "compute"
	istioInject      = "sidecar.istio.io/inject"
)

// metadata sets the Pod's name, owner, labels and annotations.
func metadata(d *render.Draft) error {
	d.From("metadata.uid").Set("metadata.name", func(p *corev1.Pod) { p.Name = LauncherName(d.VMI()) })
	d.From("metadata.namespace").Set("metadata.namespace", func(p *corev1.Pod) { p.Namespace = d.VMI().Namespace })
	d.From("metadata.uid").Set("metadata.ownerReferences", func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(d.VMI(), v1.VirtualMachineInstanceGroupVersionKind),
		}
	})
	// Within a stage, later values win.
	copied := d.From("metadata.labels")
	for _, key := range sortedKeys(d.VMI().Labels) {
		copied.Label(key, d.VMI().Labels[key])
	}
	d.Label(v1.AppLabel, "virt-launcher")
	d.From("metadata.uid").Label(v1.CreatedByLabel, string(d.VMI().UID))
	d.From("spec.hostname, metadata.name").Label(v1.DeprecatedVirtualMachineNameLabel, hostname(d.VMI()))
	d.From("metadata.name").Label(v1.VirtualMachineInstanceIDLabel, identity(d.VMI().Name))
	if inject, ok := d.VMI().Annotations[istioInject]; ok {
		d.From("metadata.annotations["+istioInject+"]").Label(istioInject, inject)
	}
	d.From("metadata.name").Annotation(v1.DomainAnnotation, d.VMI().Name)
	copied = d.From("metadata.annotations")
	for _, key := range sortedKeys(d.VMI().Annotations) {
		if !private(key) {
			copied.Annotation(key, d.VMI().Annotations[key])
		}
	}
	d.Annotation("kubectl.kubernetes.io/default-container", computeContainer)
	d.Annotation(v1.MigrationTransportUnixAnnotation, "true")
	d.Annotation("descheduler.alpha.kubernetes.io/request-evict-only", "")
	return nil
}

// private reports whether an annotation describes the VMI only. A copy of virtloom's ownership annotations would be
// outdated at once.
func private(key string) bool {
	return strings.HasPrefix(key, "kubectl.kubernetes.io") ||
		strings.HasPrefix(key, "virtloom.dev/") ||
		strings.HasPrefix(key, v1.ControllerAPIStorageVersionObservedAnnotation) ||
		strings.HasPrefix(key, v1.ControllerAPILatestVersionObservedAnnotation)
}

// hostname returns the Pod's host name: the one in the spec, otherwise the VMI's name up to its first dot.
func hostname(vmi *v1.VirtualMachineInstance) string {
	if vmi.Spec.Hostname != "" {
		return vmi.Spec.Hostname
	}
	name, _, _ := strings.Cut(vmi.Name, ".")
	return strings.TrimRight(truncate(name, maxLabel), "-")
}

// identity shortens the VMI's name to a label value without collisions.
func identity(name string) string {
	if len(name) <= maxLabel {
		return name
	}
	sum := sha1.Sum([]byte(name)) //nolint:gosec // see the import
	return name[:54] + "-" + hex.EncodeToString(sum[:])[:8]
}
