// SPDX-License-Identifier: Apache-2.0

package template

import corev1 "k8s.io/api/core/v1"

// The interfaces by which parts of stock stages are replaced without writing a stage. An implementation is given
// everything the Pod is rendered from; it must not change it, and must answer the same for the same input.

// AnnotationGenerator makes annotations of a Pod.
type AnnotationGenerator interface {
	// Annotations returns annotations to set. An error ends rendering.
	Annotations(in Input) (map[string]string, error)
}

// NetworkSpecValidator refuses networks and interfaces that no Pod can be rendered for.
type NetworkSpecValidator interface {
	// ValidateNetworks returns nil, or an error that says what is wrong; an *Error keeps its field and remedy, and
	// several may be joined.
	ValidateNetworks(in Input) error
}

// SidecarCreator asks for containers beside the guest.
type SidecarCreator interface {
	// Sidecars returns the sidecars in the order in which they are rendered. An error ends rendering.
	Sidecars(in Input) ([]Sidecar, error)
}

// OverheadCalculator counts memory that the Pod needs beyond what MemoryOverhead counts.
type OverheadCalculator interface {
	// Overhead returns terms that are added to the overhead, in bytes.
	Overhead(in Input) []Term
}

// Sidecar is a container beside the guest that takes part in its configuration (hooks.kubevirt.io/hookSidecars, or the
// sidecar of a network binding plugin). It is rendered as container hook-sidecar-<index>.
type Sidecar struct {
	// Image defaults to Config.SidecarShimImage.
	Image string `json:"image,omitempty"`
	// PullPolicy defaults to that of the kubelet.
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
	// From names the field of the VMI, or the fact, that the sidecar follows from, for errors and for Explain. Defaults to
	// sidecars[<index>].
	From string `json:"-"`
}

// SidecarConfigMap is a key of a ConfigMap that a sidecar reads as a file.
type SidecarConfigMap struct {
	// Name is that of the ConfigMap, in the namespace of the VMI.
	Name string `json:"name"`
	// Key is the key in the ConfigMap.
	Key string `json:"key"`
	// HookPath is the path of the file in the sidecar.
	HookPath string `json:"hookPath"`
}

// SidecarClaim is a claim that a sidecar mounts.
type SidecarClaim struct {
	// Name is that of the PersistentVolumeClaim, in the namespace of the VMI.
	Name string `json:"name"`
	// VolumePath is where the sidecar has it.
	VolumePath string `json:"volumePath"`
	// SharedComputePath is where the compute container has it as well. Empty means nowhere.
	SharedComputePath string `json:"sharedComputePath,omitempty"`
}

// AnnotationStage is a stage that sets the annotations of generators, of which later ones win. It overrides annotations
// of other stages, as a generator knows the Pod's network or storage better than the VMI's author.
func AnnotationStage(name string, generators ...AnnotationGenerator) Stage {
	return Stage{Name: name, Overrides: []string{fieldAnnotations + "[*"}, Apply: func(d *Draft) error {
		return annotate(d, generators)
	}}
}

// NetworkSpecStage is the stage network-spec with other validators.
func NetworkSpecStage(validators ...NetworkSpecValidator) Stage {
	return Stage{Name: StageNetworkSpec, Apply: func(d *Draft) error { return validateNetworks(d, validators) }}
}

// HooksStage is the stage hooks with other creators of sidecars.
func HooksStage(creators ...SidecarCreator) Stage {
	return Stage{Name: StageHooks, Apply: func(d *Draft) error { return askSidecars(d, creators) }}
}

// ResourcesStage is the stage resources with further terms of the memory overhead.
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
