// SPDX-License-Identifier: Apache-2.0

package templatectrl_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/templatectrl"
)

func TestClaimNames(t *testing.T) {
	const state = "persistent-state-for-guest"
	for name, tt := range map[string]struct {
		vmi  *v1.VirtualMachineInstance
		want []string
	}{
		"a guest without volumes": {guest(), []string{state}},
		"volumes of every kind with a claim": {guest(
			volume("a", claimed("disk")),
			volume("b", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "imported", Hotpluggable: true}}),
			volume("c", v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "base"}}}),
			volume("d", v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{PersistentVolumeClaimVolumeSource: v1.PersistentVolumeClaimVolumeSource{
				PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "dump"}}}}),
		), []string{"base", "disk", "dump", "imported", state}},
		"volumes without one": {guest(
			volume("a", v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}}), volume("b", v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}),
		), []string{state}},
		"one claim twice": {guest(volume("a", claimed("disk")), volume("b", claimed("disk"))), []string{"disk", state}},
		"a claim unnamed": {guest(volume("a", claimed(""))), []string{state}},
		"a utility volume": {guest(func(g *v1.VirtualMachineInstance) {
			g.Spec.UtilityVolumes = []v1.UtilityVolume{{PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "backup"}}}
		}), []string{"backup", state}},
		"hook sidecars":     {guest(hooks(`[{"pvc":{"name":"tools"}},{"image":"x"}]`)), []string{state, "tools"}},
		"one hook is wrong": {guest(hooks(`[{"pvc":"tools"},{"pvc":{"name":"more"}}]`)), []string{"more", state}},
		"hooks are no list": {guest(hooks(`{"pvc":{"name":"tools"}}`)), []string{state}},
		"a migration that takes its state along": {guest(func(g *v1.VirtualMachineInstance) {
			g.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{SourcePersistentStatePVCName: "from", TargetPersistentStatePVCName: "to"}
		}), []string{"from", state, "to"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, templatectrl.ClaimNames(tt.vmi)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
