// SPDX-License-Identifier: Apache-2.0

package action

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
func (f Failure) String() string {
	cause := "unknown error"
	if f.Err != nil {
		cause = f.Err.Error()
	}
	if name := f.Action.Operation.DeviceAlias(); name != "" {
		return fmt.Sprintf("%s %s: %s", f.Action.Operation.Verb, name, cause)
	}
	return cause
}

// SameCause reports whether the same action failed with the same text, regardless of the
// numbers in it, such as time stamps.
func (f Failure) SameCause(o Failure) bool {
	return f.Action.Key() == o.Action.Key() && vmistatus.WithoutNumbers(f.String()) == vmistatus.WithoutNumbers(o.String())
}
