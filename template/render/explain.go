// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Explanation is a rendered Pod with the origins of its fields.
type Explanation struct {
	// Pod is the rendered Pod.
	Pod *corev1.Pod
	// Fields are the origins of all fields that were set, sorted by path.
	Fields []Origin
}

// Origin records the source of one field of a Pod.
type Origin struct {
	// Path is the field's path. Elements of lists and maps are named by their merge key:
	// spec.containers[compute].env[POD_NAME], metadata.labels[kubevirt.io].
	Path string
	// Stage is the name of the stage that set the field.
	Stage string
	// From is the field of the VMI, or the fact, that the value is derived from; empty for a constant.
	From string
	// Overrode is the stage that had set the field before, if any.
	Overrode string
	// Terms are the lines whose sum is the value, for calculated amounts.
	Terms []Term
}

// Explain renders a Pod of one kind and returns it with the origins of its fields. Its errors are those of Render.
func (r *Renderer) Explain(kind PodKind, in Input) (*Explanation, error) {
	d, err := r.render(kind, in)
	if err != nil {
		return nil, err
	}
	defer d.ledger.release()
	e := &Explanation{Pod: d.pod, Fields: make([]Origin, 0, len(d.ledger.owners.entries))}
	for _, entry := range d.ledger.owners.entries {
		f, o := entry.field, entry.origin
		if o.stage == "" {
			continue
		}
		e.Fields = append(e.Fields, Origin{
			Path: f.String(), Stage: o.stage, From: o.from, Overrode: o.overrode, Terms: d.ledger.terms[f],
		})
	}
	slices.SortFunc(e.Fields, func(a, b Origin) int { return cmp.Compare(a.Path, b.Path) })
	return e, nil
}

// At returns the origins of a field and of its parts. If the field was set as a part of another field, it returns the
// origin of that one as well. Elements may be named by key or index, with brackets or dots, as in kubectl explain and
// JSONPath; a key takes precedence over an index:
//
//	spec.containers[compute].resources.requests[memory]
//	.spec.containers[0].resources.requests.memory
//
// A path at which nothing was set is an error.
func (e *Explanation) At(path string) ([]Origin, error) {
	asked := strings.Trim(path, ".")
	found := e.below(asked)
	if len(found) == 0 {
		asked = e.named(asked)
		found = e.below(asked)
	}
	if len(found) == 0 || dots.Replace(found[0].Path) != dots.Replace(asked) {
		if whole := e.around(asked); whole != nil {
			found = append([]Origin{*whole}, found...)
		}
	}
	if len(found) == 0 {
		return nil, &Error{
			Stage: "explain", Object: "Pod " + e.Pod.Namespace + "/" + e.Pod.Name, Field: path,
			Reason: "was not set by any stage", Remedy: "use the path of the containing field", Err: ErrInvalid,
		}
	}
	return found, nil
}

// below returns the origins of a field and its parts, the field's own first.
func (e *Explanation) below(asked string) (found []Origin) {
	if everything := asked == ""; !everything {
		if asked = dots.Replace(asked); asked == "" {
			return nil
		}
	}
	for i := range e.Fields {
		if f := parseField(e.Fields[i].Path); f.begins(asked) {
			found = append(found, e.Fields[i]) // sorted by path: a field comes before its parts
		}
	}
	return found
}

// around returns the origin of the smallest field that contains the path. Containers do not count: the stage that adds one
// is not the origin of unset fields in it. Neither do fields without parts.
func (e *Explanation) around(asked string) (whole *Origin) {
	part := parseField(asked).atomicItem()
	for i := range e.Fields {
		f := parseField(e.Fields[i].Path)
		inside := f.contains(part)
		if part.name == "" { // written with dots only
			inside = f.item == "" && strings.HasPrefix(dots.Replace(asked), f.dotted()+".")
		}
		if !inside || f.isContainer() || f.isText() || (whole != nil && len(whole.Path) > len(e.Fields[i].Path)) {
			continue
		}
		whole = &e.Fields[i]
	}
	return whole
}

var (
	dots    = strings.NewReplacer("[", ".", "]", "")
	indexed = regexp.MustCompile(`^spec\.(containers|initContainers|volumes)(?:\[([0-9]+)\]|\.([0-9]+)(\.|\[|$))`)
)

// named returns a path with names instead of indexes.
func (e *Explanation) named(path string) string {
	return indexed.ReplaceAllStringFunc(path, func(s string) string {
		m := indexed.FindStringSubmatch(s)
		i, err := strconv.Atoi(m[2] + m[3])
		if names := e.names(m[1]); err == nil && i < len(names) {
			return "spec." + m[1] + "[" + names[i] + "]" + m[4]
		}
		return s
	})
}

func (e *Explanation) names(list string) (names []string) {
	switch list {
	case "volumes":
		for i := range e.Pod.Spec.Volumes {
			names = append(names, e.Pod.Spec.Volumes[i].Name)
		}
	case "containers":
		for i := range e.Pod.Spec.Containers {
			names = append(names, e.Pod.Spec.Containers[i].Name)
		}
	default:
		for i := range e.Pod.Spec.InitContainers {
			names = append(names, e.Pod.Spec.InitContainers[i].Name)
		}
	}
	return names
}

// String returns one line with path, stage and source, followed by one line for each term.
func (o Origin) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: stage %s", o.Path, o.Stage)
	if o.From != "" {
		fmt.Fprintf(&b, ", from %s", o.From)
	}
	if o.Overrode != "" {
		fmt.Fprintf(&b, ", instead of stage %s", o.Overrode)
	}
	for _, t := range o.Terms {
		b.WriteString("\n  " + t.String())
	}
	return b.String()
}
