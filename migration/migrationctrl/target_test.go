// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/migration"
)

// claim creates a claim that is bound.
func (c *cluster) claim(t *testing.T, namespace, name string, mode corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
	t.Helper()
	class := ""
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	c.volume(t, namespace, name, mode)
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{mode},
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}
	c.create(t, claim)
	c.waitFor(t, "the claim to be bound", claim, func() bool { return claim.Status.Phase == corev1.ClaimBound })
	return claim
}

// volume makes a volume for the claim of that name.
func (c *cluster) volume(t *testing.T, namespace, claim string, mode corev1.PersistentVolumeAccessMode) {
	t.Helper()
	c.create(t, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{GenerateName: namespace + "-"},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef:                      &corev1.ObjectReference{Namespace: namespace, Name: claim},
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{mode},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}},
		},
	})
}

// plugged: a volume that was hotplugged into the VMI is attached at the target by a
// Pod of its own before the VMI is handed off.
func plugged(t *testing.T, c *cluster) {
	c.startController(t, nil)
	vmi := c.guest(t, c.namespace(t), "guest", "sim-0")
	c.claim(t, vmi.Namespace, "data", corev1.ReadWriteMany)
	vmi.Spec.Volumes = []v1.Volume{{Name: "plug", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}, Hotpluggable: true,
		},
	}}}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "plug", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSCSI}}}}
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "plug", Phase: v1.VolumeReady, HotplugVolume: &v1.HotplugVolumeStatus{}}}
	if err := c.Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	c.holdAt(t, vmi, holdReady)
	m := c.migrate(t, vmi, "move", nil)
	c.waitPhase(t, m, v1.MigrationPreparingTarget)

	var list corev1.PodList
	if err := c.List(t.Context(), &list, client.InNamespace(vmi.Namespace), client.MatchingLabels{v1.AppLabel: "hotplug-disk"}); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 {
		t.Fatalf("there are %d attachment Pods", len(list.Items))
	}
	p := &list.Items[0]
	target := c.target(t, vmi, m)
	if !metav1.IsControlledBy(p, target) || p.Labels[v1.MigrationJobLabel] != string(m.UID) || p.Spec.NodeName != target.Spec.NodeName {
		t.Errorf("attachment Pod %s on %s has labels %v, owners %v; the target is on %s", p.Name, p.Spec.NodeName, p.Labels, p.OwnerReferences, target.Spec.NodeName)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi); err != nil {
		t.Fatal(err)
	}
	if ms := vmi.Status.MigrationState; ms == nil || ms.TargetAttachmentPodUID != p.UID {
		t.Errorf("the target gets %+v", ms)
	}
	c.holdAt(t, vmi, "")
	c.waitPhase(t, m, v1.MigrationSucceeded)
	c.waitReleased(t, m)
	c.waitFor(t, "the annotation that announces the VMI", target, func() bool {
		return target.Annotations[v1.MigrationTargetReadyTimestamp] != ""
	})
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil || p.DeletionTimestamp != nil {
		t.Errorf("the Pod that brings the VMI's volume is gone: %v", err)
	}
}

// target returns the migration's target Pod.
func (c *cluster) target(t *testing.T, vmi *v1.VirtualMachineInstance, m *v1.VirtualMachineInstanceMigration) *corev1.Pod {
	t.Helper()
	pods := c.pods(t, vmi)
	all := make([]*corev1.Pod, len(pods))
	for i := range pods {
		all[i] = &pods[i]
	}
	p := migration.TargetPod(all, m.UID)
	if p == nil {
		t.Fatalf("no target Pod of %s", m.Name)
	}
	return p
}

// state: the VMI's TPM state moves to a claim of its own, and the claim it
// was in is deleted; a migration that is canceled leaves it where it was.
func state(t *testing.T, c *cluster) {
	c.startController(t, nil)
	ns := c.namespace(t)
	claim := c.claim(t, ns, "state", corev1.ReadWriteOnce)
	claim.Labels = map[string]string{"persistent-state-for": "guest"}
	if err := c.Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	vmi := c.guestWith(t, ns, "guest", "sim-0", claim)

	cancelled := c.migrate(t, vmi, "cancelled", nil)
	c.waitPhase(t, cancelled, v1.MigrationScheduling) // its claim has no volume
	if err := c.Delete(t.Context(), cancelled); err != nil {
		t.Fatal(err)
	}
	c.waitGone(t, cancelled)
	c.onlyClaim(t, ns, "state")

	m := c.migrate(t, vmi, "move", nil)
	name := migration.TargetStateName(vmi, m.UID)
	c.volume(t, ns, name, corev1.ReadWriteOnce)
	c.waitPhase(t, m, v1.MigrationSucceeded)
	c.waitReleased(t, m)
	c.onlyClaim(t, ns, name)
	c.onlyPodOn(t, vmi, m.Status.MigrationState.TargetNode)
}

// onlyClaim waits until that one of the claims with the VMI's state is left, labeled
// as such.
func (c *cluster) onlyClaim(t *testing.T, namespace, name string) {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	c.waitFor(t, "only one claim", claim, func() bool {
		var list corev1.PersistentVolumeClaimList
		if err := c.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		// The rig has no controller that releases claims that no Pod uses any more.
		left := slices.DeleteFunc(list.Items, func(c corev1.PersistentVolumeClaim) bool { return c.DeletionTimestamp != nil })
		return len(left) == 1 && claim.DeletionTimestamp == nil && claim.Labels["persistent-state-for"] == "guest" && claim.Labels[v1.MigrationNameLabel] == ""
	})
}

// progress: the migration repeats the report of the node that migrates the VMI, which is
// past when the migration has ended.
func progress(t *testing.T, c *cluster) {
	c.startController(t, nil)
	vmi := c.guest(t, c.namespace(t), "guest", "sim-0")
	c.holdAt(t, vmi, holdTakeOver)
	m := c.migrate(t, vmi, "move", nil)
	c.waitPhase(t, m, v1.MigrationRunning)
	for _, text := range []string{"10 %", "90 %"} {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi); err != nil {
			t.Fatal(err)
		}
		was := vmi.DeepCopy()
		vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{
			Type:   v1.VirtualMachineInstanceConditionType(migration.ConditionProgress),
			Status: corev1.ConditionTrue, Reason: "PreCopy", Message: text,
		}}
		if err := c.Patch(t.Context(), vmi, client.MergeFrom(was)); err != nil {
			t.Fatal(err)
		}
		c.waitFor(t, "the progress of "+text, m, func() bool {
			p := migration.Condition(m.Status, migration.ConditionProgress)
			return p != nil && p.Status == corev1.ConditionTrue && p.Reason == "PreCopy" && p.Message == text
		})
	}
	c.holdAt(t, vmi, "")
	c.waitPhase(t, m, v1.MigrationSucceeded)
	if p := migration.Condition(m.Status, migration.ConditionProgress); p == nil || p.Status != corev1.ConditionFalse || p.Message != "the VMI has migrated" {
		t.Errorf("at the end the progress is %+v", p)
	}
}
