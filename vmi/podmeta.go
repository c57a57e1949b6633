// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// The descheduler's annotations, of Pods and of guests.
const (
	annotationEvict            = "descheduler.alpha.kubernetes.io/evict"
	annotationPreferNoEviction = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
	annotationEvictOnly        = "descheduler.alpha.kubernetes.io/request-evict-only"
	annotationEvicting         = "descheduler.alpha.kubernetes.io/eviction-in-progress"
)

// identityKeys are labels and annotations by which Pods are found and understood.
// They are the Pod's own: no configured key takes them away or changes them.
var identityKeys = map[string]bool{
	v1.AppLabel: true, v1.CreatedByLabel: true, v1.DeprecatedVirtualMachineNameLabel: true,
	v1.VirtualMachineInstanceIDLabel: true, v1.MigrationJobLabel: true, v1.DomainAnnotation: true,
	v1.MigrationJobNameAnnotation: true, v1.EphemeralProvisioningObject: true, v1.MemoryOverheadAnnotationBytes: true,
	v1.MigrationTransportUnixAnnotation: true, networksAnnotation: true, networkStatusAnnotation: true,
	annotationEvictOnly: true, annotationEvicting: true,
}

// controlPrefix begins the annotations by which virtloom's halves tell each other of a guest; no Pod has a copy.
const controlPrefix = "virtloom.dev/"

// PodKeys says which labels and annotations of a guest its Pod follows while it
// runs, beside those that it always does. The zero value adds none.
type PodKeys struct {
	// Labels and Annotations are keys of the guest's. One that ends in * stands for
	// all keys that begin so; an empty one and * alone are ignored, and so are keys
	// by which Pods are found and understood.
	Labels, Annotations []string
	// StorageKeys are the annotations that a generator of backup hooks manages, and
	// StorageAnnotations what it generates for this guest. A managed key that it
	// does not generate is the guest's own annotation, if it has one, as in a newly
	// rendered Pod.
	StorageKeys        []string
	StorageAnnotations map[string]string
	// NetworkAnnotations are set if the Pod is ready and lacks them or has other
	// ones; none is removed.
	NetworkAnnotations map[string]string
}

// PodMetadata returns how labels and annotations of the guest's running Pod must
// change: values by keys, nil for a key that goes. Both are nil if nothing must
// change; a newly rendered Pod needs none. Neither object is modified.
// (specs: VMI reconciliation 2.2 #19, #20, 6)
//
//   - The labels kubevirt.io/nodeName and kubevirt.io/outdatedLauncherImage, the
//     annotations descheduler.alpha.kubernetes.io/evict and prefer-no-eviction, and
//     those of keys follow the guest: what it lacks, the Pod loses.
//   - A ready Pod gets descheduler.alpha.kubernetes.io/request-evict-only, and
//     eviction-in-progress as long as the guest is asked to leave the Pod's node
//     (status.evacuationNodeName).
//   - A ready Pod that the guest has moved to gets kubevirt.io/migration-target-ready-timestamp, by which the
//     network learns that the guest's addresses are there.
func PodMetadata(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, keys PodKeys) (labels, annotations map[string]*string) {
	l := metadataChange{has: pod.Labels}
	l.follow(vmi.Labels, append([]string{v1.NodeNameLabel, v1.OutdatedLauncherImageLabel}, keys.Labels...))

	a := metadataChange{has: pod.Annotations}
	a.follow(vmi.Annotations, append([]string{annotationEvict, annotationPreferNoEviction}, keys.Annotations...))
	for _, key := range keys.StorageKeys {
		if value, generated := keys.StorageAnnotations[key]; generated {
			a.set(key, value)
		} else {
			a.take(vmi.Annotations, key)
		}
	}
	if PodReady(pod) {
		a.mark(annotationEvictOnly, "", true)
		a.mark(annotationEvicting, "true", leaving(vmi, pod))
		if at := arrived(vmi, pod); at != nil && pod.Annotations[v1.MigrationTargetReadyTimestamp] == "" {
			a.set(v1.MigrationTargetReadyTimestamp, at.String())
		}
		for key, value := range keys.NetworkAnnotations {
			a.set(key, value)
		}
	}
	return l.result(), a.result()
}

// arrived is when the guest was at a Pod that was made for it to move to; nil if it was not.
func arrived(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) *metav1.Time {
	m := vmi.Status.MigrationState
	if m == nil || m.MigrationUID == "" || pod.Labels[v1.MigrationJobLabel] != string(m.MigrationUID) {
		return nil
	}
	return m.TargetNodeDomainReadyTimestamp
}

// leaving tells whether the guest was asked to leave the node of the Pod.
func leaving(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) bool {
	return vmi.IsMarkedForEviction() && vmi.Status.EvacuationNodeName == pod.Spec.NodeName
}

// metadataChange collects how a map must change.
type metadataChange struct {
	has map[string]string
	to  map[string]*string
}

func (c *metadataChange) result() map[string]*string {
	if len(c.to) == 0 {
		return nil
	}
	return c.to
}

// set lets the key have a value.
func (c *metadataChange) set(key, value string) {
	if has, there := c.has[key]; there && has == value {
		delete(c.to, key)
		return
	}
	c.put(key, &value)
}

// remove lets the key be gone.
func (c *metadataChange) remove(key string) {
	if _, there := c.has[key]; !there {
		delete(c.to, key)
		return
	}
	c.put(key, nil)
}

// mark sets a key whose presence counts, not its value, or removes it.
func (c *metadataChange) mark(key, value string, wanted bool) {
	_, there := c.has[key]
	switch {
	case wanted && !there:
		c.set(key, value)
	case !wanted:
		c.remove(key)
	}
}

// take lets the key be as it is in another map.
func (c *metadataChange) take(from map[string]string, key string) {
	if value, there := from[key]; there {
		c.set(key, value)
		return
	}
	c.remove(key)
}

// follow takes all keys of some patterns.
func (c *metadataChange) follow(from map[string]string, patterns []string) {
	for _, pattern := range patterns {
		prefix, isPrefix := strings.CutSuffix(pattern, "*")
		keys := []string{pattern}
		switch {
		case prefix == "":
			continue
		case isPrefix:
			keys = slices.Concat(withPrefix(from, prefix), withPrefix(c.has, prefix))
		}
		for _, key := range keys {
			if !identityKeys[key] && !strings.HasPrefix(key, controlPrefix) {
				c.take(from, key)
			}
		}
	}
}

func (c *metadataChange) put(key string, value *string) {
	if c.to == nil {
		c.to = map[string]*string{}
	}
	c.to[key] = value
}

func withPrefix(m map[string]string, prefix string) []string {
	var keys []string
	for key := range m {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	return keys
}
