// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"time"

	"github.com/virtloom/virtloom/internal/launcherpod"
)

// Evaluate judges the snapshot by all checks.
func (c Config) Evaluate(s Snapshot, now time.Time) Finding { return c.evaluate(s, now) }

// Names that tests share with the code.
const (
	AllowBridgeMigration = allowBridgeMigration
	ComputeContainer     = launcherpod.Compute
	StateLabel           = stateLabel
	StateVolume          = stateVolume
)

// Halves, Reported and Sighted read the migration state of a migration between clusters.
var (
	Halves   = halves
	Reported = reported
	Sighted  = sighted
)
