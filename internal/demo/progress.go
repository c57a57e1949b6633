// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/status"
)

const (
	// barWidth is the length of the progress bar in characters.
	barWidth = 30
	// mebi is the unit of printed sizes.
	mebi = 1 << 20
)

// showProgress follows the guest's live migration by its condition until ctx ends: on a terminal by a
// bar in the last line, elsewhere by a line for each change.
func (s *story) showProgress(ctx context.Context) {
	defer s.log.draw("")
	for last := ""; ; {
		if vmi, err := s.vmi(ctx); err == nil {
			last = s.reportProgress(vmi, last)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pulseEvery):
		}
	}
}

// reportProgress prints the progress of the VMI's migration, unless it equals the last printed one.
func (s *story) reportProgress(vmi *v1.VirtualMachineInstance, last string) string {
	p, moving := status.ProgressOf(vmi)
	if !moving {
		s.log.draw("")
		return last
	}
	text := bar(p)
	s.log.draw(text)
	if !s.log.terminal && text != last {
		s.log.report("migration", text, "")
	}
	return text
}

// bar draws how far a migration has come. Disks are copied first, and until memory follows, in the first iteration, the total
// is that of the disks alone, nearly all of which is done: no share of the whole.
func bar(p domain.Progress) string {
	share := 0.0
	if p.Total > 0 && p.Iteration > 0 {
		share = 1 - float64(min(p.Remaining, p.Total))/float64(p.Total)
	}
	done := int(share * barWidth)
	text := fmt.Sprintf("[%s%s] %3.0f %%  %d of %d MiB remain", strings.Repeat("#", done), strings.Repeat(".", barWidth-done),
		100*share, p.Remaining/mebi, p.Total/mebi)
	if p.BytesPerSecond > 0 {
		text += fmt.Sprintf(", %d MiB/s", p.BytesPerSecond/mebi)
	}
	if p.Iteration > 0 {
		text += fmt.Sprintf(", iteration %d", p.Iteration)
	}
	return text
}

// reportMigration prints the cost of the migration.
func (s *story) reportMigration(vmi *v1.VirtualMachineInstance) {
	m := vmi.Status.MigrationState
	if m == nil || m.StartTimestamp == nil || m.EndTimestamp == nil {
		return
	}
	took := m.EndTimestamp.Sub(m.StartTimestamp.Time)
	s.log.report("migration", fmt.Sprintf("took %.0f s, mode %s", took.Seconds(), m.Mode), fmt.Sprintf("from %s to %s", m.SourceNode, m.TargetNode))
}
