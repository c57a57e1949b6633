// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// The descheduler's annotations of Pods and VMIs.
const (
	annotationEvict            = "descheduler.alpha.kubernetes.io/evict"
	annotationPreferNoEviction = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
	annotationEvictOnly        = "descheduler.alpha.kubernetes.io/request-evict-only"
	annotationEvicting         = "descheduler.alpha.kubernetes.io/eviction-in-progress"
)

// identityKeys are labels and annotations that identify Pods and their contents. They are
// set once: no configured key removes or changes them.
var identityKeys = map[string]bool{
	v1.AppLabel: true, v1.CreatedByLabel: true, v1.DeprecatedVirtualMachineNameLabel: true,
	v1.VirtualMachineInstanceIDLabel: true, v1.MigrationJobLabel: true, v1.DomainAnnotation: true,
	v1.MigrationJobNameAnnotation: true, v1.EphemeralProvisioningObject: true, v1.MemoryOverheadAnnotationBytes: true,
	v1.MigrationTransportUnixAnnotation: true, networksAnnotation: true, networkStatusAnnotation: true,
	annotationEvictOnly: true, annotationEvicting: true,
}

// controlPrefix is the prefix of annotations exchanged by virtloom's components; they are not copied to Pods.
const controlPrefix = "virtloom.dev/"

// PodKeys selects the labels and annotations that are synchronized from a VMI to its running
// Pod, in addition to the fixed ones. The zero value adds none.
type PodKeys struct {
	// Labels and Annotations are keys of the VMI. A trailing * matches all keys with
	// that prefix; an empty key and * alone are ignored, and so are keys that identify
	// Pods.
	Labels, Annotations []string
	// StorageKeys are the annotations managed by a generator of backup hooks, and
	// StorageAnnotations those generated for this VMI. A managed key that is not
	// generated is copied from the VMI, if it has it, as in a newly rendered Pod.
	StorageKeys        []string
	StorageAnnotations map[string]string
	// NetworkAnnotations are set if the Pod is ready and lacks them or has other values;
	// none is removed.
	NetworkAnnotations map[string]string
}

// PodMetadata returns the required changes of labels and annotations of the running launcher
// Pod: values by key, nil for a key to remove. Both maps are nil if nothing must change; a
// newly rendered Pod needs no change. Neither object is modified.
// (specs: VMI reconciliation 2.2 #19, #20, 6)
//
//   - The labels kubevirt.io/nodeName and kubevirt.io/outdatedLauncherImage, the
//     annotations descheduler.alpha.kubernetes.io/evict and prefer-no-eviction, and
//     those of keys follow the VMI: a key that the VMI lacks is removed.
//   - A ready Pod gets descheduler.alpha.kubernetes.io/request-evict-only, and
//     eviction-in-progress as long as the VMI is requested to leave the Pod's node
//     (status.evacuationNodeName).
//   - A ready target Pod gets kubevirt.io/migration-target-ready-timestamp after the migration, which
//     notifies the network that the guest's addresses are reachable there.
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

// arrived returns when the domain was ready in the target Pod of its migration; nil otherwise.
func arrived(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) *metav1.Time {
	m := vmi.Status.MigrationState
	if m == nil || m.MigrationUID == "" || pod.Labels[v1.MigrationJobLabel] != string(m.MigrationUID) {
		return nil
	}
	return m.TargetNodeDomainReadyTimestamp
}

// leaving reports whether the VMI was requested to leave the node of the Pod.
func leaving(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) bool {
	return vmi.IsMarkedForEviction() && vmi.Status.EvacuationNodeName == pod.Spec.NodeName
}

// metadataChange collects the changes of a map.
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

// set changes the value of the key.
func (c *metadataChange) set(key, value string) {
	if has, there := c.has[key]; there && has == value {
		delete(c.to, key)
		return
	}
	c.put(key, &value)
}

// remove removes the key.
func (c *metadataChange) remove(key string) {
	if _, there := c.has[key]; !there {
		delete(c.to, key)
		return
	}
	c.put(key, nil)
}

// mark sets a key whose presence matters, not its value, or removes it.
func (c *metadataChange) mark(key, value string, wanted bool) {
	_, there := c.has[key]
	switch {
	case wanted && !there:
		c.set(key, value)
	case !wanted:
		c.remove(key)
	}
}

// take copies the key from another map, or removes it if it is absent there.
func (c *metadataChange) take(from map[string]string, key string) {
	if value, there := from[key]; there {
		c.set(key, value)
		return
	}
	c.remove(key)
}

// follow takes all keys that match the patterns.
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
