// SPDX-License-Identifier: Apache-2.0

// Package mutation breaks the shipped code on purpose, to see that something notices.
//
// [Plants] is a table of bugs that somebody might write: each changes one file of the
// module in one place and names the test that must fail then. The file on disk stays as
// it is: go test compiles the changed copy in its place (-overlay). What is planted is
// therefore the code that is shipped, and neither a switch in it nor a model of it.
//
// Beside these it changes every condition and statement of the safety core (handoff, expectations) in turn, against all
// unit tests of the package: at most one in twenty may survive that is not explained.
//
// make mutate runs both and prints what was killed and what has survived. Without its
// flag the tests of this package only see to it that the table fits the code: an old text
// that is not there exactly once fails at once, and not in the night.
package mutation
