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

// awaitMoving waits until the hypervisor is migrating the domain.
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
		job, err := s.c.Node(l.Holder).Virsh(ctx, "domjobinfo", "default_"+s.key.Name)
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
