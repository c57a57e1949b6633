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
	// Options returns an option for each field of this object; setting it sets the field.
	Options() []Option
	// Validate returns all invalid fields.
	Validate() field.ErrorList
	// kind returns the object's kind.
	kind() string
}

// Option is one setting: a field of the file and the flag that overrides it.
type Option struct {
	// Field is the path in the file, such as migrations.inboundPerNode.
	Field string
	// Flag is the name of the flag, without dashes; Short is its letter, if any.
	Flag, Short string
	// Usage describes it, with the name of the value in back quotes.
	Usage string
	// Live says that a change takes effect while the daemon runs.
	Live bool
	// PerNode says that it differs from node to node, so that a file for several nodes
	// leaves it to the flag.
	PerNode bool
	// Value reads and sets the field.
	Value pflag.Value

	value value
}

// option returns the option of a field that takes effect at the next start.
func option(at, flag, usage string, v value) Option {
	return Option{Field: at, Flag: flag, Usage: usage, Value: v, value: v}
}

// live returns the option of a field that takes effect at once.
func live(at, flag, usage string, v value) Option {
	o := option(at, flag, usage, v)
	o.Live = true
	return o
}

// perNode returns the option of a field that differs from node to node.
func perNode(at, flag, usage string, v value) Option {
	o := option(at, flag, usage, v)
	o.PerNode = true
	return o
}

// Setting is a flag that was given, and its text.
type Setting struct{ Flag, Text string }

// Flags registers a flag for each option. Parsing a flag sets its field, and appends
// the setting to given, if that is not nil, so that it can be applied to a
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

// noting is a flag that records its settings.
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

// Changes returns the fields that differ between two configurations of one kind.
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
