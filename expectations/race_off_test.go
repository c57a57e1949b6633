// SPDX-License-Identifier: Apache-2.0

//go:build !race

package expectations_test

// crowd is how many writes are outstanding at once.
const crowd = 100_000
