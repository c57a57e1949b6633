// SPDX-License-Identifier: Apache-2.0

// Package mutation plants bugs in the shipped code, to verify that tests catch them.
//
// Plants is a table of plausible bugs: each changes one file of the
// module in one place and names the test that must fail then. The file on disk stays as
// it is: go test compiles the changed copy in its place (-overlay). So the
// bug is in the shipped code, not in a model of it.
//
// Beside these it changes every condition and statement of the safety core (handoff, expectations) in turn, against all
// unit tests of the package: at most one in twenty may survive that is not explained.
//
// make mutate runs both and prints what was killed and what has survived. Without its
// flag the tests of this package only check that the table fits the code: an old text
// must occur exactly once.
package mutation
