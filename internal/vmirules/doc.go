// SPDX-License-Identifier: Apache-2.0

// Package vmirules holds what no VirtualMachineInstance may ask for, whoever wrote it and whoever reads it: fields whose
// feature gate is off, more of anything than a machine can have, amounts that cannot be calculated with, and paths that lead
// out of where they belong.
//
// The rules stand here once. The webhook (vmi/admit), the controller (vmi.Decide), the renderer (template) and the node
// (domain) each ask [Check] and turn a [Fault] into their own kind of error, so that a guest which passed by one of them, or
// was written where there is no webhook, is refused by the next.
//
// [Check] counts before it looks at what it counts, so that a hostile object costs as much as its largest list is long.
package vmirules

import (
	"strconv"

	v1 "kubevirt.io/api/core/v1"
)

// Kind says why something is refused.
type Kind int

const (
	// Impossible is a value that can never be.
	Impossible Kind = iota
	// Excess is more than a guest can have.
	Excess
	// Gated is a field whose feature gate is off.
	Gated
)

// Fault is one thing that a guest may not ask for.
type Fault struct {
	Kind Kind
	// Field is the path of the field, such as spec.volumes[2].hostDisk.
	Field string
	// Value is what the field has; empty for a field that may not be there at all. It is short whatever the field has.
	Value string
	// Reason says what is wrong with it, Remedy what to do about it.
	Reason, Remedy string
}

// Text is value and reason in one, for errors that have no place for the value.
func (f Fault) Text() string {
	if f.Value == "" {
		return f.Reason
	}
	return f.Value + " " + f.Reason
}

// Check returns all faults of a guest in a cluster with the given gates. Of one that has more of something than a guest can
// have it returns no others: its lists are not worth looking at.
func Check(vmi *v1.VirtualMachineInstance, gates Gates) []Fault {
	if faults := Bounds(vmi); len(faults) > 0 {
		return faults
	}
	return append(Closed(vmi, gates), Values(vmi)...)
}

// brief is the beginning of a text that a user wrote, quoted.
func brief(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strconv.Quote(s)
}
