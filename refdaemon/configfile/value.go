// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// value is a field that a flag and a file can set.
type value interface {
	pflag.Value
	// read sets it from a file, and reports faults to the reader.
	read(r *reader, n *yaml.Node, at *field.Path)
	// alone is the value of the flag when it is given without one; empty if a value is required.
	alone() string
	// show returns the value as it is written into a file.
	show() any
}

// Tags of scalars in YAML.
const (
	tagString = "!!str"
	tagBool   = "!!bool"
	tagInt    = "!!int"
	tagFloat  = "!!float"
	tagNull   = "!!null"
)

// scalar is a field with one value.
type scalar[T any] struct {
	to    *T
	name  string // of the type, in help
	want  string // the expected form, for faults
	tags  []string
	parse func(string) (T, error)
	text  func(T) string
	sole  string
}

// String implements pflag.Value.
func (s *scalar[T]) String() string { return s.text(*s.to) }

// Set implements pflag.Value.
func (s *scalar[T]) Set(text string) error {
	v, err := s.parse(text)
	if err != nil {
		return errors.New("write " + s.want)
	}
	*s.to = v
	return nil
}

// Type implements pflag.Value.
func (s *scalar[T]) Type() string { return s.name }

func (s *scalar[T]) alone() string { return s.sole }

func (s *scalar[T]) show() any {
	switch v := any(*s.to).(type) {
	case bool, int, float64:
		return v
	}
	return s.String()
}

func (s *scalar[T]) read(r *reader, n *yaml.Node, at *field.Path) {
	if n.Kind != yaml.ScalarNode || !slices.Contains(s.tags, n.ShortTag()) {
		r.fault(n, at, "is "+nodeKindText(n)+"; write "+s.want)
		return
	}
	if err := s.Set(n.Value); err != nil {
		r.fault(n, at, fmt.Sprintf("is %q; %v", n.Value, err))
	}
}

// nodeKindText describes the type of a node.
func nodeKindText(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "an object"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode, yaml.DocumentNode, yaml.AliasNode:
	}
	switch n.ShortTag() {
	case tagString:
		return fmt.Sprintf("the string %q", n.Value)
	case tagBool:
		return "the boolean " + n.Value
	case tagInt, tagFloat:
		return "the number " + n.Value
	case tagNull:
		return "absent"
	}
	return fmt.Sprintf("%s %q", n.ShortTag(), n.Value)
}

func textValue(to *string) value {
	return &scalar[string]{
		to: to, name: "string", want: "a string, in quotes if it looks like something else", tags: []string{tagString},
		parse: func(s string) (string, error) { return s, nil }, text: func(s string) string { return s },
	}
}

func boolean(to *bool) value {
	return &scalar[bool]{
		to: to, name: "bool", want: "true or false", tags: []string{tagBool}, parse: strconv.ParseBool, text: strconv.FormatBool, sole: "true",
	}
}

func integer(to *int) value {
	return &scalar[int]{to: to, name: "int", want: "a whole number", tags: []string{tagInt}, parse: strconv.Atoi, text: strconv.Itoa}
}

// verbosity is an integer whose flag may also be given without a value, and as a boolean.
func verbosity(to *int) value {
	v := &scalar[int]{to: to, name: "int", want: "a whole number", tags: []string{tagInt}, text: strconv.Itoa, sole: "1"}
	v.parse = func(s string) (int, error) {
		switch s {
		case "true":
			return 1, nil
		case "false":
			return 0, nil
		}
		return strconv.Atoi(s)
	}
	return v
}

func numberValue(to *float64) value {
	return &scalar[float64]{
		to: to, name: "number", want: "a number", tags: []string{tagInt, tagFloat},
		parse: func(s string) (float64, error) { return strconv.ParseFloat(s, 64) },
		text:  func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) },
	}
}

func duration(to *metav1.Duration) value {
	return &scalar[metav1.Duration]{
		to: to, name: "duration", want: "a duration with its unit, such as 90s, 10m or 24h", tags: []string{tagString},
		parse: func(s string) (metav1.Duration, error) {
			d, err := time.ParseDuration(s)
			return metav1.Duration{Duration: d}, err
		},
		text: func(d metav1.Duration) string { return short(d.Duration) },
	}
}

// short writes 10m instead of 10m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func quantity(to *resource.Quantity) value {
	return &scalar[resource.Quantity]{
		to: to, name: "quantity", want: "a quantity, such as 500Mi", tags: []string{tagString, tagInt, tagFloat},
		parse: func(s string) (resource.Quantity, error) {
			if s == "" {
				return resource.Quantity{}, nil
			}
			return resource.ParseQuantity(s)
		},
		text: func(q resource.Quantity) string { return q.String() },
	}
}

// list is a field with several strings. The first use of a flag replaces the list,
// further uses append to it.
type list struct {
	to *[]string
	// commas says that a flag may hold several, separated by commas.
	commas bool
	given  bool
}

// String implements pflag.Value.
func (l *list) String() string { return strings.Join(*l.to, ",") }

// Set implements pflag.Value.
func (l *list) Set(text string) error {
	if !l.given {
		*l.to, l.given = nil, true
	}
	words := []string{text}
	if l.commas {
		words = strings.Split(text, ",")
	}
	*l.to = append(*l.to, words...)
	return nil
}

// Type implements pflag.Value.
func (*list) Type() string { return "list" }

func (*list) alone() string { return "" }

func (l *list) show() any { return append([]string{}, *l.to...) }

func (l *list) read(r *reader, n *yaml.Node, at *field.Path) {
	if n.Kind != yaml.SequenceNode {
		r.fault(n, at, "is "+nodeKindText(n)+"; write a list of strings")
		return
	}
	*l.to = nil
	for i, item := range n.Content {
		var word string
		r.visit(item, at.Index(i), textValue(&word))
		*l.to = append(*l.to, word)
	}
}

// shares is a field that maps names to numbers.
type shares struct {
	to    *map[string]float64
	given bool
}

// String implements pflag.Value.
func (s *shares) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(*s.to)) {
		parts = append(parts, name+"="+strconv.FormatFloat((*s.to)[name], 'g', -1, 64))
	}
	return strings.Join(parts, ",")
}

// Set implements pflag.Value.
func (s *shares) Set(text string) error {
	if !s.given {
		*s.to, s.given = nil, true
	}
	for part := range strings.SplitSeq(text, ",") {
		name, share, found := strings.Cut(part, "=")
		n, err := strconv.ParseFloat(share, 64)
		if !found || name == "" || err != nil || !isShare(n) {
			return fmt.Errorf("%q is not NAMESPACE=SHARE with a share above 0", part)
		}
		s.put(name, n)
	}
	return nil
}

func isShare(n float64) bool { return n > 0 && !math.IsInf(n, 1) }

func (s *shares) put(name string, n float64) {
	if *s.to == nil {
		*s.to = map[string]float64{}
	}
	(*s.to)[name] = n
}

// Type implements pflag.Value.
func (*shares) Type() string { return "shares" }

func (*shares) alone() string { return "" }

func (s *shares) show() any {
	if *s.to == nil {
		return map[string]float64{}
	}
	return maps.Clone(*s.to)
}

func (s *shares) read(r *reader, n *yaml.Node, at *field.Path) {
	if n.Kind != yaml.MappingNode {
		r.fault(n, at, "is "+nodeKindText(n)+"; write an object with a number for each namespace")
		return
	}
	*s.to = nil
	r.entries(n, at, func(name string, _, n *yaml.Node) {
		var share float64
		r.visit(n, at.Key(name), numberValue(&share))
		s.put(name, share)
	})
}
