// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Configuration is the configuration of a daemon: [*ControllerConfiguration] or
// [*NodeConfiguration].
type Configuration interface {
	// Options are the fields of this very object; to set one sets the field.
	Options() []Option
	// Validate tells all that cannot be.
	Validate() field.ErrorList
	// kind is the object's kind.
	kind() string
}

// Option is one setting: a field of the file and the flag that goes before it.
type Option struct {
	// Field is the path in the file, such as migrations.inboundPerNode.
	Field string
	// Flag is the name of the flag, without dashes; Short is its letter, if it has one.
	Flag, Short string
	// Usage says what it is, with the name of the value in back quotes.
	Usage string
	// Live says that a change takes effect while the daemon runs.
	Live bool
	// PerNode says that it differs from node to node, so that a file for many leaves
	// it to the flag.
	PerNode bool
	// Value is the field.
	Value pflag.Value

	value value
}

// option makes an option of a field that takes effect at the next start.
func option(at, flag, usage string, v value) Option {
	return Option{Field: at, Flag: flag, Usage: usage, Value: v, value: v}
}

// live makes an option of a field that takes effect at once.
func live(at, flag, usage string, v value) Option {
	o := option(at, flag, usage, v)
	o.Live = true
	return o
}

// perNode makes an option of a field that differs from node to node.
func perNode(at, flag, usage string, v value) Option {
	o := option(at, flag, usage, v)
	o.PerNode = true
	return o
}

// Setting is a flag that was given, and its text.
type Setting struct{ Flag, Text string }

// Flags registers a flag for each option. What is given is set at once, and
// noted in given, if that is not nil, so that it can be set again in a
// configuration that is read later.
func Flags(fs *pflag.FlagSet, options []Option, given *[]Setting) {
	for _, o := range options {
		v := o.Value
		if given != nil {
			v = &noting{Value: o.Value, flag: o.Flag, given: given}
		}
		f := fs.VarPF(v, o.Flag, o.Short, o.Usage)
		f.NoOptDefVal = o.value.alone()
	}
}

// noting is a flag that notes how it is given.
type noting struct {
	pflag.Value
	flag  string
	given *[]Setting
}

// Set implements pflag.Value.
func (n *noting) Set(text string) error {
	if err := n.Value.Set(text); err != nil {
		return err
	}
	*n.given = append(*n.given, Setting{Flag: n.flag, Text: text})
	return nil
}

// Change is a field that differs between two configurations.
type Change struct {
	// Field is its path.
	Field string
	// Live says that it takes effect while the daemon runs.
	Live bool
}

// Changes tells what differs between two configurations of one kind.
func Changes(old, next Configuration) []Change {
	var changes []Change
	theirs := next.Options()
	for _, o := range old.Options() {
		i := slices.IndexFunc(theirs, func(p Option) bool { return p.Field == o.Field })
		if i >= 0 && theirs[i].Value.String() != o.Value.String() {
			changes = append(changes, Change{Field: o.Field, Live: o.Live})
		}
	}
	return changes
}
