// SPDX-License-Identifier: Apache-2.0

// Package vmirules holds the rules for every VirtualMachineInstance, for all its readers. It rejects fields whose
// feature gate is disabled, lists beyond the limits of any machine, amounts outside of the supported range, and paths that
// escape their folder.
//
// The rules are defined once. The webhook (vmi/admit), the controller (vmi.Decide), the renderer (template) and the node
// (domain) each call [Check] and convert a [Fault] into their own kind of error, so that a VMI that passed one of them
// unchecked, or was created without a webhook, is rejected by the next.
//
// [Check] counts elements before it examines them, so that the cost of a hostile object is linear in its longest list.
package vmirules

import (
	"strconv"

	v1 "kubevirt.io/api/core/v1"
)

// Kind is the class of a Fault.
type Kind int

const (
	// Impossible marks a value that is never valid.
	Impossible Kind = iota
	// Excess marks a list, map or text beyond its maximum.
	Excess
	// Gated marks a field whose feature gate is disabled.
	Gated
)

// Fault is one violation of a rule by a VMI.
type Fault struct {
	Kind Kind
	// Field is the path of the field, such as spec.volumes[2].hostDisk.
	Field string
	// Value is the field's value, shortened; empty for a field that must not be set at all.
	Value string
	// Reason says why the value is rejected, Remedy how to fix it.
	Reason, Remedy string
}

// Text returns value and reason in one string, for errors that have no field for the value.
func (f Fault) Text() string {
	if f.Value == "" {
		return f.Reason
	}
	return f.Value + " " + f.Reason
}

// Check returns all faults of a VMI in a cluster with the given gates. If a list exceeds its maximum, it returns those
// faults only and does not examine the lists.
func Check(vmi *v1.VirtualMachineInstance, gates Gates) []Fault {
	if faults := Bounds(vmi); len(faults) > 0 {
		return faults
	}
	return append(Closed(vmi, gates), Values(vmi)...)
}

// brief returns the beginning of a user's text, quoted.
func brief(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strconv.Quote(s)
}
