// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// awaitEnd waits until a migration has succeeded or failed.
func (s *scene) awaitEnd(m *v1.VirtualMachineInstanceMigration) *v1.VirtualMachineInstanceMigration {
	s.Helper()
	have := &v1.VirtualMachineInstanceMigration{}
	must(s.T, s.c.Await(s.Context(), 2*patience, "migration "+m.Name+" to end", func(ctx context.Context) error {
		err := s.c.Client.Get(ctx, client.ObjectKeyFromObject(m), have)
		if err == nil && !have.IsFinal() {
			err = fmt.Errorf("it is %s, conditions %v", have.Status.Phase, have.Status.Conditions)
		}
		return err
	}))
	return have
}

// TestMigration_LinkCut: for a while, and the migration may succeed; for good, and it fails.
func TestMigration_LinkCut(t *testing.T) {
	cuts := map[string]time.Duration{"cut-5s": 5 * time.Second}
	if *full {
		cuts["cut-30s"], cuts["cut-for-good"] = 30*time.Second, 0
	}
	for name, cut := range cuts {
		t.Run(name, func(t *testing.T) {
			c := cluster(t)
			slowly(t, c, func(m *v1.MigrationConfiguration) {
				rate := resource.MustParse("4Mi")
				m.BandwidthPerMigration = &rate
			})
			s := boot(t, c, newGuest(t, name))
			home := s.vmi.Status.NodeName
			m := s.migrate(name)
			s.awaitMoving()
			f, err := c.Rig.Fabric(t.Context())
			must(t, err)
			node := c.Node(s.side("target"))
			must(t, f.Cut(t.Context(), node))
			t.Cleanup(func() { must(t, f.Mend(context.Background(), node)) })
			began := time.Now()
			if cut > 0 {
				<-time.After(cut) // the fault itself, and not a wait for something
				must(t, f.Mend(t.Context(), node))
			}
			ended := s.awaitEnd(m)
			t.Logf("%s after %v", ended.Status.Phase, time.Since(began).Round(time.Second))
			s.await(v1.Running)
			s.single()
			s.beats(s.vmi.Status.NodeName, 5)
			s.unbroken()
			state := s.vmi.Status.MigrationState
			if ended.Status.Phase == v1.MigrationFailed && (state.FailureReason == "" || s.vmi.Status.NodeName != home) {
				t.Errorf("the guest is on %s, it was on %s; the failure is %q", s.vmi.Status.NodeName, home, state.FailureReason)
			}
			if cut > 0 {
				return
			}
			if ended.Status.Phase != v1.MigrationFailed {
				t.Errorf("the migration has %s without a link", ended.Status.Phase)
			}
			must(t, f.Mend(t.Context(), node))
			s.awaitMigration(s.migrate(name+"-again"), v1.MigrationSucceeded)
			s.single()
			s.await(v1.Running)
			s.beats(s.vmi.Status.NodeName, 5)
			s.unbroken()
		})
	}
}
