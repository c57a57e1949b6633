// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/virtloom/virtloom/migration"
)

// TestEvacuator_WakesOnVMIChanges changes a VMI; without an event a node is not looked at for an hour.
func TestEvacuator_WakesOnVMIChanges(t *testing.T) {
	for name, tc := range map[string]struct {
		edit  func(*v1.VirtualMachineInstance)
		wakes bool
	}{
		"nothing": {func(*v1.VirtualMachineInstance) {}, false},
		"how far a move has come": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.Conditions = append(vmi.Status.Conditions, v1.VirtualMachineInstanceCondition{
				Type: v1.VirtualMachineInstanceConditionType(migration.ConditionProgress), Message: "90 %",
			})
		}, false},
		"how far a volume has come": {func(vmi *v1.VirtualMachineInstance) { vmi.Status.VolumeStatus[0].Message = "attached" }, false},
		"it says that it cannot be moved": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.Conditions[0].Status = corev1.ConditionFalse
		}, true},
		"a volume is unplugged": {func(vmi *v1.VirtualMachineInstance) { vmi.Status.VolumeStatus = nil }, true},
		"a volume is plugged in for good": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.VolumeStatus[0].HotplugVolume = nil
		}, true},
		"other nodes can use a volume": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			was := leaving("g", "n")
			was.Status.VolumeStatus = []v1.VolumeStatus{{
				Name: "data", HotplugVolume: &v1.HotplugVolumeStatus{},
				PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
			}}
			is := was.DeepCopy()
			tc.edit(is)
			if wakes := changed(aspectsOfVMI).Update(event.UpdateEvent{ObjectOld: was, ObjectNew: is}); wakes != tc.wakes {
				t.Errorf("a node is woken: %t", wakes)
			}
		})
	}
}
