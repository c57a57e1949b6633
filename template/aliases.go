// SPDX-License-Identifier: Apache-2.0

package template

import "github.com/virtloom/virtloom/template/render"

// What a program that renders stock Pods needs, so that it imports this package alone.
type (
	// Input is everything a Pod is rendered from.
	Input = render.Input
	// Config is the configuration of the cluster.
	Config = render.Config
	// Renderer renders Pods.
	Renderer = render.Renderer
)
