// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/refcluster"
)

func TestMigration_RoundTrip(t *testing.T) {
	c := cluster(t)
	s := boot(t, c, newGuest(t, "traveller"))
	home := s.vmi.Status.NodeName
	for i, name := range []string{"there", "back"} {
		from := s.vmi.Status.NodeName
		m := s.migrate("traveller-" + name)
		s.awaitMigration(m, v1.MigrationSucceeded)
		s.await(v1.Running)
		if s.vmi.Status.NodeName == from {
			t.Fatalf("the guest is on %s still", from)
		}
		s.single()
		s.beats(s.vmi.Status.NodeName, 5)
		l, err := handoff.Of(s.vmi)
		must(t, err)
		if want := uint64(3 + 2*i); l.State != handoff.Owned || l.Holder != s.vmi.Status.NodeName || l.Epoch != want {
			t.Errorf("the lease is %+v, want it owned at epoch %d", l, want)
		}
	}
	if s.vmi.Status.NodeName != home {
		t.Errorf("the guest is on %s, want it back on %s", s.vmi.Status.NodeName, home)
	}
	s.unbroken()
}

// slowly lets migrations take long enough to interfere with: the guest rewrites
// memory, and little may be sent.
func slowly(t *testing.T, c *refcluster.Cluster, change ...func(*v1.MigrationConfiguration)) {
	t.Helper()
	slow := resource.MustParse("2Mi")
	configure(t, c, func(m *v1.MigrationConfiguration) {
		m.BandwidthPerMigration = &slow
		for _, ch := range change {
			ch(m)
		}
	})
	t.Cleanup(func() { configure(t, c, func(m *v1.MigrationConfiguration) { *m = v1.MigrationConfiguration{} }) })
}

func configure(t *testing.T, c *refcluster.Cluster, change func(*v1.MigrationConfiguration)) {
	t.Helper()
	ctx := context.Background()
	kv := &v1.KubeVirt{}
	must(t, c.Client.Get(ctx, types.NamespacedName{Namespace: "kubevirt", Name: "kubevirt"}, kv))
	base := kv.DeepCopy()
	if kv.Spec.Configuration.MigrationConfiguration == nil {
		kv.Spec.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{}
	}
	change(kv.Spec.Configuration.MigrationConfiguration)
	must(t, c.Client.Patch(ctx, kv, client.MergeFrom(base)))
}

// busy is a guest that rewrites memory faster than slowly lets it be sent.
func busy(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Firmware.KernelBoot.KernelArgs += " dirty=16,40"
	grace := int64(2)
	vmi.Spec.TerminationGracePeriodSeconds = &grace
}

// awaitMoving waits until the hypervisor is moving the guest.
func (s *scene) awaitMoving() {
	s.Helper()
	must(s.T, s.c.Await(s.Context(), patience, "the guest to move", func(ctx context.Context) (err error) {
		if s.vmi, err = s.c.VMI(ctx, s.key); err != nil {
			return err
		}
		l, err := handoff.Of(s.vmi)
		if err != nil {
			return err
		}
		if l.State != handoff.Moving {
			return fmt.Errorf("the lease is %+v", l)
		}
		// The job is there only once libvirt has begun.
		job, err := s.c.Virsh(ctx, l.Holder, "domjobinfo", "default_"+s.key.Name)
		if err != nil {
			return err
		}
		if len(job) < 200 {
			return fmt.Errorf("no job: %s", job)
		}
		return nil
	}))
}

func TestMigration_VMIDeleted(t *testing.T) {
	c := cluster(t)
	slowly(t, c)
	s := boot(t, c, newGuest(t, "deleted-moving", busy))
	m := s.migrate("deleted-moving")
	s.awaitMoving()
	must(t, c.Client.Delete(t.Context(), s.vmi.DeepCopy()))
	must(t, c.AwaitGone(t.Context(), s.vmi.DeepCopy(), patience))
	s.nothingLeft(t.Context())
	must(t, c.Await(t.Context(), patience, "the migration to end", func(ctx context.Context) error {
		have := &v1.VirtualMachineInstanceMigration{}
		err := c.Client.Get(ctx, client.ObjectKeyFromObject(m), have)
		if client.IgnoreNotFound(err) != nil || err == nil && have.Status.Phase != v1.MigrationFailed {
			return fmt.Errorf("phase %s: %w", have.Status.Phase, err)
		}
		return nil
	}))
}

func TestMigration_Aborted(t *testing.T) {
	c := cluster(t)
	slowly(t, c)
	s := boot(t, c, newGuest(t, "aborted", busy))
	home := s.vmi.Status.NodeName
	m := s.migrate("aborted")
	s.awaitMoving()
	s.rest(m)
	if s.vmi.Status.NodeName != home {
		t.Errorf("the guest is on %s, want %s", s.vmi.Status.NodeName, home)
	}
}

func TestMigration_AbortedInQueue(t *testing.T) {
	c := cluster(t)
	one := uint32(1)
	slowly(t, c, func(m *v1.MigrationConfiguration) { m.ParallelMigrationsPerCluster = &one })
	first := boot(t, c, newGuest(t, "first", busy))
	second := boot(t, c, newGuest(t, "second"))
	running := first.migrate("first")
	first.awaitMoving()
	queued := second.migrate("second")
	must(t, c.Await(t.Context(), patience, "the second migration to say what it waits for", func(ctx context.Context) error {
		have := &v1.VirtualMachineInstanceMigration{}
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(queued), have); err != nil {
			return err
		}
		for _, cond := range have.Status.Conditions {
			if have.Status.Phase == v1.MigrationPending && cond.Reason == "WaitingForSlot" {
				return nil
			}
		}
		return fmt.Errorf("it is %s, conditions %v", have.Status.Phase, have.Status.Conditions)
	}))
	must(t, c.Client.Delete(t.Context(), queued.DeepCopy()))
	must(t, c.AwaitGone(t.Context(), queued.DeepCopy(), patience))
	second.single()
	must(t, c.Client.Delete(t.Context(), running.DeepCopy()))
	must(t, c.AwaitGone(t.Context(), running.DeepCopy(), patience))
	first.single()
}

func TestMigration_AgentCrash(t *testing.T) {
	for _, side := range []string{"source", "target"} {
		t.Run(side, func(t *testing.T) {
			c := cluster(t)
			slowly(t, c)
			s := boot(t, c, newGuest(t, "crash-"+side, busy))
			m := s.migrate("crash-" + side)
			s.awaitMoving()
			crashAgent(t, c, s.side(side), func() {})
			must(t, c.AwaitAgents(t.Context(), patience))
			s.rest(m)
		})
	}
}

func TestMigration_ControllerCrash(t *testing.T) {
	c := cluster(t)
	s := boot(t, c, newGuest(t, "crash-controller"))
	from := s.vmi.Status.NodeName
	m := s.migrate("crash-controller")
	crashController(t, c, func() {})
	s.awaitMigration(m, v1.MigrationSucceeded)
	s.await(v1.Running)
	if s.vmi.Status.NodeName == from {
		t.Errorf("the guest is on %s still", from)
	}
	s.single()
	s.unbroken()
}
