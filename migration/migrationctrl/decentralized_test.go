// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
)

const (
	vendorLabel = v1.CPUModelVendorLabel + "Test"
	elsewhere   = "192.0.2.9:9185"
)

// enable turns KubeVirt's feature gate on for one test.
func (c *cluster) enable(t *testing.T, namespace string) *v1.KubeVirt {
	t.Helper()
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kubevirt"}}
	kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{FeatureGates: []string{migration.FeatureGate}}
	c.create(t, kv)
	t.Cleanup(func() {
		if err := c.Delete(context.Background(), kv); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	return kv
}

// hear writes to the VMI's migration state what a synchronization controller brings.
func (c *cluster) hear(t *testing.T, vmi *v1.VirtualMachineInstance, edit func(*v1.VirtualMachineInstanceMigrationState)) {
	t.Helper()
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi); err != nil {
		t.Fatal(err)
	}
	was := vmi.DeepCopy()
	edit(vmi.Status.MigrationState)
	if err := c.Patch(t.Context(), vmi, client.MergeFrom(was)); err != nil {
		t.Fatal(err)
	}
}

// gated refuses what is not enabled, and then lets it through.
func gated(t *testing.T, c *cluster) {
	c.startController(t, nil)
	vmi := c.guest(t, c.namespace(t), "guest", "sim-0")
	m := c.migrate(t, vmi, "send", func(m *v1.VirtualMachineInstanceMigration) {
		m.Spec.SendTo = &v1.VirtualMachineInstanceMigrationSource{MigrationID: "id", ConnectURL: elsewhere}
	})
	c.waitPhase(t, m, v1.MigrationFailed)
	c.waitReleased(t, m)
	if reasonOf(m) != migration.ReasonGate {
		t.Errorf("conditions are %+v", m.Status.Conditions)
	}
}

func receives(t *testing.T, c *cluster) {
	c.startController(t, nil)
	ns := c.namespace(t)
	kv := c.enable(t, ns)
	memory := resource.MustParse("64Mi")
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "guest", Annotations: map[string]string{v1.CreateMigrationTarget: "true"}},
		Spec:       v1.VirtualMachineInstanceSpec{Domain: v1.DomainSpec{Memory: &v1.Memory{Guest: &memory}}},
		Status:     v1.VirtualMachineInstanceStatus{Phase: v1.WaitingForSync},
	}
	c.create(t, vmi)
	m := c.migrate(t, vmi, "receive", func(m *v1.VirtualMachineInstanceMigration) {
		m.Spec.Receive = &v1.VirtualMachineInstanceMigrationTarget{MigrationID: "id"}
	})
	c.waitPhase(t, m, v1.MigrationWaitingForSync)
	c.waitFor(t, "the receiver's half", vmi, func() bool {
		ms := vmi.Status.MigrationState
		return ms != nil && ms.TargetState != nil && ms.TargetState.MigrationUID == m.UID
	})
	was := kv.DeepCopy()
	kv.Status.SynchronizationAddresses = []string{"10.0.0.1:9185"}
	if err := c.Status().Patch(t.Context(), kv, client.MergeFrom(was)); err != nil {
		t.Fatal(err)
	}
	c.waitFor(t, "the addresses", m, func() bool {
		return slices.Equal(m.Status.SynchronizationAddresses, kv.Status.SynchronizationAddresses)
	})
	c.hear(t, vmi, func(ms *v1.VirtualMachineInstanceMigrationState) {
		address := elsewhere
		ms.SourceState = &v1.VirtualMachineInstanceMigrationSourceState{NodeSelectors: map[string]string{corev1.LabelArchStable: "any"}}
		s := &ms.SourceState.VirtualMachineInstanceCommonMigrationState
		s.MigrationUID, s.Node, s.Pod, s.SyncAddress = "remote", "sim-1", "virt-launcher-guest-there", &address
		s.SelinuxContext = "system_u:system_r:container_t:s0:c1,c2"
	})
	c.waitPhase(t, m, v1.MigrationPreparingTarget)
	pods := c.pods(t, vmi)
	if len(pods) != 1 {
		t.Fatalf("the VMI's Pods are %+v", pods)
	}
	receivesInto(t, m, &pods[0])
	c.waitFor(t, "the hand-off", vmi, func() bool { return vmi.Status.MigrationState.MigrationUID == m.UID })
	ms := vmi.Status.MigrationState
	if ms.TargetState.Node != pods[0].Spec.NodeName || ms.TargetState.Pod != pods[0].Name || ms.SourceNode != "sim-1" ||
		vmi.Labels[v1.MigrationTargetNodeNameLabel] != pods[0].Spec.NodeName {
		t.Errorf("the handoff is %+v, %v", ms, vmi.Labels)
	}
	if err := c.Delete(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	c.waitGone(t, m)
	c.waitGone(t, &pods[0])
	c.waitFor(t, "the failure to be reported", vmi, func() bool { return vmi.Status.MigrationState.Failed && vmi.Status.MigrationState.Completed })
}

