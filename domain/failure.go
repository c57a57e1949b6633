// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// Failure is an action that failed.
type Failure struct {
	// Action is the action, Err the cause.
	Action Action
	Err    error
}

// String returns the cause, after verb and alias of the device if it is about one.
func (t Failure) String() string {
	cause := "unknown error"
	if t.Err != nil {
		cause = t.Err.Error()
	}
	if name := t.Action.Operation.DeviceAlias(); name != "" {
		return fmt.Sprintf("%s %s: %s", t.Action.Operation.Verb, name, cause)
	}
	return cause
}

// SameCause reports whether the same action failed with the same text, regardless of the
// numbers in it, such as time stamps.
func (t Failure) SameCause(o Failure) bool {
	return t.Action.Key() == o.Action.Key() && vmistatus.WithoutNumbers(t.String()) == vmistatus.WithoutNumbers(o.String())
}

// DeviceAlias returns the alias of the device that the operation is about; empty if it is
// about none, or about one without an alias.
func (o Operation) DeviceAlias() string {
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
