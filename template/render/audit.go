// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A stage that writes by Set names the field it writes and thereby owns it. This is enforced for stages that are not trusted: each write
// is made to a copy of the Pod and applied only if nothing but the field differs. That costs a copy for each Set; trusted
// stages skip it.

// writeAlone lets a stage write one field and nothing else.
func (d Draft) writeAlone(path string, f field, write func(*corev1.Pod)) {
	written := d.pod.DeepCopy()
	write(written)
	other, err := differsBeside(d.pod, written, f)
	switch {
	case err != nil:
		d.Fail(&Error{Field: path, Reason: "the write left an invalid Pod", Err: err})
	case other != "":
		d.Fail(Invalid(other, fmt.Sprintf("stage %q changed it by Set of %s", d.stage.Name, path), "write each field by its own Set"))
	default:
		*d.pod = *written.DeepCopy() // the stage may have kept the pointer
	}
}

// differsBeside returns a path at which two Pods differ outside of the field and its parts; empty if there is none.
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

// step leads from a value to a part of it: to a named field, or to the element with a key.
type step struct {
	name    string
	element bool
}

// steps returns the steps to the field.
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

// without returns a value without the part at the end of the steps and without values that are empty then. It modifies the
// value.
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
	if _, isText := list[i].(string); isText { // a flag, which owns the words after it
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

// firstDifference returns the path of the first difference of two trees, in name order; empty if they are equal.
func firstDifference(at string, a, b any) string {
	if reflect.DeepEqual(a, b) {
		return ""
	}
	was, isMap := a.(map[string]any)
	is, both := b.(map[string]any)
	if !isMap || !both {
		return pathOf(at)
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Keys(was)), slices.Collect(maps.Keys(is)))))) {
		if found := firstDifference(at+"."+name, was[name], is[name]); found != "" {
			return found
		}
	}
	return pathOf(at)
}

// pathOf returns a path without its leading dot; that of the whole Pod is a dot.
func pathOf(at string) string {
	if at == "" {
		return "."
	}
	return at[1:]
}

// known are the bases and subs of fields that exist in Pods.
var known sync.Map

// exists reports whether Pods have the field.
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

// stepInto returns the type of a part; nil if it does not exist.
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

// stepIntoField returns the type of the field if it is the part or has it inline, otherwise nil.
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
