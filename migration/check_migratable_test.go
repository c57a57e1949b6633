// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// onClaim makes the VMI's status describe the claim of volume disk.
func onClaim(modes ...corev1.PersistentVolumeAccessMode) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Volumes = []v1.Volume{{Name: "disk", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "x"}}}}
		vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "disk", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{AccessModes: modes}}}
	}
}

func interfaceOf(i v1.InterfaceBindingMethod) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Networks = []v1.Network{{Name: "net", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}}
		vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "net", InterfaceBindingMethod: i}}
	}
}

func all(changes ...func(*v1.VirtualMachineInstance)) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		for _, c := range changes {
			c(vmi)
		}
	}
}

// Section 11 as far as the VMI's object shows it, for VMIs of whom no node says anything.
func TestCheckMigratable_WithoutCondition(t *testing.T) {
	yes, no := true, false
	tsc := int64(2_000_000_000)
	reenlighten := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Features = &v1.Features{Hyperv: &v1.FeatureHyperv{Reenlightenment: &v1.FeatureState{}}}
	}
	security := func(l v1.LaunchSecurity) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.LaunchSecurity = &l }
	}
	hostDisk := func(shared *bool) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Volumes = []v1.Volume{{Name: "disk", VolumeSource: v1.VolumeSource{HostDisk: &v1.HostDisk{Shared: shared}}}}
		}
	}
	for name, tc := range map[string]struct {
		given func(*v1.VirtualMachineInstance)
		want  string
	}{
		"nothing special":     {all(), ""},
		"bridge":              {interfaceOf(v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}), "InterfaceNotLiveMigratable"},
		"masquerade":          {interfaceOf(v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}}), ""},
		"a plugin of unknown": {interfaceOf(v1.InterfaceBindingMethod{}), ""},
		"bridge, allowed": {all(interfaceOf(v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}), func(vmi *v1.VirtualMachineInstance) {
			vmi.Annotations[migration.AllowBridgeMigration] = ""
		}), ""},
		"bridge to another network": {all(interfaceOf(v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}), func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Networks[0].NetworkSource = v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "x"}}
		}), ""},
		"host device":               {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Devices.HostDevices = []v1.HostDevice{{}} }, "HostDeviceNotLiveMigratable"},
		"two GPUs":                  {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Devices.GPUs = []v1.GPU{{}, {}} }, "HostDeviceNotLiveMigratable"},
		"one GPU, perhaps mediated": {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Devices.GPUs = []v1.GPU{{}} }, ""},
		"SEV":                       {security(v1.LaunchSecurity{SEV: &v1.SEV{}}), "SEVNotLiveMigratable"},
		"SNP":                       {security(v1.LaunchSecurity{SNP: &v1.SEVSNP{}}), "SEVNotLiveMigratable"},
		"TDX":                       {security(v1.LaunchSecurity{TDX: &v1.TDX{}}), "TDXNotLiveMigratable"},
		"secure execution":          {security(v1.LaunchSecurity{}), "SecureExecutionNotLiveMigratable"},
		"re-enlightenment":          {reenlighten, "NoTSCFrequencyNotLiveMigratable"},
		"re-enlightenment with a frequency": {all(reenlighten, func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.TopologyHints = &v1.TopologyHints{TSCFrequency: &tsc}
		}), ""},
		"Hyper-V passthrough": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Features = &v1.Features{HypervPassthrough: &v1.HyperVPassthrough{}}
		}, "HypervPassthroughNotLiveMigratable"},
		"no Hyper-V passthrough": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Features = &v1.Features{HypervPassthrough: &v1.HyperVPassthrough{Enabled: &no}}
		}, ""},
		"claim of one node":  {onClaim(corev1.ReadWriteOnce), "DisksNotLiveMigratable"},
		"claim of all nodes": {onClaim(corev1.ReadWriteOnce, corev1.ReadWriteMany), ""},
		"claim that moves": {all(onClaim(corev1.ReadWriteOnce), func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "disk"}}
		}), ""},
		"claim on a CD": {all(onClaim(corev1.ReadOnlyMany), func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "disk", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{}}}}
		}), ""},
		"claim nobody describes":   {all(onClaim(), func(vmi *v1.VirtualMachineInstance) { vmi.Status.VolumeStatus = nil }), ""},
		"host disk":                {hostDisk(nil), "DisksNotLiveMigratable"},
		"host disk that is shared": {hostDisk(&yes), ""},
		"container disk": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Volumes = []v1.Volume{{Name: "disk", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{}}}}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.given(w.VMI)
			f := checkNamed("migratable").Judge(w.Snapshot(), w.Now)
			if f.Blocked != (tc.want != "") || !strings.Contains(f.Message, tc.want+":") && tc.want != "" {
				t.Errorf("finding is %+v, want reason %q", f, tc.want)
			}
			// The word of the node counts.
			w.VMI.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue}}
			if f := checkNamed("migratable").Judge(w.Snapshot(), w.Now); f.Blocked {
				t.Errorf("the node is contradicted: %+v", f)
			}
		})
	}
}
