// SPDX-License-Identifier: Apache-2.0

// Command testsummary reads what "go test -json" writes and tells a person about it: a line for each
// package as it ends, the output of what failed, and at the end every failure and every skipped test
// with its reason. Its last line counts them. It fails if anything failed, or if no test ran at all.
//
//	go test -json ./... | testsummary
package main

import (
	"fmt"
	"os"
)

func main() {
	ok, err := summarize(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsummary:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}
