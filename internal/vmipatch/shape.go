// SPDX-License-Identifier: Apache-2.0

package vmipatch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"

	v1 "kubevirt.io/api/core/v1"
)

// document is the part of the object that a patch may change or test.
type document struct {
	Metadata metadata                        `json:"metadata"`
	Spec     spec                            `json:"spec"`
	Status   v1.VirtualMachineInstanceStatus `json:"status"`
}

type metadata struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Finalizers  []string          `json:"finalizers,omitempty"`
	// A string: the API server always encodes it in the same form.
	DeletionTimestamp string `json:"deletionTimestamp,omitempty"`
}

// spec is what guards test of the spec, which no patch changes.
type spec struct {
	Volumes []volume `json:"volumes,omitempty"`
}

type volume struct {
	Name string `json:"name"`
}

var documentType = reflect.TypeFor[document]()

// documentOf returns the object as untyped JSON. Numbers keep their encoding.
func documentOf(vmi *v1.VirtualMachineInstance) (map[string]any, error) {
	d := document{Status: vmi.Status, Metadata: metadata{
		Labels: vmi.Labels, Annotations: vmi.Annotations, Finalizers: vmi.Finalizers,
	}}
	for i := range vmi.Spec.Volumes {
		d.Spec.Volumes = append(d.Spec.Volumes, volume{vmi.Spec.Volumes[i].Name})
	}
	raw, err := json.Marshal(vmi.DeletionTimestamp)
	if err == nil {
		err = json.Unmarshal(raw, &d.Metadata.DeletionTimestamp)
	}
	if err == nil {
		raw, err = json.Marshal(d)
	}
	doc := map[string]any{}
	if err == nil {
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.UseNumber()
		err = dec.Decode(&doc)
	}
	if err != nil {
		return nil, fmt.Errorf("vmipatch: encode %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	return doc, nil
}

// field is a field of a struct, or an entry of a map, in JSON.
type field struct {
	t reflect.Type
	// always is true if a zero value is encoded, so that a zero may be missing in the
	// stored object.
	always bool
}

// anything is the type of values without a known type.
var anything = reflect.TypeFor[any]()

// fieldOf returns the field of a struct or map type by its JSON name.
func fieldOf(t reflect.Type, name string) (field, bool) {
	switch t.Kind() {
	case reflect.Map:
		return field{t: deref(t.Elem())}, true
	case reflect.Struct:
		if f, known := fieldsOf(t)[name]; known {
			return f, true
		}
	default:
	}
	return field{t: anything}, false
}

// elementOf returns the type of a list's elements.
func elementOf(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Slice {
		return deref(t.Elem())
	}
	return anything
}

// shapes caches the fields of struct types by JSON name.
var shapes sync.Map // of map[string]field by reflect.Type

func fieldsOf(t reflect.Type) map[string]field {
	if known, found := shapes.Load(t); found {
		if fields, ok := known.(map[string]field); ok {
			return fields
		}
	}
	fields := map[string]field{}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" || !f.IsExported() {
			continue
		}
		fields[name] = field{t: deref(f.Type), always: !strings.Contains(options, "omitempty")}
	}
	shapes.Store(t, fields)
	return fields
}

func deref(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

var marshaler = reflect.TypeFor[json.Marshaler]()

// opaque reports whether the type encodes itself, as times and quantities do: the stored
// encoding may then differ for the same value.
func opaque(t reflect.Type) bool {
	return t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler)
}

// plain reports whether values of the type have exactly one encoding.
func plain(t reflect.Type) bool {
	if opaque(t) {
		return false
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	case reflect.Slice, reflect.Map:
		return plain(deref(t.Elem()))
	default:
		return false
	}
}

// zero reports whether a decoded value is a zero Go value.
func zero(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case bool:
		return !v
	case json.Number:
		return v == "0"
	default:
		return vacant(v)
	}
}

// vacant reports whether v is an empty object or list.
func vacant(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	default:
		return false
	}
}

// bare reports whether the status may not be stored at all.
func bare(status map[string]any, t reflect.Type) bool {
	for name, v := range status {
		if f, _ := fieldOf(t, name); v != nil && !vacant(v) && (!f.always || !zero(v)) {
			return false
		}
	}
	return true
}
