// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi/validate"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// newVMI returns an empty VMI with the changes applied.
func newVMI(changes ...func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		Name: "testvmi", Namespace: "default", UID: "1234",
	}}
	for _, change := range changes {
		change(vmi)
	}
	return vmi
}

// input returns the input of a VMI in a cluster with all feature gates that it requires, including that of the user in its
// status.
func input(vmi *v1.VirtualMachineInstance, changes ...func(*template.Input)) template.Input {
	in := closed(vmi, changes...)
	permit(&in)
	return in
}

// permit enables the gates that VMIs require, including that of the user in the status.
func permit(in *template.Input) {
	gates := []string{
		validate.Sidecar, validate.Ignition, validate.HostDisk, validate.HostDevices, validate.DownwardMetrics, validate.SEV, validate.TDX,
		validate.VSOCK, validate.VirtiofsStorage, validate.UtilityVolumes, validate.PersistentReservation,
	}
	if in.VMI != nil && in.VMI.Status.RuntimeUser == 0 && in.Migration == nil {
		gates = append(gates, validate.Root)
	}
	in.Config.FeatureGates = append(gates, in.Config.FeatureGates...)
}

// closed returns the input in a cluster without feature gates except those that a change adds.
func closed(vmi *v1.VirtualMachineInstance, changes ...func(*template.Input)) template.Input {
	in := template.Input{VMI: vmi, Config: template.Config{LauncherImage: "example.com/virt-launcher:v1"}}
	for _, change := range changes {
		change(&in)
	}
	return in
}

func launcher(t *testing.T, in template.Input) *corev1.Pod {
	t.Helper()
	pod, err := template.Default().Launcher(in)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func container(t *testing.T, pod *corev1.Pod, name string) corev1.Container {
	t.Helper()
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for _, c := range list {
			if c.Name == name {
				return c
			}
		}
	}
	t.Fatalf("no container %q", name)
	return corev1.Container{}
}

func quantity(s string) *resource.Quantity {
	q := resource.MustParse(s)
	return &q
}

func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func virtio(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Networks = []v1.Network{*v1.DefaultPodNetwork()}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{
		Name: "default", InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}},
	}}
}

func guest(size string) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		if vmi.Spec.Domain.Memory == nil {
			vmi.Spec.Domain.Memory = &v1.Memory{}
		}
		vmi.Spec.Domain.Memory.Guest = quantity(size)
	}
}

func requests(pairs ...string) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Resources.Requests = list(pairs...) }
}

func limits(pairs ...string) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Resources.Limits = list(pairs...) }
}

func cores(n uint32) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU = &v1.CPU{Cores: n} }
}

func volume(name string, source v1.VolumeSource) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	}
}

func disk(name string) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{
			Name: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}},
		})
	}
}

func claim(name string, mode corev1.PersistentVolumeMode, access corev1.PersistentVolumeAccessMode) func(*template.Input) {
	return func(in *template.Input) {
		if in.Facts.Claims == nil {
			in.Facts.Claims = map[string]*corev1.PersistentVolumeClaim{}
		}
		in.Facts.Claims[name] = &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("pvc-" + name)},
			Spec: corev1.PersistentVolumeClaimSpec{
				VolumeMode: &mode, AccessModes: []corev1.PersistentVolumeAccessMode{access},
			},
		}
	}
}

func golden(t *testing.T, name string, pod *corev1.Pod) {
	t.Helper()
	got, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", name+".yaml")
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; run the test with -update", err)
	}
	if !bytes.Equal(want, got) {
		t.Errorf("%s differs; run the test with -update if that is wanted:\n%s", file, cmp.Diff(string(want), string(got)))
	}
}

func read(t testing.TB, name string) *v1.VirtualMachineInstance {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := yaml.UnmarshalStrict(content, vmi); err != nil {
		t.Fatal(err)
	}
	return vmi
}
