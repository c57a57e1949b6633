// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	strictjson "sigs.k8s.io/json"
)

// fault is a field that a type does not have, or a value of the wrong type.
type fault struct {
	field, reason string
	unknown       bool
}

// faults compares JSON with a type, field by field. Strict decoders do not suffice: they ignore everything below a type
// with its own decoder, such as the spec of a VirtualMachineInstance, and do not report the index in a list.
func faults(t reflect.Type, raw json.RawMessage, at string) []fault {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if string(raw) == "null" {
		return nil
	}
	if decodesItself(t) {
		return leaf(t, raw, at)
	}
	var all []fault
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		var fields map[string]json.RawMessage
		if json.Unmarshal(raw, &fields) != nil {
			return []fault{{field: at, reason: wanted(t, raw)}}
		}
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if t.Kind() == reflect.Map {
				all = append(all, faults(t.Elem(), fields[name], at+"["+name+"]")...)
				continue
			}
			below := strings.TrimPrefix(at+"."+name, ".")
			if ft := fieldType(t, name); ft != nil {
				all = append(all, faults(ft, fields[name], below)...)
			} else {
				all = append(all, fault{field: below, unknown: true})
			}
		}
	case reflect.Slice:
		var items []json.RawMessage
		if json.Unmarshal(raw, &items) != nil {
			return leaf(t, raw, at) // or bytes
		}
		for i, item := range items {
			all = append(all, faults(t.Elem(), item, fmt.Sprintf("%s[%d]", at, i))...)
		}
	default:
		return leaf(t, raw, at)
	}
	return all
}

// decodesItself reports whether the JSON of a type is not that of its fields. Types of KubeVirt with their own decoder only
// normalize their fields.
func decodesItself(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) &&
		!strings.HasPrefix(t.PkgPath(), "kubevirt.io/api/")
}

func leaf(t reflect.Type, raw json.RawMessage, at string) []fault {
	if strictjson.UnmarshalCaseSensitivePreserveInts(raw, reflect.New(t).Interface()) == nil {
		return nil
	}
	return []fault{{field: at, reason: wanted(t, raw)}}
}

// fieldType returns the type of the field with a JSON name; nil if there is none.
func fieldType(t reflect.Type, name string) reflect.Type {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == name && tag != "-" {
			return f.Type
		}
		if !f.Anonymous || tag != "" {
			continue
		}
		embedded := f.Type
		if embedded.Kind() == reflect.Pointer {
			embedded = embedded.Elem()
		}
		if found := fieldType(embedded, name); found != nil {
			return found
		}
	}
	return nil
}

// wanted describes valid values of a type.
func wanted(t reflect.Type, raw json.RawMessage) string {
	kinds := map[reflect.Type]string{
		reflect.TypeFor[resource.Quantity](): "a quantity, such as 500m, 2 or 1Gi",
		reflect.TypeFor[metav1.Time]():       "a time, such as 2026-01-31T12:00:00Z",
		reflect.TypeFor[metav1.MicroTime]():  "a time, such as 2026-01-31T12:00:00.000000Z",
		reflect.TypeFor[metav1.Duration]():   "a duration, such as 90s",
	}
	want, special := kinds[t]
	if !special && decodesItself(t) {
		err := strictjson.UnmarshalCaseSensitivePreserveInts(raw, reflect.New(t).Interface())
		return excerpt(raw) + ": " + oneLine(err)
	}
	if !special {
		want = wantedKind(t)
	}
	return excerpt(raw) + " must be " + want
}

func wantedKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string (use quotes)"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("a whole number of %d bits", t.Bits())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("a non-negative whole number of %d bits", t.Bits())
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "a base64 string"
		}
		return "a list"
	default:
		return "a map of fields"
	}
}

// excerpt returns the value, shortened.
func excerpt(raw json.RawMessage) string {
	const most = 40
	text := strings.Join(strings.Fields(string(raw)), " ")
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
