// SPDX-License-Identifier: Apache-2.0

package vmipatch

import (
	"maps"
	"reflect"
	"slices"
)

// metadata compares labels, annotations and finalizers. A map that becomes empty is kept: the
// API server drops it.
func (p *patch) metadata(was, want map[string]any) {
	for _, name := range []string{"labels", "annotations"} {
		at, said, says := path("/metadata").to(name), member(was, name), member(want, name)
		switch {
		case len(said) > 0:
			p.object(at, mapType, said, says)
		case len(says) > 0:
			p.test(at, nil)
			p.put(at, says)
		}
	}
	had, _ := was["finalizers"].([]any)
	has, _ := want["finalizers"].([]any)
	p.finalizers(had, has)
}

// finalizers removes by index and value. An addition tests the whole list, so that no finalizer
// is added twice.
func (p *patch) finalizers(was, want []any) {
	const at = path("/metadata/finalizers")
	kept := slices.DeleteFunc(slices.Clone(was), func(v any) bool { return !slices.Contains(want, v) })
	switch {
	case slices.Equal(was, want):
	case len(was) == 0:
		p.test(at, nil)
		p.put(at, want)
	case !slices.Equal(kept, want):
		p.test(at, was)
		p.put(at, want)
	default:
		for i, v := range slices.Backward(was) {
			if !slices.Contains(want, v) {
				p.test(at.index(i), v)
				p.remove(at.index(i))
			}
		}
	}
}

// object compares objects of both versions, name by name.
func (p *patch) object(at path, t reflect.Type, was, want map[string]any) {
	names := slices.Sorted(maps.Keys(want))
	for name := range was {
		if _, both := want[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		f, _ := fieldOf(t, name)
		p.value(at.to(name), f, was[name], want[name])
	}
}

// value compares the values at one path; null and a missing value are equal.
func (p *patch) value(at path, f field, was, want any) {
	oldObject, isObject := was.(map[string]any)
	newObject, staysObject := want.(map[string]any)
	oldList, isList := was.([]any)
	newList, staysList := want.([]any)
	switch {
	case reflect.DeepEqual(was, want):
	case want == nil:
		p.field(at, f, was)
		p.remove(at)
	case isObject && staysObject && len(oldObject) > 0:
		p.object(at, f.t, oldObject, newObject)
	case isList && staysList && len(oldList) > 0:
		p.list(at, f.t, oldList, newList)
	default:
		p.field(at, f, was)
		p.put(at, want)
	}
}

// field tests the old value of a field, as far as it is known.
func (p *patch) field(at path, f field, was any) {
	switch {
	case vacant(was), f.always && zero(was):
		// It may or may not be missing in the stored object.
	case was == nil:
		p.test(at, nil)
	default:
		p.same(at, f.t, was)
	}
}

// same tests an old value, as far as its encoding is known: member by member, including the
// absence of members.
func (p *patch) same(at path, t reflect.Type, was any) {
	if plain(t) {
		p.test(at, was)
		return
	}
	switch was := was.(type) {
	case map[string]any:
		names := slices.Sorted(maps.Keys(was))
		if t.Kind() == reflect.Struct {
			names = slices.Sorted(maps.Keys(fieldsOf(t)))
		}
		for _, name := range names {
			f, _ := fieldOf(t, name)
			p.field(at.to(name), f, was[name])
		}
	case []any:
		for i, v := range was {
			p.same(at.index(i), elementOf(t), v)
		}
		p.length(at, len(was))
	}
}
