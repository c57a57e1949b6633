// SPDX-License-Identifier: Apache-2.0

package template

import (
	"cmp"
	"slices"

	"github.com/virtloom/virtloom/template/render"
)

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
	Sidecars(in Input) ([]render.Sidecar, error)
}

// OverheadCalculator adds memory that the Pod needs beyond MemoryOverhead.
type OverheadCalculator interface {
	// Overhead returns terms that are added to the overhead, in bytes.
	Overhead(in Input) []render.Term
}

// AnnotationStage returns a stage that sets the annotations of generators; later generators win. It overrides annotations
// of other stages, since a generator knows the Pod's network or storage better than the VMI's author.
func AnnotationStage(name string, generators ...AnnotationGenerator) render.Stage {
	return render.Stage{Name: name, Overrides: []string{"metadata.annotations[*"}, Apply: func(d *render.Draft) error {
		return annotate(d, generators)
	}}
}

// NetworkSpecStage returns the stage network-spec with other validators.
func NetworkSpecStage(validators ...NetworkSpecValidator) render.Stage {
	return render.Stage{Name: StageNetworkSpec, Apply: func(d *render.Draft) error { return validateNetworks(d, validators) }}
}

// HooksStage returns the stage hooks with other creators of sidecars.
func HooksStage(creators ...SidecarCreator) render.Stage {
	return render.Stage{Name: StageHooks, Apply: func(d *render.Draft) error { return askSidecars(d, creators) }}
}

// ResourcesStage returns the stage resources with further terms of the memory overhead.
func ResourcesStage(calculators ...OverheadCalculator) render.Stage {
	return render.Stage{
		Name:      StageResources,
		Overrides: []string{"metadata.annotations[kubevirt.io/memory-overhead-bytes]"},
		Apply:     func(d *render.Draft) error { return resources(d, calculators) },
	}
}

func annotate(d *render.Draft, generators []AnnotationGenerator) error {
	for _, g := range generators {
		annotations, err := g.Annotations(d.Input())
		if err != nil {
			return err
		}
		for _, key := range sortedKeys(annotations) {
			d.Annotation(key, annotations[key])
		}
	}
	return nil
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	if len(m) == 0 {
		return nil
	}
	keys := make([]K, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
