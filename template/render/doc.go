// SPDX-License-Identifier: Apache-2.0

// Package render is the core of rendering: what the author of a stage imports. Package template has the stock stages, which
// use nothing else.
//
// A Renderer is an ordered list of named stages over one Draft of a Pod. Before, After, Replace and Remove derive another
// Renderer from it. Everything a Pod depends on is in one Input value: rendering is a pure function that reads no API,
// clock, environment or random source, never modifies its input, and returns equal Pods for equal inputs.
//
//	Input ─▶ Draft ─▶ stage ─▶ stage ─▶ … ─▶ checks of owners and of the API server's rules ─▶ Pod, Explanation
//
// A stage reads the Draft's input and writes the Pod through setters: those of Draft, of a [Container] of the Pod, and of its
// [Affinity]. Every field of a Pod has one owner, the stage that set it. A stage that sets a field of another stage fails
// with an [Error] that names both, unless it declares the field in Stage.Overrides. Explain returns the Pod with these
// owners, the field of the VMI or the fact behind each value, and the terms of calculated amounts.
package render
