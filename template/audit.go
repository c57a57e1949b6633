// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A stage that writes by Set says which field it writes, and that is what makes it the field's owner. Stages of the caller's
// own are held to it: each of their writes is made to a copy of the Pod, and becomes part of the Pod if nothing differs but the
// field. That costs a copy for each Set; the stock stages are spared it, and held to it by tests.

// writeAlone lets a stage write one field, and nothing else.
func (d Draft) writeAlone(path string, f field, write func(*corev1.Pod)) {
	written := d.pod.DeepCopy()
	write(written)
	other, err := differsBeside(d.pod, written, f)
	switch {
	case err != nil:
		d.fail(&Error{Field: path, Reason: "what was written is no Pod", Err: err})
	case other != "":
		d.fail(invalid(other, fmt.Sprintf("stage %q changes it by Set of %s", d.stage.Name, path), "write each field by a Set of its own"))
	default:
		*d.pod = *written.DeepCopy() // the stage may have kept what it wrote to
	}
}

// differsBeside returns a path at which two Pods differ that is not that of the field or of a part of it; empty if there is
// none.
func differsBeside(before, after *corev1.Pod, f field) (string, error) {
	was, err := runtime.DefaultUnstructuredConverter.ToUnstructured(before)
	if err != nil {
		return "", fmt.Errorf("template: %w", err)
	}
	is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(after)
	if err != nil {
		return "", fmt.Errorf("template: %w", err)
	}
	return firstDifference("", without(was, f.steps()), without(is, f.steps())), nil
}

// step leads from a value to a part of it: to the field of a name, or to the element that has a key.
type step struct {
	name    string
	element bool
}

// steps lead to the field.
func (f field) steps() (all []step) {
	names := func(path string) {
		for _, name := range strings.FieldsFunc(path, func(r rune) bool { return r == '.' }) {
			all = append(all, step{name: name})
		}
	}
	names(f.base)
	if f.name != "" {
		all = append(all, step{f.name, true})
	}
	names(f.sub)
	if f.item != "" {
		all = append(all, step{f.item, true})
	}
	return all
}

// without is a value without the part that the steps lead to, and without whatever is empty then. It changes the value.
func without(v any, way []step) any {
	if len(way) == 0 {
		return nil
	}
	switch v := v.(type) {
	case map[string]any:
		if rest := without(v[way[0].name], way[1:]); rest == nil {
			delete(v, way[0].name)
		} else {
			v[way[0].name] = rest
		}
		if len(v) == 0 {
			return nil
		}
		return v
	case []any:
		return withoutElement(v, way)
	default:
		return v
	}
}

func withoutElement(list []any, way []step) any {
	key := way[0].name
	i := slices.IndexFunc(list, func(v any) bool {
		switch v := v.(type) {
		case string:
			return v == key
		case map[string]any:
			return slices.Contains(keysOf(v), key)
		}
		return false
	})
	if i < 0 || !way[0].element {
		return list
	}
	end := i + 1
	if _, isText := list[i].(string); isText { // a flag, which the words behind it belong to
		words, _ := wordsBefore(list[end:]).([]any)
		end += len(words)
	}
	if rest := without(list[i], way[1:]); rest != nil {
		list[i] = rest
		return list
	}
	if list = slices.Delete(list, i, end); len(list) == 0 {
		return nil
	}
	return list
}

// firstDifference is the path of the first value, by name, in which two trees differ; empty if they do not.
func firstDifference(at string, a, b any) string {
	if reflect.DeepEqual(a, b) {
		return ""
	}
	was, isMap := a.(map[string]any)
	is, both := b.(map[string]any)
	if !isMap || !both {
		return pathOf(at)
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(sortedKeys(was), sortedKeys(is))))) {
		if found := firstDifference(at+"."+name, was[name], is[name]); found != "" {
			return found
		}
	}
	return pathOf(at)
}

// pathOf is a path without the dot before it; that of the Pod as a whole is a dot.
func pathOf(at string) string {
	if at == "" {
		return "."
	}
	return at[1:]
}

// known are the bases and subs of fields that Pods have.
var known sync.Map

// exists reports whether Pods have such a field.
func (f field) exists() bool {
	shape := field{base: f.base, sub: f.sub}
	if f.name != "" {
		shape.name = "*"
	}
	if _, found := known.Load(shape); found {
		return true
	}
	t := reflect.TypeFor[corev1.Pod]()
	for _, s := range f.steps() {
		if t = stepInto(t, s); t == nil {
			return false
		}
	}
	known.Store(shape, true)
	return true
}

// stepInto is the type of a part; nil if there is no such part.
func stepInto(t reflect.Type, s step) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case s.element && (t.Kind() == reflect.Slice || t.Kind() == reflect.Map):
		return t.Elem()
	case s.element || t.Kind() != reflect.Struct:
		return nil
	}
	for i := range t.NumField() {
		if found := stepIntoField(t.Field(i), s); found != nil {
			return found
		}
	}
	return nil
}

// stepIntoField is the type of the field if it is the part, or has it inline; nil if neither.
func stepIntoField(field reflect.StructField, s step) reflect.Type {
	name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
	switch {
	case name == s.name && name != "":
		return field.Type
	case name == "" && (field.Anonymous || strings.Contains(options, "inline")):
		return stepInto(field.Type, s)
	}
	return nil
}
