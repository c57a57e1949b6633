// SPDX-License-Identifier: Apache-2.0

// Package guestagent has what the agent inside a guest reports by a hypervisor's ability domain.GuestAgent: the
// operating system, users, file systems and interfaces of an [Info]. All of it is the guest's own word, and none
// of it is trusted. domain/status reflects it in the status of the VMI.
package guestagent
