// SPDX-License-Identifier: Apache-2.0

package render

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
	// Pods are the kinds of Pods the stage applies to. Defaults to GuestPods.
	Pods PodKind
	// Overrides are the fields the stage may take over from their owner: a path as in Explanation.Fields, or a prefix
	// followed by *.
	Overrides []string
	// Apply runs the step. Its writes by Draft.Set must be limited to the named field. An error ends rendering; it is wrapped
	// in an *Error unless it is one.
	Apply func(*Draft) error
	// Trusted skips the check that a write by Draft.Set is limited to its field, for which every Set copies the Pod twice. The
	// stages of Default are trusted, and tested without trust.
	Trusted bool
}

// Renderer renders Pods by applying its stages in order. It is immutable and safe for concurrent use.
type Renderer struct {
	stages []Stage
}

// NewRenderer returns a Renderer of the given stages. Names must be unique and not empty.
func NewRenderer(stages ...Stage) (*Renderer, error) {
	seen := map[string]bool{}
	for _, s := range stages {
		if s.Name == "" || s.Apply == nil || seen[s.Name] {
			return nil, fmt.Errorf("template: stage %q: name must be unique and not empty, and Apply must be set: %w",
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
	return NewRenderer(slices.Concat(r.stages[:i], stages, r.stages[i+drop:])...)
}

// Render renders a Pod of one kind. Its errors are or join values of type *Error.
func (r *Renderer) Render(kind PodKind, in Input) (*corev1.Pod, error) {
	d, err := r.render(kind, in)
	if err != nil {
		return nil, err
	}
	d.ledger.release()
	return d.pod, nil
}

func (r *Renderer) render(kind PodKind, in Input) (*rendering, error) {
	d, err := newRendering(kind, in)
	if err != nil {
		return nil, err
	}
	draft := new(Draft)
	for i := range r.stages {
		s := &r.stages[i]
		if !s.appliesTo(kind) {
			continue
		}
		d.stage, *draft = s, Draft{rendering: d}
		err := s.Apply(draft)
		if err != nil || d.conflict != nil {
			err = d.locate(errors.Join(err, d.conflict))
			d.ledger.release()
			return nil, err
		}
	}
	if err := tooLong(d); err != nil {
		d.ledger.release()
		return nil, err
	}
	return d, nil
}

// maxAnnotations is the API server's limit on the total size of annotations (apimachinery: TotalAnnotationSizeLimitB).
const maxAnnotations = 256 << 10

// tooLong rejects a Pod whose annotations, which have several authors, exceed the API server's limit.
func tooLong(d *rendering) error {
	total, longest := 0, ""
	for key, value := range d.pod.Annotations {
		total += len(key) + len(value)
		if n := len(value) - len(d.pod.Annotations[longest]); longest == "" || n > 0 || n == 0 && key < longest {
			longest = key
		}
	}
	if total <= maxAnnotations {
		return nil
	}
	e := Invalid(fieldAnnotations+"["+longest+"]", fmt.Sprintf("is the longest annotation; their total size of %d bytes exceeds the maximum of %d", total, maxAnnotations),
		"shorten the VMI's annotations, or use fewer networks")
	e.Stage, e.Object = "result", d.input.Object(d.kind)
	return e
}

func (s *Stage) appliesTo(kind PodKind) bool {
	pods := s.Pods
	if pods == 0 {
		pods = GuestPods
	}
	return pods&kind != 0
}
