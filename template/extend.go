// SPDX-License-Identifier: Apache-2.0

package template

import corev1 "k8s.io/api/core/v1"

// The interfaces that replace parts of stock stages. An implementation receives the complete input, must not modify it, and
// must return the same result for the same input.

// AnnotationGenerator generates annotations of a Pod.
type AnnotationGenerator interface {
	// Annotations returns the annotations to set. An error ends rendering.
	Annotations(in Input) (map[string]string, error)
}

// NetworkSpecValidator rejects networks and interfaces that cannot be rendered.
type NetworkSpecValidator interface {
	// ValidateNetworks returns nil or the fault; an *Error keeps its field and remedy, and several may be joined.
	ValidateNetworks(in Input) error
}

// SidecarCreator requests containers in addition to the guest's.
type SidecarCreator interface {
	// Sidecars returns the sidecars in rendering order. An error ends rendering.
	Sidecars(in Input) ([]Sidecar, error)
}

// OverheadCalculator adds memory that the Pod needs beyond MemoryOverhead.
type OverheadCalculator interface {
	// Overhead returns terms that are added to the overhead, in bytes.
	Overhead(in Input) []Term
}

// Sidecar is an additional container that takes part in the configuration of the domain (hooks.kubevirt.io/hookSidecars, or
// the sidecar of a network binding plugin). It is rendered as container hook-sidecar-<index>.
type Sidecar struct {
	// Image defaults to Config.SidecarShimImage.
	Image string `json:"image,omitempty"`
	// PullPolicy defaults to the kubelet's.
	PullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// Command and Args default to those of the image.
	Command []string `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	// ConfigMap, if set, mounts one key of a ConfigMap.
	ConfigMap *SidecarConfigMap `json:"configMap,omitempty"`
	// Claim, if set, mounts a PersistentVolumeClaim.
	Claim *SidecarClaim `json:"pvc,omitempty"`
	// Plugin is the name of the network binding plugin that the sidecar belongs to; empty for others.
	Plugin string `json:"-"`
	// DeviceInfo mounts the Pod's network-info file into the sidecar.
	DeviceInfo bool `json:"-"`
	// From is the field of the VMI, or the fact, that the sidecar is derived from, for errors and for Explain. Defaults to
	// sidecars[<index>].
	From string `json:"-"`
}

// SidecarConfigMap is a key of a ConfigMap that is mounted into a sidecar as a file.
type SidecarConfigMap struct {
	// Name of the ConfigMap, in the namespace of the VMI.
	Name string `json:"name"`
	// Key is the key in the ConfigMap.
	Key string `json:"key"`
	// HookPath is the path of the file in the sidecar.
	HookPath string `json:"hookPath"`
}

// SidecarClaim is a claim that is mounted into a sidecar.
type SidecarClaim struct {
	// Name of the PersistentVolumeClaim, in the namespace of the VMI.
	Name string `json:"name"`
	// VolumePath is the mount path in the sidecar.
	VolumePath string `json:"volumePath"`
	// SharedComputePath is the mount path in the compute container. Defaults to no mount.
	SharedComputePath string `json:"sharedComputePath,omitempty"`
}

// AnnotationStage returns a stage that sets the annotations of generators; later generators win. It overrides annotations
// of other stages, since a generator knows the Pod's network or storage better than the VMI's author.
func AnnotationStage(name string, generators ...AnnotationGenerator) Stage {
	return Stage{Name: name, Overrides: []string{fieldAnnotations + "[*"}, Apply: func(d *Draft) error {
		return annotate(d, generators)
	}}
}

// NetworkSpecStage returns the stage network-spec with other validators.
func NetworkSpecStage(validators ...NetworkSpecValidator) Stage {
	return Stage{Name: StageNetworkSpec, Apply: func(d *Draft) error { return validateNetworks(d, validators) }}
}

// HooksStage returns the stage hooks with other creators of sidecars.
func HooksStage(creators ...SidecarCreator) Stage {
	return Stage{Name: StageHooks, Apply: func(d *Draft) error { return askSidecars(d, creators) }}
}

// ResourcesStage returns the stage resources with further terms of the memory overhead.
func ResourcesStage(calculators ...OverheadCalculator) Stage {
	return Stage{
		Name:      StageResources,
		Overrides: []string{"metadata.annotations[kubevirt.io/memory-overhead-bytes]"},
		Apply:     func(d *Draft) error { return resources(d, calculators) },
	}
}

func annotate(d *Draft, generators []AnnotationGenerator) error {
	for _, g := range generators {
		annotations, err := g.Annotations(d.input)
		if err != nil {
			return err
		}
		for _, key := range sortedKeys(annotations) {
			d.Annotation(key, annotations[key])
		}
	}
	return nil
}
