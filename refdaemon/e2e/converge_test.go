// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/status"
)

// TestMigration_DoesNotConverge: what becomes of it is the cluster's choice. TestMigrationPolicy_ReachesHypervisor shows post-copy in
// every run.
func TestMigration_DoesNotConverge(t *testing.T) {
	long(t)
	yes, late, never := true, int64(40), int64(10_000)
	again := func(p domain.Progress) bool { return p.Iteration > 2 }
	rows := map[string]struct {
		allow func(*v1.MigrationConfiguration)
		want  v1.VirtualMachineInstanceMigrationPhase
		mode  v1.MigrationMode
		// helped reports whether a migration needed help to converge.
		helped func(domain.Progress) bool
	}{
		"slowed": {func(m *v1.MigrationConfiguration) { m.AllowAutoConverge, m.CompletionTimeoutPerGiB = &yes, &never },
			v1.MigrationSucceeded, v1.MigrationPreCopy, func(p domain.Progress) bool { return p.Throttle > 0 }},
		"postcopied": {func(m *v1.MigrationConfiguration) { m.AllowPostCopy, m.CompletionTimeoutPerGiB = &yes, &late },
			v1.MigrationSucceeded, v1.MigrationPostCopy, again},
		"neither": {func(m *v1.MigrationConfiguration) { m.CompletionTimeoutPerGiB = &late }, v1.MigrationFailed, v1.MigrationPreCopy, again},
	}
	for name, tt := range rows {
		t.Run(name, func(t *testing.T) {
			c := cluster(t)
			slowly(t, c, func(m *v1.MigrationConfiguration) {
				rate := resource.MustParse("4Mi")
				m.BandwidthPerMigration = &rate
				tt.allow(m)
			})
			s := boot(t, c, newGuest(t, name, busy))
			home := s.vmi.Status.NodeName
			m := s.migrate(name)
			s.awaitHelp(tt.helped)
			s.awaitMigration(m, tt.want)
			s.single()
			s.await(v1.Running)
			if moved := s.vmi.Status.NodeName != home; moved != (tt.want == v1.MigrationSucceeded) {
				t.Errorf("the guest is on %s, it was on %s", s.vmi.Status.NodeName, home)
			}
			s.beats(s.vmi.Status.NodeName, 5)
			s.unbroken()
			state := s.vmi.Status.MigrationState
			if state.Mode != tt.mode || tt.want == v1.MigrationFailed && state.FailureReason == "" {
				t.Errorf("the migration ended as %s, because of %q", state.Mode, state.FailureReason)
			}
			t.Logf("%s %s: %q", tt.want, state.Mode, state.FailureReason)
		})
	}
}

// awaitHelp waits until the progress in the guest's status shows it.
func (s *scene) awaitHelp(shown func(domain.Progress) bool) {
	s.Helper()
	must(s.T, s.c.Await(s.Context(), patience, "the progress to show what helps", func(ctx context.Context) error {
		vmi, err := s.c.VMI(ctx, s.key)
		if err != nil {
			return err
		}
		if p, reported := status.ProgressOf(vmi); !reported || !shown(p) {
			return fmt.Errorf("progress %v %s", reported, p)
		}
		return nil
	}))
}

// amounts of a migration job, as virsh prints them.
var (
	remaining = regexp.MustCompile(`Data remaining:\s+([\d.]+) (\w+)`)
	total     = regexp.MustCompile(`Data total:\s+([\d.]+) (\w+)`)
)

func amount(t *testing.T, of *regexp.Regexp, text string) (float64, bool) {
	t.Helper()
	m := of.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseFloat(m[1], 64)
	must(t, err)
	unit := map[string]float64{"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[m[2]]
	return n * unit, unit > 0
}

// awaitShare waits until that share of the guest's memory has been sent once.
func (s *scene) awaitShare(share float64) {
	s.Helper()
	s.awaitMoving()
	must(s.T, s.c.Await(s.Context(), patience, fmt.Sprintf("%.0f %% to be sent", 100*share), func(ctx context.Context) error {
		job, err := s.c.Node(s.side("source")).Virsh(ctx, "domjobinfo", "default_"+s.key.Name)
		if err != nil {
			return err
		}
		left, known := amount(s.T, remaining, job)
		all, knownToo := amount(s.T, total, job)
		if !known || !knownToo || left > (1-share)*all {
			return fmt.Errorf("job %s", job)
		}
		return nil
	}))
}

// TestMigration_AbortedAtAnyPoint of its transfer, and the guest runs on where it is. TestMigration_Aborted shows one in every run.
func TestMigration_AbortedAtAnyPoint(t *testing.T) {
	long(t)
	const points = 20
	c := cluster(t)
	slowly(t, c, func(m *v1.MigrationConfiguration) {
		rate := resource.MustParse("8Mi")
		m.BandwidthPerMigration = &rate
	})
	s := boot(t, c, newGuest(t, "abort-any", busy))
	home := s.vmi.Status.NodeName
	for i := range points {
		share := 0.9 * float64(i) / (points - 1)
		m := s.migrate(fmt.Sprintf("abort-any-%d", i))
		s.awaitShare(share)
		s.rest(m)
		if s.vmi.Status.NodeName != home {
			t.Fatalf("aborted at %.2f, the guest is on %s, want %s", share, s.vmi.Status.NodeName, home)
		}
		if err := c.Alive(); err != nil {
			t.Fatal(err)
		}
	}
}
