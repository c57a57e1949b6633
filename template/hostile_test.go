// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// hostileGuest is a VMI that a user created without a webhook, so without status.runtimeUser: it requests a key of the
// node's control plane, and a sidecar that reads it.
func hostileGuest() *v1.VirtualMachineInstance {
	return newVMI(guest("1Gi"), disk("key"), volume("key", v1.VolumeSource{
		HostDisk: &v1.HostDisk{Path: "/etc/kubernetes/pki/ca.key", Type: v1.HostDiskExists},
	}), func(vmi *v1.VirtualMachineInstance) {
		vmi.Annotations = map[string]string{"hooks.kubevirt.io/hookSidecars": `[{"image": "registry.example/reader:1"}]`}
	})
}

func TestGates_Disabled(t *testing.T) {
	for name, tt := range map[string]struct {
		gates []string
		want  []string
	}{
		"none":      {nil, []string{"spec.volumes[0].hostDisk", "metadata.annotations[hooks.kubevirt.io/hookSidecars]"}},
		"one":       {[]string{"HostDisk"}, []string{"metadata.annotations[hooks.kubevirt.io/hookSidecars]"}},
		"the other": {[]string{"Sidecar"}, []string{"spec.volumes[0].hostDisk"}},
	} {
		for _, kind := range []render.PodKind{render.LauncherPod, render.TemporaryPod} {
			_, err := template.Default().Render(kind, closed(hostileGuest(), gates(tt.gates...)))
			if !errors.Is(err, render.ErrUnsupported) {
				t.Errorf("%s, %s: %v", name, kind, err)
				continue
			}
			for _, field := range tt.want {
				if !strings.Contains(err.Error(), field+": requires the feature gate") {
					t.Errorf("%s, %s: %v lacks %s", name, kind, err, field)
				}
			}
		}
	}
	pod := launcher(t, closed(hostileGuest(), gates("HostDisk", "Sidecar")))
	if container(t, pod, "hook-sidecar-0").Image != "registry.example/reader:1" {
		t.Error("no sidecar with both gates")
	}
}

// TestLauncher_RootRequiresGate covers that status.runtimeUser is empty without webhooks, and writable by users.
func TestLauncher_RootRequiresGate(t *testing.T) {
	for _, user := range []uint64{0, 107, 4711} {
		for _, root := range []bool{false, true} {
			vmi := hostileGuest()
			vmi.Status.RuntimeUser = user
			vmi.Spec.Volumes[0].VolumeSource = v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "x"}}
			in := closed(vmi, gates("Sidecar"))
			in.Config.DisabledFeatureGates = []string{"ImageVolume"}
			if root {
				gates("Root")(&in)
			}
			asRoot := root && user == 0
			pod := launcher(t, in)
			if got := *pod.Spec.SecurityContext.RunAsUser; (got == 0) != asRoot {
				t.Errorf("user %d, gate Root %t: Pod runs as %d", user, root, got)
			}
			if asRoot {
				continue
			}
			for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
				s := c.SecurityContext
				switch {
				case s == nil || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}):
					t.Errorf("user %d, gate Root %t: container %s keeps capabilities: %+v", user, root, c.Name, s)
				case s.RunAsUser == nil || *s.RunAsUser == 0 || s.RunAsNonRoot == nil || !*s.RunAsNonRoot:
					t.Errorf("user %d, gate Root %t: container %s may be root: %+v", user, root, c.Name, s)
				}
			}
			if vmi.Status.RuntimeUser != user {
				t.Error("the input was changed")
			}
		}
	}
}

func TestBounds_ExceededBeforeStages(t *testing.T) {
	many := newVMI(guest("1Gi"))
	for i := range 8000 {
		name := fmt.Sprintf("d%d", i)
		disk(name)(many)
		volume(name, v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "x"}})(many)
	}
	annotated := newVMI(guest("1Gi"))
	annotated.Annotations = map[string]string{"a": strings.Repeat("x", 300_000)}
	ran := false
	r, err := render.NewRenderer(render.Stage{Name: "first", Pods: render.AllPods, Apply: func(*render.Draft) error { ran = true; return nil }})
	if err != nil {
		t.Fatal(err)
	}
	for field, vmi := range map[string]*v1.VirtualMachineInstance{
		"spec.volumes": many, "spec.domain.devices.disks": many, "metadata.annotations": annotated,
	} {
		if _, err := r.Launcher(input(vmi)); !errors.Is(err, render.ErrInvalid) || !strings.Contains(err.Error(), field+": ") || ran {
			t.Errorf("%s: error is %v, stages ran: %t", field, err, ran)
		}
	}
}

func TestValues_InvalidForEveryRenderer(t *testing.T) {
	kernel := func(change func(*v1.KernelBootContainer)) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			c := &v1.KernelBootContainer{Image: "x", KernelPath: "/vmlinuz"}
			change(c)
			vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{Container: c}}
		}
	}
	for field, change := range map[string]func(*v1.VirtualMachineInstance){
		"spec.domain.memory.guest":                             guest("99999999999999999999999E"),
		"spec.domain.resources.requests.memory":                requests("memory", "9E"),
		"spec.domain.firmware.kernelBoot.container.kernelPath": kernel(func(c *v1.KernelBootContainer) { c.KernelPath = "/boot/../.." }),
		"spec.domain.firmware.kernelBoot.container.initrdPath": kernel(func(c *v1.KernelBootContainer) { c.InitrdPath = ".." }),
		"spec.volumes[0].containerDisk.path":                   volume("a", v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "x", Path: "/../x"}}),
		"spec.volumes[0].emptyDisk.capacity":                   volume("a", v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("100m")}}),
	} {
		_, err := template.Default().Launcher(input(newVMI(guest("1Gi"), change)))
		if !errors.Is(err, render.ErrInvalid) || !strings.Contains(err.Error(), field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestLauncher_LinearInDisks counts allocations, which grow with the number of elements; TestFind_LinearComparisons counts
// comparisons.
func TestLauncher_LinearInDisks(t *testing.T) {
	allocs := func(n int) float64 {
		vmi := newVMI(guest("1Gi"))
		for i := range n {
			name := fmt.Sprintf("d%d", i)
			disk(name)(vmi)
			volume(name, v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "x"}})(vmi)
			vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, v1.VolumeStatus{Name: name})
		}
		in := input(vmi)
		return testing.AllocsPerRun(3, func() {
			if _, err := template.Default().Launcher(in); err != nil {
				t.Fatal(err)
			}
		})
	}
	few, many := allocs(64), allocs(256)
	if ratio := many / few; ratio > 4.4 {
		t.Errorf("four times the disks take %.1f times the allocations: %.0f, %.0f", ratio, few, many)
	}
}

// BenchmarkLauncherDisks renders VMIs with increasing numbers of disks.
func BenchmarkLauncherDisks(b *testing.B) {
	for _, n := range []int{64, 128, 256} {
		vmi := newVMI(guest("1Gi"))
		for i := range n {
			name := fmt.Sprintf("d%d", i)
			disk(name)(vmi)
			volume(name, v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "x"}})(vmi)
		}
		in := input(vmi)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := template.Default().Launcher(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
