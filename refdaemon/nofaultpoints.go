// SPDX-License-Identifier: Apache-2.0

//go:build !faultpoints

package main

import "github.com/virtloom/virtloom/domain/domainctrl"

// onStep returns nil: only builds with the tag faultpoints report the steps of migrations.
func onStep(string) domainctrl.StepFunc { return nil }
