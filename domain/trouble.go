// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
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
