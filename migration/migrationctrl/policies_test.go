// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/migration"
)

// bandwidth is a policy for the namespaces with the label, with that bandwidth.
func (c *cluster) bandwidth(t *testing.T, namespace, key, value, rate string) *v1alpha1.MigrationPolicy {
	t.Helper()
	q := resource.MustParse(rate)
	p := &v1alpha1.MigrationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "bandwidth-of-" + namespace},
		Spec: v1alpha1.MigrationPolicySpec{
			BandwidthPerMigration: &q, Selectors: &v1alpha1.Selectors{NamespaceSelector: v1alpha1.LabelSelector{key: value}},
		},
	}
	c.create(t, p)
	t.Cleanup(func() {
		if err := c.Delete(context.Background(), p); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	return p
}

func (c *cluster) setBandwidth(t *testing.T, p *v1alpha1.MigrationPolicy, rate string) {
	t.Helper()
	was, q := p.DeepCopy(), resource.MustParse(rate)
	p.Spec.BandwidthPerMigration = &q
	if err := c.Patch(t.Context(), p, client.MergeFrom(was)); err != nil {
		t.Fatal(err)
	}
}

// goesBy waits until the options of the VMI's migration have that bandwidth.
func (c *cluster) goesBy(t *testing.T, vmi *v1.VirtualMachineInstance, rate string) {
	t.Helper()
	c.waitFor(t, "a bandwidth of "+rate, vmi, func() bool {
		ms := vmi.Status.MigrationState
		return ms != nil && ms.VMIMConfigurationOptions != nil && ms.VMIMConfigurationOptions.BandwidthPerMigration != nil &&
			ms.VMIMConfigurationOptions.BandwidthPerMigration.String() == rate
	})
}

func badPolicy(t *testing.T, c *cluster) {
	c.startController(t, nil)
	ns := c.namespace(t)
	p := c.bandwidth(t, ns, corev1.LabelMetadataName, ns, "-1")
	vmi := c.guest(t, ns, "guest", "sim-0")
	m := c.migrate(t, vmi, "move", nil)
	c.waitFor(t, "the policy to be complained about", m, func() bool {
		return m.Status.Phase == v1.MigrationPending && reasonOf(m) == migration.ReasonPolicyInvalid
	})
	if n := len(c.pods(t, vmi)); n != 1 {
		t.Errorf("the VMI has %d Pods while its policy is bad", n)
	}
	c.setBandwidth(t, p, "8Mi")
	c.waitPhase(t, m, v1.MigrationSucceeded)
	if got := m.Status.MigrationState.VMIMConfigurationOptions.BandwidthPerMigration.String(); got != "8Mi" {
		t.Errorf("it migrated by %s", got)
	}
}

// followsPolicy changes, while a VMI migrates, its policy, then the labels of its
// namespace, then the cluster's configuration.
func followsPolicy(t *testing.T, c *cluster) {
	c.startController(t, nil)
	ns := c.namespace(t)
	namespace := &corev1.Namespace{}
	if err := c.Get(t.Context(), types.NamespacedName{Name: ns}, namespace); err != nil {
		t.Fatal(err)
	}
	label := func(value string) {
		t.Helper()
		was := namespace.DeepCopy()
		metav1.SetMetaDataLabel(&namespace.ObjectMeta, "test.virtloom.dev/rate", value)
		if err := c.Patch(t.Context(), namespace, client.MergeFrom(was)); err != nil {
			t.Fatal(err)
		}
	}
	label("limited-" + ns)
	p := c.bandwidth(t, ns, "test.virtloom.dev/rate", "limited-"+ns, "8Mi")
	vmi := c.guest(t, ns, "guest", "sim-0")
	c.holdAt(t, vmi, holdTakeOver)
	m := c.migrate(t, vmi, "move", nil)
	c.waitPhase(t, m, v1.MigrationRunning)
	c.goesBy(t, vmi, "8Mi")
	c.setBandwidth(t, p, "16Mi")
	c.goesBy(t, vmi, "16Mi")
	if name := vmi.Status.MigrationState.MigrationPolicyName; name == nil || *name != p.Name {
		t.Errorf("its policy is %v", name)
	}
	label("free")
	c.waitFor(t, "no limit", vmi, func() bool {
		ms := vmi.Status.MigrationState
		return ms.VMIMConfigurationOptions.BandwidthPerMigration == nil && ms.MigrationPolicyName == nil
	})
	q := resource.MustParse("32Mi")
	c.create(t, &v1.KubeVirt{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "kubevirt"},
		Spec:       v1.KubeVirtSpec{Configuration: v1.KubeVirtConfiguration{MigrationConfiguration: &v1.MigrationConfiguration{BandwidthPerMigration: &q}}},
	})
	c.goesBy(t, vmi, "32Mi")
	c.holdAt(t, vmi, "")
	c.waitPhase(t, m, v1.MigrationSucceeded)
	c.waitEvents(t, ns, migration.EventOptionsChanged)
}
