// SPDX-License-Identifier: Apache-2.0

// Package explain answers for people: where does a migration stand, why, and what lets it
// continue?
//
// [Explain] runs [migration.Decide] on a snapshot and returns an [Explanation]: the phase, whose
// turn it is and until when, the findings of all checks, the place in the queue and the limits
// that are reached, the policy in force and why it won, and the other migrations of the VMI.
// [Explanation.Aim] adds the nodes that could take the target Pod, from package placement. It is
// pure and writes nothing.
package explain
