// SPDX-License-Identifier: Apache-2.0

package handoff

// Role is the part of a node in the life of a VMI.
type Role string

// The roles. A node with RoleNone must not run the VMI.
const (
	RoleNone    Role = "None"
	RoleOffered Role = "Offered"
	RoleHolder  Role = "Holder"
	RoleTarget  Role = "Target"
)

// RoleOf returns the role of the node under the lease; RoleNone for the empty name.
func RoleOf(l Lease, node string) Role {
	switch {
	case node == "":
		return RoleNone
	case l.State == Offered && l.Holder == node:
		return RoleOffered
	case l.Holds(node):
		return RoleHolder
	case l.Target == node && (l.InMove() || l.Switching()):
		return RoleTarget
	default:
		return RoleNone
	}
}
