// SPDX-License-Identifier: Apache-2.0

// Package validate has the rules for the spec of a VirtualMachineInstance, each once, for all its readers: the webhook
// (vmi/admit), the controller (vmi.Decide), the renderer (template) and the node (domain). They convert a [Fault] into their
// own kind of error. The functions are pure and do not read the cluster; what they need of its configuration is in [Config].
//
// The rules are a table, [Rules]. [Spec] applies all of them to a VMI that is about to be created. A reader that does not
// trust the webhook applies those that are structural, by [Structure]: nothing can be rendered from a VMI that violates
// them, or it is hostile. Stricter rules must not be applied to existing VMIs, whose Pods have to be rendered again when
// they migrate. Where a structural rule has a bound, that of a new VMI may be narrower.
//
// [Check] is the part of the structural rules that the readers of a single field need: fields whose feature gate is
// disabled, lists beyond the limits of any machine, amounts outside of the supported range, and paths that escape their
// folder. It counts elements before it examines them, so that the cost of a hostile object is linear in its longest list.
package validate
