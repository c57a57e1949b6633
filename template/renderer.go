// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Stage is one named step of rendering. It reads the Draft's facts and writes the Draft's Pod through its setters.
type Stage struct {
	// Name is unique in a Renderer.
	Name string
	// Overrides are the fields the stage may take over from the stage that owns them: a path as in Explanation.Fields, or
	// a path ending in * for all that begin so.
	Overrides []string
	// Apply does the step. An error ends rendering; one that is not an *Error is wrapped into one.
	Apply func(*Draft) error
}

// Renderer renders Pods by applying its stages in order. It is immutable and safe for concurrent use.
type Renderer struct {
	stages []Stage
}

// Explanation is a rendered Pod and where its parts come from.
type Explanation struct {
	// Pod is the rendered Pod.
	Pod *corev1.Pod
	// Fields maps the path of each field to the name of the stage that set it. Elements of lists are named by their
	// merge key: spec.containers[compute].env[POD_NAME], metadata.labels[kubevirt.io].
	Fields map[string]string
	// Overhead explains the memory that the Pod needs beyond the guest's.
	Overhead Overhead
}

// New returns a Renderer of the given stages. Names must be unique and not empty.
func New(stages ...Stage) (*Renderer, error) {
	seen := map[string]bool{}
	for _, s := range stages {
		if s.Name == "" || s.Apply == nil || seen[s.Name] {
			return nil, fmt.Errorf("template: stage %q: name must be unique and not empty, Apply must be set: %w",
				s.Name, ErrStage)
		}
		seen[s.Name] = true
	}
	return &Renderer{stages: slices.Clone(stages)}, nil
}

// Stages returns the names of the stages in order.
func (r *Renderer) Stages() []string {
	names := make([]string, len(r.stages))
	for i, s := range r.stages {
		names[i] = s.Name
	}
	return names
}

// Before returns a Renderer with stages inserted before the named one.
func (r *Renderer) Before(name string, stages ...Stage) (*Renderer, error) {
	return r.splice(name, 0, 0, stages)
}

// After returns a Renderer with stages inserted after the named one.
func (r *Renderer) After(name string, stages ...Stage) (*Renderer, error) {
	return r.splice(name, 1, 0, stages)
}

// Replace returns a Renderer with the named stage replaced.
func (r *Renderer) Replace(name string, stages ...Stage) (*Renderer, error) {
	return r.splice(name, 0, 1, stages)
}

// Remove returns a Renderer without the named stage.
func (r *Renderer) Remove(name string) (*Renderer, error) {
	return r.splice(name, 0, 1, nil)
}

func (r *Renderer) splice(name string, offset, drop int, stages []Stage) (*Renderer, error) {
	i := slices.IndexFunc(r.stages, func(s Stage) bool { return s.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("template: stage %q of %v: %w", name, r.Stages(), ErrStage)
	}
	i += offset
	return New(slices.Concat(r.stages[:i], stages, r.stages[i+drop:])...)
}

// Launcher renders the Pod in which the VMI runs.
func (r *Renderer) Launcher(in Input) (*corev1.Pod, error) {
	in.Migration = nil
	d, err := r.render(in)
	if err != nil {
		return nil, err
	}
	return d.pod, nil
}

// MigrationTarget renders the Pod to which Input.Migration moves the VMI.
func (r *Renderer) MigrationTarget(in Input) (*corev1.Pod, error) {
	if in.Migration == nil {
		return nil, &Error{
			Stage: "input", Object: objectName(in.VMI), Field: "Input.Migration",
			Reason: "a migration target needs the migration", Err: ErrMissingFact,
		}
	}
	d, err := r.render(in)
	if err != nil {
		return nil, err
	}
	return d.pod, nil
}

// Explain renders the migration target if Input.Migration is set, else the launcher, and tells where its fields come from.
func (r *Renderer) Explain(in Input) (*Explanation, error) {
	d, err := r.render(in)
	if err != nil {
		return nil, err
	}
	return &Explanation{Pod: d.pod, Fields: d.owners, Overhead: MemoryOverhead(d.vmi, d.config)}, nil
}

func (r *Renderer) render(in Input) (*Draft, error) {
	d, err := newDraft(in)
	if err != nil {
		return nil, err
	}
	for _, s := range r.stages {
		d.stage = s
		err := errors.Join(s.Apply(d), d.takeConflict())
		if err != nil {
			return nil, d.locate(err)
		}
	}
	return d, nil
}
