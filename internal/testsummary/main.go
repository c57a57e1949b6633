// SPDX-License-Identifier: Apache-2.0

// Command testsummary reads what "go test -json" writes and prints a summary for people: a line for each
// package as it ends, the output of what failed, and at the end every failure and every skipped test
// with its reason. Its last line counts them. It fails if anything failed, or if no test ran at all. With -skips it
// also fails if a test was skipped that is not in that list.
//
//	go test -json ./... | testsummary -skips hack/skips.txt
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	skips := flag.String("skips", "", "`file` with the tests that may be skipped; empty allows all")
	flag.Parse()
	may, err := readAllowed(*skips)
	ok := false
	if err == nil {
		ok, err = summarize(os.Stdin, os.Stdout, may)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsummary:", err)
	}
	if !ok {
		os.Exit(1)
	}
}
