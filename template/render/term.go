// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Term is one line of a calculation; the value is the sum of its terms.
type Term struct {
	// Name describes the amount, such as "page tables".
	Name string
	// Amount is in bytes for memory, CPUs for CPU, and pieces for devices. It may be negative.
	Amount resource.Quantity
	// From is the field or fact that the line is derived from; empty for constants.
	From string
}

// String returns the amount, the name and the source.
func (t Term) String() string {
	s := fmt.Sprintf("%s %s", t.Amount.String(), t.Name)
	if t.From != "" {
		s += " (" + t.From + ")"
	}
	return s
}

// Sum adds the amounts of terms.
func Sum(terms []Term) resource.Quantity {
	var sum resource.Quantity
	for i := range terms {
		sum.Add(terms[i].Amount)
	}
	return sum
}
