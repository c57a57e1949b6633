// SPDX-License-Identifier: Apache-2.0

//go:build !faultpoints

package main

import "github.com/virtloom/virtloom/domain/domainctrl"

// onStep is for builds with the tag faultpoints; all others tell nobody of the steps of migrations.
func onStep(string) domainctrl.StepFunc { return nil }
