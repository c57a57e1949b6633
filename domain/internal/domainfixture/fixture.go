// SPDX-License-Identifier: Apache-2.0

// Package domainfixture provides the VirtualMachineInstances and node facts for tests of the
// packages below domain.
package domainfixture

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/internal/refguest"
	"github.com/virtloom/virtloom/vmi/validate"
)

// Small returns a VirtualMachineInstance with one disk and one interface. The caller may modify it.
func Small() *v1.VirtualMachineInstance {
	memory := resource.MustParse("64Mi")
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "mynamespace", Name: "testvmi", UID: "5b6c1a2e-0000-4000-8000-00000000000a"},
		Spec: v1.VirtualMachineInstanceSpec{
			Domain: v1.DomainSpec{
				Memory: &v1.Memory{Guest: &memory},
				Devices: v1.Devices{
					Disks:      []v1.Disk{{Name: "root", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}},
					Interfaces: []v1.Interface{{Name: "default", InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}}}},
				},
			},
			Networks: []v1.Network{{Name: "default", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}},
			Volumes: []v1.Volume{
				{Name: "root", VolumeSource: v1.VolumeSource{HostDisk: &v1.HostDisk{Path: "/srv/shared/root.img"}}},
				{Name: "data", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "data"}}},
				{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}}},
				{Name: "cloudinit", VolumeSource: v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{}}},
			},
		},
	}
}

// AddDisk adds a disk without a volume and returns it. The pointer is valid until the next call.
func AddDisk(vmi *v1.VirtualMachineInstance, name string, d v1.DiskDevice) *v1.Disk {
	l := &vmi.Spec.Domain.Devices.Disks
	*l = append(*l, v1.Disk{Name: name, DiskDevice: d})
	return &(*l)[len(*l)-1]
}

// everyGate returns the feature gates that any VMI may need.
func everyGate() []string {
	return []string{
		validate.Sidecar, validate.Ignition, validate.HostDisk, validate.HostDevices, validate.DownwardMetrics, validate.SEV, validate.TDX,
		validate.VSOCK, validate.VirtiofsStorage, validate.UtilityVolumes, validate.ContainerPaths, validate.NetworksWithDRA, validate.PersistentReservation,
	}
}

// Facts returns the facts of a node with files for every volume of the golden objects. The type
// argument is convert.Facts; it is a parameter because tests inside package convert could not
// import this package if it imported theirs.
func Facts[facts any]() facts {
	const dir = "/var/lib/virtloom/guests/5b6c1a2e"
	text, err := json.Marshal(map[string]any{
		"cluster": map[string]any{"featureGates": everyGate()},
		"dir":     dir, "emulation": true, "epoch": 7,
		"bridges": map[string]any{"default": "br0", "storage": "br1"},
		"disks": map[string]any{
			"root":      map[string]any{"path": "/srv/shared/root.img", "shared": true},
			"data":      map[string]any{"path": "/dev/vg/data", "block": true, "directIO": true, "shared": true},
			"scratch":   map[string]any{"path": dir + "/scratch.qcow2", "format": "qcow2"},
			"cloudinit": map[string]any{"path": dir + "/noCloud.iso"},
			"image": map[string]any{
				"path": dir + "/image.qcow2", "format": "qcow2",
				"backing": map[string]any{"path": "/var/lib/virtloom/images/a1.img", "format": "raw", "readOnly": true},
			},
		},
		"kernel": dir + "/kernel", "initrd": dir + "/initrd",
	})
	var f facts
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		panic(fmt.Sprintf("domainfixture: %v", err)) //nolint:forbidigo // what it reads is constant
	}
	return f
}

// Read reads a VirtualMachineInstance from a YAML file, and fails the test on errors.
func Read(t testing.TB, file string) *v1.VirtualMachineInstance {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := yaml.UnmarshalStrict(b, vmi); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return vmi
}

// Marshal returns the XML of a domain, and fails the test on errors.
func Marshal(t testing.TB, d *libvirtxml.Domain) string {
	t.Helper()
	s, err := d.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return s + "\n"
}

// Corpus returns VirtualMachineInstances by name that together set every field.
func Corpus(t testing.TB) map[string]*v1.VirtualMachineInstance {
	t.Helper()
	guests, err := refguest.Corpus()
	if err != nil {
		t.Fatal(err)
	}
	if len(guests) < 90 {
		t.Fatalf("%d guests in the corpus", len(guests))
	}
	return guests
}

// Must fails the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Says checks that err holds every word.
func Says(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("there is no error")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}
