// SPDX-License-Identifier: Apache-2.0

package vmi

// Names for tests outside the package.
const (
	ConditionUnderstood = conditionUnderstood
	DefaultAcceptWithin = defaultAcceptWithin
)

// Functions for tests outside the package.
var (
	DiscontinuedBindings = discontinuedBindings
	EvaluateNetworks     = evaluateNetworks
	Hints                = topologyHints
	SameButNumbers       = sameButNumbers
)
