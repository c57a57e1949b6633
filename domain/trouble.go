// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"regexp"
	"strings"
)

// Trouble is a task that failed.
type Trouble struct {
	// Task is what was to be done, Err why it was not.
	Task Task
	Err  error
}

// String names the device, if it is about one, and the cause.
func (t Trouble) String() string {
	cause := "it failed"
	if t.Err != nil {
		cause = t.Err.Error()
	}
	if name := t.Task.Operation.device(); name != "" {
		return fmt.Sprintf("%s %s: %s", t.Task.Operation.Verb, name, cause)
	}
	return cause
}

// moments are the parts of a text that can be others each time it is told: times, addresses,
// descriptors, and numbers too large to be the place of anything in a spec, as those of
// processes and ports are.
var moments = regexp.MustCompile(`\d{1,2}:\d{2}:\d{2}(\.\d+)?|0x[0-9a-fA-F]+|/fd/\d+|(?i:pid|process)[ =:]*\d+|\d{4,}(-\d{2})*`)

// numbers are those, and all other numbers.
var numbers = regexp.MustCompile(moments.String() + `|[0-9a-fA-F]*[0-9][0-9a-fA-F]*`)

// steady returns how a text that was told is to be told now: as it was, if only what is
// another one each time is not the same. Each change of a status is news to all who watch it.
func steady(was, now string) string {
	if moments.ReplaceAllString(was, "#") == moments.ReplaceAllString(now, "#") {
		return was
	}
	return now
}

// SameCause reports whether the same task failed for the same cause, as far as the text of
// the cause tells: numbers in it, a time stamp for example, make no difference.
func (t Trouble) SameCause(o Trouble) bool {
	stable := func(t Trouble) string { return numbers.ReplaceAllString(t.String(), "#") }
	return t.Task.Key() == o.Task.Key() && stable(t) == stable(o)
}

// Key is the same for each try of a task, whatever else has changed meanwhile: what is done,
// to which device or files, and by which command.
func (t Task) Key() string {
	return fmt.Sprintf("%s %s %q %s %d", t.Verb, t.Operation.Verb, t.Operation.device(), t.UID, t.Command.Epoch)
}

// troublesText tells all of them in one line.
func troublesText(all []Trouble) string {
	var out []string
	for _, t := range all {
		out = append(out, t.String())
	}
	return strings.Join(out, "; ")
}

// device is the alias of the device the operation is about; empty if it is about
// none, or about one without a name.
func (o Operation) device() string {
	switch {
	case o.Verb == ResizeDisk:
		return o.Disk
	case o.Device == nil:
		return ""
	}
	name, err := DeviceAlias(o.Device)
	if err != nil {
		return ""
	}
	return name
}
