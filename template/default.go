// SPDX-License-Identifier: Apache-2.0

package template

// Default returns the renderer with the stock stages.
func Default() *Renderer {
	return &Renderer{stages: []Stage{}}
}
