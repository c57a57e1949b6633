// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/migration"
)

// setBandwidth changes the bandwidth of a policy.
func (s *scene) setBandwidth(p *v1alpha1.MigrationPolicy, rate string) {
	s.Helper()
	was, q := p.DeepCopy(), resource.MustParse(rate)
	p.Spec.BandwidthPerMigration = &q
	must(s.T, s.c.Client.Patch(s.Context(), p, client.MergeFrom(was)))
}

// awaitSpeed waits until libvirt's job may send that many MiB/s.
func (s *scene) awaitSpeed(node, mib string) {
	s.Helper()
	must(s.T, s.c.Await(s.Context(), patience, "libvirt to send "+mib+" MiB/s", func(ctx context.Context) error {
		speed, err := s.c.Node(node).Virsh(ctx, "migrate-getspeed", "default_"+s.key.Name)
		if err == nil && strings.TrimSpace(speed) != mib {
			err = fmt.Errorf("it may send %q MiB/s", speed)
		}
		return err
	}))
}

// TestMigrationPolicy_Followed: a guest that writes faster than it may be sent waits for
// its policy to be mended, and is moved once the bandwidth is raised.
func TestMigrationPolicy_Followed(t *testing.T) {
	c := cluster(t)
	bad, never := resource.MustParse("-4Mi"), int64(0)
	p := &v1alpha1.MigrationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "followed"},
		Spec: v1alpha1.MigrationPolicySpec{
			Selectors:             &v1alpha1.Selectors{VirtualMachineInstanceSelector: v1alpha1.LabelSelector{"policy": "followed"}},
			BandwidthPerMigration: &bad, CompletionTimeoutPerGiB: &never,
		},
	}
	must(t, c.Client.Create(t.Context(), p))
	t.Cleanup(func() { must(t, c.Client.Delete(context.Background(), p.DeepCopy())) })
	s := boot(t, c, newGuest(t, "followed", busy, func(vmi *v1.VirtualMachineInstance) {
		vmi.Labels = map[string]string{"policy": "followed"}
	}))
	home := s.vmi.Status.NodeName
	m := s.migrate("followed")
	s.awaitReason(m, v1.MigrationPending, migration.ReasonPolicyInvalid)

	s.setBandwidth(p, "4Mi")
	s.awaitMoving()
	s.awaitSpeed(home, "4")
	s.awaitHelp(func(p domain.Progress) bool { return p.Iteration > 2 }) // it does not converge

	s.setBandwidth(p, "5Mi")
	s.awaitSpeed(home, "5")
	s.setBandwidth(p, "64Mi") // which ends it at once
	s.awaitMigration(m, v1.MigrationSucceeded)
	s.await(v1.Running)
	if ms := s.vmi.Status.MigrationState; s.vmi.Status.NodeName == home || ms.Mode != v1.MigrationPreCopy {
		t.Errorf("the guest is on %s, it was on %s; it went by %s", s.vmi.Status.NodeName, home, ms.Mode)
	}
	s.single()
	s.beats(s.vmi.Status.NodeName, 3)
	s.unbroken()
	var events corev1.EventList
	must(t, c.Client.List(t.Context(), &events, client.InNamespace(s.key.Namespace)))
	reported := slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
		return e.Reason == migration.EventOptionsChanged && strings.Contains(e.Message, "4Mi → 5Mi")
	})
	if !reported {
		t.Errorf("no event %s reports it", migration.EventOptionsChanged)
	}
}