// receivesInto checks the Pod for a VMI that comes from a node named sim-1.
func receivesInto(t *testing.T, m *v1.VirtualMachineInstanceMigration, p *corev1.Pod) {
	t.Helper()
	avoid := corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"sim-1"}}
	for _, term := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if !slices.ContainsFunc(term.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool { return r.String() == avoid.String() }) {
			t.Errorf("the sender's node is not kept out by %+v", term)
		}
	}
	if p.Spec.Affinity.PodAntiAffinity != nil || p.Spec.NodeName == "sim-1" || p.Labels[v1.MigrationJobLabel] != string(m.UID) {
		t.Errorf("the target Pod is on %s, with labels %v and affinity %+v", p.Spec.NodeName, p.Labels, p.Spec.Affinity)
	}
	if o := p.Spec.SecurityContext.SELinuxOptions; o == nil || o.Level != "s0:c1,c2" {
		t.Errorf("its SELinux options are %+v", o)
	}
}

func sends(t *testing.T, c *cluster) {
	c.startController(t, nil)
	ns := c.namespace(t)
	c.enable(t, ns)
	vmi := c.sendable(t, ns)
	m := c.migrate(t, vmi, "send", func(m *v1.VirtualMachineInstanceMigration) {
		m.Spec.SendTo = &v1.VirtualMachineInstanceMigrationSource{MigrationID: "id", ConnectURL: elsewhere}
	})
	c.waitPhase(t, m, v1.MigrationSynchronizing)
	c.waitFor(t, "the sender's half", vmi, func() bool {
		ms := vmi.Status.MigrationState
		return ms != nil && ms.SourceState != nil && ms.SourceState.MigrationUID == m.UID && *ms.TargetState.SyncAddress == elsewhere
	})
	c.hear(t, vmi, func(ms *v1.VirtualMachineInstanceMigrationState) { ms.TargetState.MigrationUID = "remote" })
	c.waitPhase(t, m, v1.MigrationScheduling)
	c.waitFor(t, "what the receiver needs", vmi, func() bool { return vmi.Status.MigrationState.MigrationUID == m.UID })
	s, volumes := vmi.Status.MigrationState.SourceState, vmi.Status.MigratedVolumes
	if s.Node != "sim-0" || s.Pod == "" || s.SelinuxContext != "none" || s.NodeSelectors[vendorLabel] != "true" {
		t.Errorf("the sender says %+v", s)
	}
	if len(volumes) != 1 || volumes[0].VolumeName != "disk" || volumes[0].SourcePVCInfo.ClaimName != "claim" {
		t.Errorf("the volumes that travel are %+v", volumes)
	}
	c.hear(t, vmi, func(ms *v1.VirtualMachineInstanceMigrationState) { ms.TargetState.Pod = "virt-launcher-there" })
	c.waitPhase(t, m, v1.MigrationScheduled)
	c.hear(t, vmi, func(ms *v1.VirtualMachineInstanceMigrationState) {
		address := "192.0.2.7"
		// In the role of the VMI's node.
		ms.TargetState.Node, ms.TargetNode = "sim-0", "sim-0"
		ms.TargetState.NodeAddress, ms.TargetNodeAddress = &address, address
	})
	c.waitPhase(t, m, v1.MigrationTargetReady)
	lease := c.leaseOf(t, vmi)
	if lease.State != handoff.Prepared || lease.Target != handoff.Elsewhere || lease.Tag != m.UID || vmi.Labels[v1.MigrationTargetNodeNameLabel] != "" {
		t.Errorf("the lease is %+v, labels %v", lease, vmi.Labels)
	}
	if err := c.Delete(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	c.waitGone(t, m)
	c.onlyPodOn(t, vmi, "sim-0")
	if ms := vmi.Status.MigrationState; !ms.Failed || !ms.AbortRequested || ms.EndTimestamp == nil || len(vmi.Status.MigratedVolumes) > 0 {
		t.Errorf("what is left is %+v, %+v", ms, vmi.Status.MigratedVolumes)
	}
}

// sendable is a VMI with a claim, on a node with a label that counts, which does not
// begin to move.
func (c *cluster) sendable(t *testing.T, namespace string) *v1.VirtualMachineInstance {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "claim"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	c.create(t, claim)
	node := &corev1.Node{}
	if err := c.Get(t.Context(), types.NamespacedName{Name: "sim-0"}, node); err != nil {
		t.Fatal(err)
	}
	was := node.DeepCopy()
	metav1.SetMetaDataLabel(&node.ObjectMeta, vendorLabel, "true")
	if err := c.Patch(t.Context(), node, client.MergeFrom(was)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		labelled := node.DeepCopy()
		delete(node.Labels, vendorLabel)
		if err := c.Patch(context.Background(), node, client.MergeFrom(labelled)); err != nil {
			t.Error(err)
		}
	})
	vmi := c.guest(t, namespace, "guest", "sim-0")
	c.holdAt(t, vmi, holdBegin)
	guest := vmi.DeepCopy()
	source := corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}
	vmi.Spec.Volumes = []v1.Volume{{Name: "disk", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{PersistentVolumeClaimVolumeSource: source},
	}}}
	if err := c.Patch(t.Context(), vmi, client.MergeFrom(guest)); err != nil {
		t.Fatal(err)
	}
	return vmi
}

func (c *cluster) leaseOf(t *testing.T, vmi *v1.VirtualMachineInstance) handoff.Lease {
	t.Helper()
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi); err != nil {
		t.Fatal(err)
	}
	lease, err := handoff.Of(vmi)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}
