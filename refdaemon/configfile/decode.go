// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxSize is far above the size of any configuration.
const maxSize = 1 << 20

// reader reads one document, and records the line of each field.
type reader struct {
	file   string
	faults Faults
	lines  map[string]int
	// into holds the options by field, and sections their parent fields.
	into     map[string]Option
	sections map[string]bool
	kind     string
}

// fault records an error at a node; at may be nil.
func (r *reader) fault(n *yaml.Node, at *field.Path, reason string) {
	f := Fault{File: r.file, Line: n.Line, Reason: reason}
	if at != nil {
		f.Field = at.String()
	}
	r.faults = append(r.faults, f)
}

// document parses the text, which is one mapping; nil after a fault.
func (r *reader) document(content []byte) *yaml.Node {
	if len(content) > maxSize {
		r.faults = append(r.faults, Fault{File: r.file, Reason: fmt.Sprintf("has more than %d bytes; specify a configuration file", maxSize)})
		return nil
	}
	var first, second yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(content))
	switch err := d.Decode(&first); {
	case errors.Is(err, io.EOF):
		r.faults = append(r.faults, Fault{File: r.file, Reason: "is empty; refdaemon config print-defaults prints all fields"})
		return nil
	case err != nil:
		r.faults = append(r.faults, Fault{File: r.file, Reason: broken(err)})
		return nil
	}
	if err := d.Decode(&second); err == nil {
		r.fault(&second, nil, "a second document begins; keep one configuration in a file")
		return nil
	} else if !errors.Is(err, io.EOF) {
		r.faults = append(r.faults, Fault{File: r.file, Reason: broken(err)})
		return nil
	}
	root := first.Content[0]
	if root.Kind != yaml.MappingNode {
		r.fault(root, nil, "is "+nodeKindText(root)+"; write an object with apiVersion and kind")
		return nil
	}
	return root
}

// broken returns a YAML error in one line.
func broken(err error) string {
	return "is not YAML: " + strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " ") + "; correct that line"
}

// entries visits the fields of a mapping, and reports duplicates.
func (r *reader) entries(n *yaml.Node, at *field.Path, each func(name string, key, value *yaml.Node)) {
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, v := resolved(n.Content[i]), resolved(n.Content[i+1])
		if key.Kind != yaml.ScalarNode || key.ShortTag() != tagString {
			r.fault(key, at, "has "+nodeKindText(key)+" for the name of a field; write a string")
			continue
		}
		if line, twice := lines[key.Value]; twice {
			r.fault(key, child(at, key.Value), fmt.Sprintf("is a duplicate of the field in line %d; remove one of the two", line))
			continue
		}
		lines[key.Value] = key.Line
		each(key.Value, key, v)
	}
}

func child(at *field.Path, name string) *field.Path {
	if at == nil {
		return field.NewPath(name)
	}
	return at.Child(name)
}

// resolved follows aliases. Cycles are harmless, as the struct bounds the depth to which a
// document is read.
func resolved(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// visit reads a value, unless it is absent.
func (r *reader) visit(n *yaml.Node, at *field.Path, v value) {
	n = resolved(n)
	r.lines[at.String()] = n.Line
	if n.Kind != yaml.ScalarNode || n.ShortTag() != tagNull {
		v.read(r, n, at)
	}
}

// section reads the fields of an object.
func (r *reader) section(n *yaml.Node, at *field.Path) {
	r.entries(n, at, func(name string, key, v *yaml.Node) {
		here := child(at, name)
		path := here.String()
		o, isField := r.into[path]
		switch {
		case at == nil && (name == "apiVersion" || name == "kind"):
		case isField:
			r.visit(v, here, o.value)
		case !r.sections[path]:
			r.fault(key, here, "is not a field of "+r.kind+"; "+r.instead(path, name))
		case v.Kind == yaml.MappingNode:
			r.lines[path] = key.Line
			r.section(v, here)
		case v.Kind != yaml.ScalarNode || v.ShortTag() != tagNull:
			r.fault(v, here, "is "+nodeKindText(v)+"; write an object")
		}
	})
}

// instead suggests known fields for an unknown one.
func (r *reader) instead(path, name string) string {
	var near []string
	for f, o := range r.into {
		_, last, _ := cutLast(f)
		if strings.EqualFold(f, path) || strings.EqualFold(last, name) || o.Flag == name {
			near = append(near, f)
		}
	}
	for s := range r.sections {
		if strings.EqualFold(s, path) {
			near = append(near, s)
		}
	}
	slices.Sort(near)
	if len(near) > 0 {
		return "write " + strings.Join(near, " or ") + ", or remove it"
	}
	return "correct its name or its place, or remove it"
}

func cutLast(path string) (before, last string, found bool) {
	i := strings.LastIndexByte(path, '.')
	if i < 0 {
		return "", path, false
	}
	return path[:i], path[i+1:], true
}

// header checks apiVersion and kind, and returns the kind; empty after a fault.
func (r *reader) header(root *yaml.Node, want string) string {
	said := map[string]*yaml.Node{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if key := resolved(root.Content[i]).Value; said[key] == nil {
			said[key] = resolved(root.Content[i+1])
		}
	}
	known := []string{want}
	if want == "" {
		known = Kinds()
	}
	before := len(r.faults)
	r.one(root, said["apiVersion"], "apiVersion", []string{APIVersion})
	r.one(root, said["kind"], "kind", known)
	if len(r.faults) > before {
		return ""
	}
	return said["kind"].Value
}

// one checks that a field is present and has one of the known values.
func (r *reader) one(root, n *yaml.Node, name string, known []string) {
	write := "write " + name + ": " + strings.Join(known, " or ")
	switch {
	case n == nil:
		r.fault(root, field.NewPath(name), "is missing; "+write)
	case n.Kind != yaml.ScalarNode:
		r.fault(n, field.NewPath(name), "is "+nodeKindText(n)+"; "+write)
	case !slices.Contains(known, n.Value):
		r.fault(n, field.NewPath(name), fmt.Sprintf("is %q; %s", n.Value, write))
	}
}

// read sets the fields of c from the document.
func (r *reader) read(root *yaml.Node, c Configuration) {
	r.kind, r.into, r.sections = c.kind(), map[string]Option{}, map[string]bool{}
	for _, o := range c.Options() {
		r.into[o.Field] = o
		for above, _, nested := cutLast(o.Field); nested; above, _, nested = cutLast(above) {
			r.sections[above] = true
		}
	}
	r.section(root, nil)
}
