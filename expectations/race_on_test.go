// SPDX-License-Identifier: Apache-2.0

//go:build race

package expectations_test

// crowd is how many writes are outstanding at once. The race detector makes each of them ten times as slow.
const crowd = 10_000
