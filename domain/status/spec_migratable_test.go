// SPDX-License-Identifier: Apache-2.0

package status

import (
	"strings"
	"testing"

	k8sv1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

// TestMigratableChecks has the obstacles of LiveMigratable and those of storageLiveMigratable.
func TestMigratableChecks(t *testing.T) {
	type vmiT = v1.VirtualMachineInstance
	gpu := func(v *vmiT, _ *convert.Facts) {
		v.Spec.Domain.Devices.GPUs = []v1.GPU{{Name: "gpu", DeviceName: "nvidia.com/a"}}
	}
	mediated := func(v *vmiT, f *convert.Facts) {
		gpu(v, f)
		f.Cluster.MigratableVGPU, f.Devices = true, map[string][]convert.HostDevice{"nvidia.com/a": {{MDev: "u"}}}
	}
	plugin := func(v *vmiT, _ *convert.Facts) {
		v.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = v1.InterfaceBindingMethod{}
		v.Spec.Domain.Devices.Interfaces[0].Binding = &v1.PluginBinding{Name: "mine"}
	}
	hostModel := func(v *vmiT, f *convert.Facts) {
		v.Spec.Domain.CPU, f.NoHostModel = &v1.CPU{Model: v1.CPUModeHostModel}, true
	}
	shared := func(modes ...k8sv1.PersistentVolumeAccessMode) func(*vmiT, *convert.Facts) {
		return func(v *vmiT, f *convert.Facts) {
			delete(f.Disks, "data")
			v.Spec.Volumes = append(v.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}})
			v.Spec.Domain.Devices.Filesystems = []v1.Filesystem{{Name: "data", Virtiofs: &v1.FilesystemVirtiofs{}}}
			v.Status.VolumeStatus = []v1.VolumeStatus{{Name: "data", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{AccessModes: modes}}}
		}
	}
	for name, tt := range map[string]struct {
		change  func(*vmiT, *convert.Facts)
		live    string
		storage string
	}{
		"nothing in the way": {func(*vmiT, *convert.Facts) {}, "", ""},
		"one mediated GPU":   {mediated, "", ""},
		"its gate is closed": {func(v *vmiT, f *convert.Facts) { mediated(v, f); f.Cluster.MigratableVGPU = false }, "HostDeviceNotLiveMigratable", "not enabled"},
		"two of them": {func(v *vmiT, f *convert.Facts) {
			mediated(v, f)
			v.Spec.Domain.Devices.GPUs = append(v.Spec.Domain.Devices.GPUs, v1.GPU{Name: "more"})
		}, "HostDeviceNotLiveMigratable", "more than one"},
		"a whole GPU": {func(v *vmiT, f *convert.Facts) {
			mediated(v, f)
			f.Devices["nvidia.com/a"][0] = convert.HostDevice{PCI: "0000:65:00.0"}
		},
			"HostDeviceNotLiveMigratable", "not a mediated"},
		"a mediated GPU by claim": {func(v *vmiT, f *convert.Facts) {
			mediated(v, f)
			v.Spec.Domain.Devices.GPUs = []v1.GPU{{Name: "gpu", ClaimRequest: &v1.ClaimRequest{ClaimName: "c", RequestName: "r"}}}
			f.Devices = map[string][]convert.HostDevice{"r": {{MDev: "u"}}}
		}, "", ""},
		"a binding plugin":                  {plugin, "InterfaceNotLiveMigratable", "interface default"},
		"one that lets migrate":             {func(v *vmiT, f *convert.Facts) { plugin(v, f); f.Cluster.MigratableBindings = []string{"mine"} }, "", ""},
		"the host's model, unknown":         {hostModel, "CPUModeLiveMigratable", "CPU model"},
		"the same, not asked for":           {func(_ *vmiT, f *convert.Facts) { f.NoHostModel = true }, "", ""},
		"a reservation":                     {func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.Devices.Disks[0].LUN = &v1.LunTarget{Reservation: true} }, "", "persistent reservation"},
		"a disk on this node":               {func(_ *vmiT, f *convert.Facts) { f.Disks = nil }, "DisksNotLiveMigratable", ""},
		"a directory that is shared":        {shared(k8sv1.ReadWriteMany), "", ""},
		"a directory that is not":           {shared(k8sv1.ReadWriteOnce), "DisksNotLiveMigratable", ""},
		"secure execution":                  {func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.LaunchSecurity = &v1.LaunchSecurity{} }, "SecureExecutionNotLiveMigratable", ""},
		"several: the first, or all of it":  {func(v *vmiT, f *convert.Facts) { plugin(v, f); hostModel(v, f) }, "InterfaceNotLiveMigratable", "interface default"},
		"several: the second is listed too": {func(v *vmiT, f *convert.Facts) { plugin(v, f); hostModel(v, f) }, "InterfaceNotLiveMigratable", "CPU model"},
	} {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[convert.Facts]()
			vmi.Spec.Volumes = vmi.Spec.Volumes[:1]
			tt.change(vmi, &f)
			if cond, _ := LiveMigratable(vmi, f); cond.Reason != tt.live || (cond.Status == k8sv1.ConditionTrue) != (tt.live == "") {
				t.Errorf("LiveMigratable is %+v, want reason %q", cond, tt.live)
			}
			cond := storageLiveMigratable(vmi, f)
			if cond.Type != v1.VirtualMachineInstanceIsStorageLiveMigratable || (cond.Status == k8sv1.ConditionTrue) != (tt.storage == "") {
				t.Errorf("StorageLiveMigratable is %+v", cond)
			}
			if tt.storage != "" && (cond.Reason != "NotMigratable" || !strings.Contains(cond.Message, tt.storage)) {
				t.Errorf("StorageLiveMigratable is %+v, want a message with %q", cond, tt.storage)
			}
		})
	}
}

func TestMigrationMethod_Virtiofs(t *testing.T) {
	vmi, f := domainfixture.Small(), domainfixture.Facts[convert.Facts]()
	vmi.Spec.Volumes = append(vmi.Spec.Volumes[:1], v1.Volume{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}})
	if got := migrationMethod(vmi, f); got != v1.BlockMigration {
		t.Errorf("as a disk: %s", got)
	}
	vmi.Spec.Domain.Devices.Filesystems = []v1.Filesystem{{Name: "config"}}
	if got := migrationMethod(vmi, f); got != v1.LiveMigration {
		t.Errorf("as a directory: %s", got)
	}
}
