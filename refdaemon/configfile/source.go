// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"cmp"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// APIVersion is the version of the kinds in this package.
const APIVersion = "config.virtloom.dev/v1alpha1"

// Kinds returns the kinds of configurations.
func Kinds() []string { return []string{KindController, KindNode} }

// NewConfiguration returns the defaults of a kind, nil if the kind is unknown.
func NewConfiguration(kind string) Configuration {
	switch kind {
	case KindController:
		return NewController()
	case KindNode:
		return NewNode()
	}
	return nil
}

// Source is the origin of a configuration.
type Source[C Configuration] struct {
	// New returns the defaults, such as [NewController].
	New func() C
	// File overrides them; none if empty.
	File string
	// Given are the flags that override the file, as [Flags] records them.
	Given []Setting
}

// Load reads the current configuration. Its error is [Faults] if the configuration is
// invalid; any other error means that the file cannot be read.
func (s Source[C]) Load() (C, error) {
	var content []byte
	if s.File != "" {
		var err error
		if content, err = os.ReadFile(s.File); err != nil {
			return *new(C), fmt.Errorf("read the configuration: %w; specify a readable file", err)
		}
	}
	return s.from(content)
}

// from is Load with the given content of the file.
func (s Source[C]) from(content []byte) (C, error) {
	c := s.New()
	from := origin{file: s.File, given: s.Given}
	if s.File != "" {
		r := &reader{file: s.File, lines: map[string]int{}}
		root := r.document(content)
		if root == nil || r.header(root, c.kind()) == "" {
			return c, r.faults
		}
		r.read(root, c)
		from.lines, from.faults = r.lines, r.faults
	}
	options := c.Options()
	fs := pflag.NewFlagSet("given", pflag.ContinueOnError)
	Flags(fs, options, nil)
	for _, g := range s.Given {
		if err := fs.Set(g.Flag, g.Text); err != nil {
			return c, Faults{{Flag: g.Flag, Reason: fmt.Sprintf("%q: %v", g.Text, err)}}
		}
	}
	from.check(options, c.Validate())
	return c, from.faults.err()
}

// Read reads a file with a configuration of any kind, over its defaults. Fields that
// differ from node to node may be missing: they are left to flags. The name is used
// in faults.
func Read(name string, content []byte) (Configuration, error) {
	r := &reader{file: cmp.Or(name, "configuration"), lines: map[string]int{}}
	root := r.document(content)
	if root == nil {
		return nil, r.faults
	}
	kind := r.header(root, "")
	if kind == "" {
		return nil, r.faults
	}
	c := NewConfiguration(kind)
	r.read(root, c)
	from := origin{file: r.file, lines: r.lines, faults: r.faults}
	options := c.Options()
	from.check(options, slices.DeleteFunc(c.Validate(), func(e *field.Error) bool {
		o := optionAt(options, e.Field)
		return e.Type == field.ErrorTypeRequired && o != nil && o.PerNode
	}))
	return c, from.faults.err()
}
