// SPDX-License-Identifier: Apache-2.0

package template

import "github.com/virtloom/virtloom/template/render"

// Distrusted returns the renderer with the stock stages as if they were custom ones.
func Distrusted() (*Renderer, error) { return render.NewRenderer(stockStages()...) }
