// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"errors"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/convert/assume"
)

// manyDisks returns a VMI with n hotpluggable disks.
func manyDisks(n int) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Name, vmi.Namespace, vmi.UID = "many", "default", "1a2b3c4d-0000-4000-8000-000000000001"
	memory, shared := resource.MustParse("1Gi"), v1.IOThreadsPolicyShared
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
	vmi.Spec.Domain.IOThreadsPolicy = &shared
	for i := range n {
		name := fmt.Sprintf("d%d", i)
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{
			Name: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}},
		})
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
			EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("1Gi")},
		}})
		vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, v1.VolumeStatus{Name: name})
	}
	return vmi
}

func TestConvert_DisabledFeatureGate(t *testing.T) {
	vmi := manyDisks(1)
	vmi.Spec.Volumes[0].VolumeSource = v1.VolumeSource{HostDisk: &v1.HostDisk{Path: "/etc/kubernetes/pki/ca.key", Type: v1.HostDiskExists}}
	facts := assume.Facts(vmi)
	if _, err := convert.Convert(vmi, facts); err != nil {
		t.Fatalf("with the gate: %v", err)
	}
	for name, kv := range map[string]*v1.KubeVirt{"no KubeVirt object": nil, "one without gates": {}} {
		facts.Cluster, _ = convert.ClusterFrom(kv)
		var refusal *convert.Error
		_, err := convert.Convert(vmi, facts)
		if !errors.As(err, &refusal) || !errors.Is(err, domain.ErrUnsupported) || refusal.Field != "spec.volumes[0].hostDisk" {
			t.Errorf("%s: %v", name, err)
		}
	}
	kv := &v1.KubeVirt{}
	kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{FeatureGates: []string{"HostDisk"}}
	facts.Cluster, _ = convert.ClusterFrom(kv)
	if _, err := convert.Convert(vmi, facts); err != nil {
		t.Errorf("with the gate of the KubeVirt object: %v", err)
	}
}

func TestConvert_InvalidValues(t *testing.T) {
	amount := func(text string) *resource.Quantity { q := resource.MustParse(text); return &q }
	kernel := func(c v1.KernelBootContainer) *v1.Firmware {
		return &v1.Firmware{KernelBoot: &v1.KernelBoot{Container: &c}}
	}
	for field, change := range map[string]func(*v1.VirtualMachineInstance){
		"spec.domain.memory.guest":    func(g *v1.VirtualMachineInstance) { g.Spec.Domain.Memory.Guest = amount("99999999999999999999999E") },
		"spec.domain.memory.maxGuest": func(g *v1.VirtualMachineInstance) { g.Spec.Domain.Memory.MaxGuest = amount("9E") },
		"spec.domain.firmware.kernelBoot.container.kernelPath": func(g *v1.VirtualMachineInstance) {
			g.Spec.Domain.Firmware = kernel(v1.KernelBootContainer{Image: "x", KernelPath: "/boot/../.."})
		},
		"spec.domain.firmware.kernelBoot.container.initrdPath": func(g *v1.VirtualMachineInstance) {
			g.Spec.Domain.Firmware = kernel(v1.KernelBootContainer{Image: "x", KernelPath: "/k", InitrdPath: ".."})
		},
		"spec.domain.devices.disks": func(g *v1.VirtualMachineInstance) { g.Spec = manyDisks(5000).Spec; g.Spec.Volumes = nil },
	} {
		vmi := manyDisks(1)
		change(vmi)
		var refusal *convert.Error
		_, err := convert.Convert(vmi, assume.Facts(vmi))
		if !errors.As(err, &refusal) || !errors.Is(err, domain.ErrInvalid) || refusal.Field != field || refusal.Remedy == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestConvert_LinearInDisks counts allocations, for a new guest and for a running one.
func TestConvert_LinearInDisks(t *testing.T) {
	allocs := func(n int, running bool) float64 {
		vmi := manyDisks(n)
		facts := assume.Facts(vmi)
		if running {
			d, err := convert.Convert(vmi, facts)
			if err != nil {
				t.Fatal(err)
			}
			facts.Layout = convert.LayoutOf(d)
		}
		return testing.AllocsPerRun(3, func() {
			if _, err := convert.Convert(vmi, facts); err != nil {
				t.Fatal(err)
			}
		})
	}
	for _, running := range []bool{false, true} {
		few, many := allocs(50, running), allocs(200, running)
		if ratio := many / few; ratio > 4.4 {
			t.Errorf("running %t: 4 times the disks need %.1f times the allocations: %.0f, %.0f", running, ratio, few, many)
		}
	}
}

// BenchmarkConvertDisks converts VMIs with increasing numbers of disks.
func BenchmarkConvertDisks(b *testing.B) {
	for _, n := range []int{50, 100, 200} {
		vmi := manyDisks(n)
		facts := assume.Facts(vmi)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := convert.Convert(vmi, facts); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
