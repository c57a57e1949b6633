// SPDX-License-Identifier: Apache-2.0

// Package action has the effects of a pass of a node agent as data: an [Action] is an operation of a hypervisor,
// or more than that, such as a migration or the removal of files; a [Failure] is one that failed.
//
// Package domain/plan decides actions and domain/domainctrl carries them out. Which of them may begin only after
// a fresh read of the API server, which fail alone, and which two are attempts of the same, is a property of the
// action itself, so that these two agree. The failures of a pass are input of the next one, and package
// domain/status reports them in the conditions of the VirtualMachineInstance.
package action
