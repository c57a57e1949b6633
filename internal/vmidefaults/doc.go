// SPDX-License-Identifier: Apache-2.0

// Package vmidefaults returns what unset fields of a VirtualMachineInstance mean. Its defaults (vmi/admit) set these values,
// and its rules (vmi/validate) expect them of a VMI without defaults, so that defaults never make a valid VMI invalid.
package vmidefaults
