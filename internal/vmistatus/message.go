// SPDX-License-Identifier: Apache-2.0

package vmistatus

import (
	"regexp"
)

// moments matches the parts of a message that differ with each attempt: times, addresses,
// descriptors, and numbers too large to be an index in a spec, such as process IDs and ports.
var moments = regexp.MustCompile(`\d{1,2}:\d{2}:\d{2}(\.\d+)?|0x[0-9a-fA-F]+|/fd/\d+|(?i:pid|process)[ =:]*\d+|\d{4,}(-\d{2})*`)

// numbers matches those, and all other numbers.
var numbers = regexp.MustCompile(moments.String() + `|[0-9a-fA-F]*[0-9][0-9a-fA-F]*`)

// WithoutNumbers returns the text with each number, time and address replaced by a mark.
func WithoutNumbers(text string) string { return numbers.ReplaceAllString(text, "#") }

// Steady returns the text to report now: the previous one, if both differ only in parts that
// differ with each attempt. Every change of a status is an event for all its watchers.
func Steady(was, now string) string {
	if moments.ReplaceAllString(was, "#") == moments.ReplaceAllString(now, "#") {
		return was
	}
	return now
}
