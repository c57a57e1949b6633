// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

func TestClusterFrom(t *testing.T) {
	configured := func(c v1.KubeVirtConfiguration) *v1.KubeVirt {
		return &v1.KubeVirt{Spec: v1.KubeVirtSpec{Configuration: c}}
	}
	developer := func(d v1.DeveloperConfiguration) *v1.KubeVirt {
		return configured(v1.KubeVirtConfiguration{DeveloperConfiguration: &d})
	}
	for name, tt := range map[string]struct {
		kv     *v1.KubeVirt
		want   Cluster
		smbios *SMBIOS
	}{
		"no object":                  {nil, Cluster{BochsForEFI: true}, nil},
		"an object that is silent":   {&v1.KubeVirt{}, Cluster{BochsForEFI: true}, nil},
		"VGA for guests with UEFI":   {&v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1.VGADisplayForEFIGuestsX86Annotation: ""}}}, Cluster{}, nil},
		"balloon never asked":        {configured(v1.KubeVirtConfiguration{MemBalloonStatsPeriod: new(uint32(0))}), Cluster{BochsForEFI: true, BalloonPeriod: new(uint32(0))}, nil},
		"options that are not given": {configured(v1.KubeVirtConfiguration{VirtualMachineOptions: &v1.VirtualMachineOptions{}}), Cluster{BochsForEFI: true}, nil},
		"options": {
			configured(v1.KubeVirtConfiguration{VirtualMachineOptions: &v1.VirtualMachineOptions{
				DisableFreePageReporting: &v1.DisableFreePageReporting{}, DisableSerialConsoleLog: &v1.DisableSerialConsoleLog{},
			}}), Cluster{BochsForEFI: true, NoFreePageReporting: true, NoSerialConsoleLog: true}, nil,
		},
		"feature gates": {
			developer(v1.DeveloperConfiguration{FeatureGates: []string{"FirmwareAutoSelection", "VGPULiveMigration", "PCINUMAAwareTopology"}}),
			Cluster{BochsForEFI: true, FirmwareAutoSelection: true, MigratableVGPU: true, NUMAAlignedPCI: true,
				FeatureGates: []string{"FirmwareAutoSelection", "VGPULiveMigration", "PCINUMAAwareTopology"}}, nil,
		},
		"binding plugins": {
			configured(v1.KubeVirtConfiguration{NetworkConfiguration: &v1.NetworkConfiguration{Binding: map[string]v1.InterfaceBindingPlugin{
				"stays": {}, "moves": {Migration: &v1.InterfaceBindingMigration{}, DomainAttachmentType: v1.Tap},
				"asks": {Migration: &v1.InterfaceBindingMigration{Method: v1.LinkRefresh}, DomainAttachmentType: v1.ManagedTap},
			}}}), Cluster{BochsForEFI: true, TapBindings: []string{"asks", "moves"}, MigratableBindings: []string{"asks", "moves"}, RefreshedBindings: []string{"asks"}}, nil,
		},
		"verbosity 5": {developer(v1.DeveloperConfiguration{LogVerbosity: &v1.LogVerbosity{VirtLauncher: 5}}), Cluster{BochsForEFI: true}, nil},
		"verbosity 6": {developer(v1.DeveloperConfiguration{LogVerbosity: &v1.LogVerbosity{VirtLauncher: 6}}), Cluster{BochsForEFI: true, FirmwareLog: true}, nil},
		"SMBIOS values": {
			configured(v1.KubeVirtConfiguration{SMBIOSConfig: &v1.SMBiosConfiguration{Manufacturer: "m", Product: "p", Version: "v", Sku: "s", Family: "f"}}),
			Cluster{BochsForEFI: true}, &SMBIOS{Manufacturer: "m", Product: "p", Version: "v", SKU: "s", Family: "f"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, smbios := ClusterFrom(tt.kv)
			if diff := cmp.Diff(tt.want, got) + cmp.Diff(tt.smbios, smbios); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
