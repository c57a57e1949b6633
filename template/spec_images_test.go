// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const noImageVolumes = "ImageVolume"

func containerNames(list []corev1.Container) (names []string) {
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names
}

func podVolumes(pod *corev1.Pod) map[string]corev1.VolumeSource {
	volumes := map[string]corev1.VolumeSource{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = v.VolumeSource
	}
	return volumes
}

// mountsOf lists mounts as volume:path, with sub-path, propagation and ro if set.
func mountsOf(c corev1.Container) (list []string) {
	for _, m := range c.VolumeMounts {
		s := m.Name + ":" + m.MountPath
		if m.SubPath != "" {
			s += ":" + m.SubPath
		}
		if m.MountPropagation != nil {
			s += ":" + string(*m.MountPropagation)
		}
		if m.ReadOnly {
			s += ":ro"
		}
		list = append(list, s)
	}
	return list
}

func pulled(name, policy, secret string) change {
	return volume(name, v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{
		Image: name + ":v1", ImagePullPolicy: corev1.PullPolicy(policy), ImagePullSecret: secret,
	}})
}

func asNonRoot(vmi *v1.VirtualMachineInstance) { vmi.Status.RuntimeUser = 107 }

// TestSpecContainersOfImages is section 4.1 and 4.4 without image volumes.
func TestSpecContainersOfImages(t *testing.T) {
	two := []change{pulled("containerdisk1", "Never", ""), pulled("containerdisk2", "IfNotPresent", "")}
	for name, tc := range map[string]struct {
		vmi        []change
		init, main []string
	}{
		"102: two disks": {two,
			[]string{"container-disk-binary", "volumecontainerdisk1-init", "volumecontainerdisk2-init"},
			[]string{"compute", "volumecontainerdisk1", "volumecontainerdisk2"}},
		"105: kernel boot": {[]change{kernelBoot("kernel", "/k")},
			[]string{"container-disk-binary", "volumekernel-boot-volume-init"}, []string{"compute", "volumekernel-boot-volume"}},
		"kernel boot is last": {slices.Concat([]change{kernelBoot("kernel", "/k")}, two),
			[]string{"container-disk-binary", "volumecontainerdisk1-init", "volumecontainerdisk2-init", "volumekernel-boot-volume-init"},
			[]string{"compute", "volumecontainerdisk1", "volumecontainerdisk2", "volumekernel-boot-volume"}},
		"console log is first": {append([]change{func(vmi *v1.VirtualMachineInstance) {
			yes := true
			vmi.Spec.Domain.Devices.LogSerialConsole = &yes
		}}, two[0]), []string{"guest-console-log", "container-disk-binary", "volumecontainerdisk1-init"}, []string{"compute", "volumecontainerdisk1"}},
		"no images": {nil, nil, []string{"compute"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := presetLauncher(t, newVMI(tc.vmi...), gatesOff(noImageVolumes))
			if diff := cmp.Diff(tc.init, containerNames(pod.Spec.InitContainers)); diff != "" {
				t.Errorf("init containers:\n%s", diff)
			}
			if diff := cmp.Diff(tc.main, containerNames(pod.Spec.Containers)); diff != "" {
				t.Errorf("containers:\n%s", diff)
			}
			for _, v := range pod.Spec.Volumes {
				if v.Image != nil {
					t.Errorf("volume %s is an image", v.Name)
				}
			}
		})
	}
}

func TestSpecImageContainer(t *testing.T) {
	const folder = "/var/run/kubevirt-ephemeral-disks/container-disk-data/1234"
	vmi := newVMI(volume("first", v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: *quantity("1Gi")}}),
		pulled("root", "Never", "pull-2"), kernelBoot("kernel", "/k"))
	pod := presetLauncher(t, vmi, gatesOff(noImageVolumes))
	security := corev1.SecurityContext{
		RunAsUser: new(int64(107)), RunAsNonRoot: new(true), AllowPrivilegeEscalation: new(false),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	want := corev1.Container{
		Name: "volumeroot", Image: "root:v1", ImagePullPolicy: corev1.PullNever, Command: []string{"/usr/bin/container-disk"},
		Args: []string{"--copy-path", folder + "/disk_1"},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "container-disks", MountPath: folder}, {Name: "virt-bin-share-dir", MountPath: "/usr/bin"},
		},
		SecurityContext: &security,
		Resources: corev1.ResourceRequirements{
			Requests: list("cpu", "1m", "memory", "1M", "ephemeral-storage", "50M"), Limits: list("cpu", "10m", "memory", "40M"),
		},
	}
	if diff := cmp.Diff(want, container(t, pod, "volumeroot")); diff != "" {
		t.Error(diff)
	}
	want.Name, want.Args = "volumeroot-init", []string{"--no-op"}
	if diff := cmp.Diff(want, container(t, pod, "volumeroot-init")); diff != "" {
		t.Error(diff)
	}
	if got := container(t, pod, "volumekernel-boot-volume"); !slices.Equal(got.Args, []string{"--copy-path", folder + "/kernel-boot"}) || got.Image != "kernel" {
		t.Errorf("kernel boot: image %s, arguments %q", got.Image, got.Args)
	}
	binary := corev1.Container{
		Name: "container-disk-binary", Image: "kubevirt/virt-launcher", ImagePullPolicy: corev1.PullAlways,
		Command:      []string{"/usr/bin/cp"},
		Args:         []string{"--preserve=all", "/usr/bin/container-disk", "/init/usr/bin/container-disk"},
		VolumeMounts: []corev1.VolumeMount{{Name: "virt-bin-share-dir", MountPath: "/init/usr/bin"}},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: new(int64(0)), RunAsNonRoot: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		Resources: corev1.ResourceRequirements{
			Requests: list("cpu", "10m", "memory", "1M"), Limits: list("cpu", "100m", "memory", "40M"),
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	if diff := cmp.Diff(binary, container(t, pod, "container-disk-binary")); diff != "" {
		t.Error(diff)
	}
	asNonRoot(vmi)
	security.RunAsGroup = new(int64(107))
	pod = presetLauncher(t, vmi, gatesOff(noImageVolumes))
	if diff := cmp.Diff(&security, container(t, pod, "container-disk-binary").SecurityContext); diff != "" {
		t.Errorf("as qemu's user:\n%s", diff)
	}
	if want := []corev1.LocalObjectReference{{Name: "pull-2"}, {Name: "pull-secret-1"}}; !slices.Equal(pod.Spec.ImagePullSecrets, want) {
		t.Errorf("pull secrets %v, want %v", pod.Spec.ImagePullSecrets, want)
	}
}

// TestSpecResourcesOfImageContainers is table 4.4, the configured and the guaranteed columns.
func TestSpecResourcesOfImageContainers(t *testing.T) {
	dedicated := func(vmi *v1.VirtualMachineInstance) {
		guest("1Gi")(vmi)
		vmi.Spec.Domain.CPU = &v1.CPU{Cores: 1, DedicatedCPUPlacement: true}
	}
	configured := func(in *render.Input) {
		in.Config.ContainerResources = []v1.SupportContainerResources{{Type: v1.ContainerDisk, Resources: v1.ResourceRequirementsWithoutClaims{
			Requests: list("cpu", "2m"), Limits: list("memory", "50M"),
		}}}
	}
	none := func(*render.Input) {}
	for name, tc := range map[string]struct {
		vmi          change
		config       func(*render.Input)
		image, disks corev1.ResourceRequirements
	}{
		"dedicated": {dedicated, none,
			corev1.ResourceRequirements{Requests: list("cpu", "10m", "memory", "40M"), Limits: list("cpu", "10m", "memory", "40M")},
			corev1.ResourceRequirements{Requests: list("cpu", "10m", "memory", "40M", "ephemeral-storage", "50M"), Limits: list("cpu", "10m", "memory", "40M")}},
		"guaranteed": {func(vmi *v1.VirtualMachineInstance) {
			requests("cpu", "1", "memory", "1Gi")(vmi)
			limits("cpu", "1", "memory", "1Gi")(vmi)
		}, none,
			corev1.ResourceRequirements{Requests: list("cpu", "10m", "memory", "40M"), Limits: list("cpu", "10m", "memory", "40M")},
			corev1.ResourceRequirements{Requests: list("cpu", "10m", "memory", "40M", "ephemeral-storage", "50M"), Limits: list("cpu", "10m", "memory", "40M")}},
		"configured": {guest("1Gi"), configured,
			corev1.ResourceRequirements{Requests: list("cpu", "2m", "memory", "1M"), Limits: list("cpu", "100m", "memory", "50M")},
			corev1.ResourceRequirements{Requests: list("cpu", "2m", "memory", "1M", "ephemeral-storage", "50M"), Limits: list("cpu", "10m", "memory", "50M")}},
		"configured requests do not count when dedicated": {dedicated, configured,
			corev1.ResourceRequirements{Requests: list("cpu", "10m", "memory", "50M"), Limits: list("cpu", "10m", "memory", "50M")},
			corev1.ResourceRequirements{Requests: list("cpu", "10m", "memory", "50M", "ephemeral-storage", "50M"), Limits: list("cpu", "10m", "memory", "50M")}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := presetLauncher(t, newVMI(tc.vmi, pulled("root", "", "")), gatesOff(noImageVolumes), tc.config)
			for name, want := range map[string]corev1.ResourceRequirements{
				"container-disk-binary": tc.image, "volumeroot": tc.disks, "volumeroot-init": tc.disks,
			} {
				if diff := cmp.Diff(want, container(t, pod, name).Resources); diff != "" {
					t.Errorf("%s:\n%s", name, diff)
				}
			}
		})
	}
}

// TestSpecImageVolumes is table 6.2 with image volumes, and the differences without them.
func TestSpecImageVolumes(t *testing.T) {
	t.Run("103: image volume", func(t *testing.T) {
		pod := presetLauncher(t, newVMI(volume("r0", v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{
			Image: "someImage:v1.2.3-4", ImagePullPolicy: corev1.PullIfNotPresent,
		}})))
		volumes, compute := podVolumes(pod), container(t, pod, "compute")
		if got := volumes["r0"].Image; got == nil || got.Reference != "someImage:v1.2.3-4" || got.PullPolicy != corev1.PullIfNotPresent {
			t.Errorf("r0 is %v", volumes["r0"])
		}
		if got := volumes["launcher-volume"].Image; got == nil || got.Reference != "kubevirt/virt-launcher" || got.PullPolicy != corev1.PullAlways {
			t.Errorf("launcher-volume is %v", volumes["launcher-volume"])
		}
		if !slices.Contains(mountsOf(compute), "r0:/var/run/kubevirt-image-volume/disk_0:ro") {
			t.Errorf("compute mounts %q", mountsOf(compute))
		}
		if want := []string{"volumer0"}; !slices.Equal(containerNames(pod.Spec.InitContainers), want) {
			t.Errorf("init containers %q", containerNames(pod.Spec.InitContainers))
		}
		c := pod.Spec.InitContainers[0]
		if c.Command[0] != "/container-disk-binary/usr/bin/container-disk" || c.Args[0] != "--no-op" ||
			!slices.Equal(mountsOf(c), []string{"launcher-volume:/container-disk-binary:ro"}) {
			t.Errorf("digest container %v", c)
		}
		if _, ok := volumes["container-disks"]; ok || !slices.Contains(compute.Args, "--image-volume") {
			t.Errorf("has the folder of copies, arguments %q", compute.Args)
		}
	})
	t.Run("104: digest resolution is declined", func(t *testing.T) {
		pod := presetLauncher(t, newVMI(pulled("r0", "", ""), annotate("kubevirt.io/image-volume-skip-digest-resolution", "true")))
		if _, ok := podVolumes(pod)["launcher-volume"]; ok || len(pod.Spec.InitContainers) != 0 {
			t.Errorf("init containers %q", containerNames(pod.Spec.InitContainers))
		}
	})
	t.Run("105: kernel boot", func(t *testing.T) {
		pod := presetLauncher(t, newVMI(kernelBoot("kernel", "/k")))
		if got := podVolumes(pod)["kernel-boot-volume"].Image; got == nil || got.Reference != "kernel" {
			t.Errorf("volumes %v", podVolumes(pod))
		}
		if got := mountsOf(container(t, pod, "compute")); !slices.Contains(got, "kernel-boot-volume:/var/run/kubevirt-kernel-boot:ro") {
			t.Errorf("mounts %q", got)
		}
		if got := containerNames(pod.Spec.InitContainers); !slices.Equal(got, []string{"volumekernel-boot-volume"}) {
			t.Errorf("init containers %q", got)
		}
	})
	t.Run("the folder of copies comes after the sockets", func(t *testing.T) {
		pod := presetLauncher(t, newVMI(), gatesOff(noImageVolumes))
		want := []string{
			"private:/var/run/kubevirt-private", "public:/var/run/kubevirt", "ephemeral-disks:/var/run/kubevirt-ephemeral-disks",
			"libvirt-runtime:/var/run/libvirt", "sockets:/var/run/kubevirt/sockets",
			"container-disks:/var/run/kubevirt/container-disks:HostToContainer",
			"hotplug-disks:/var/run/kubevirt/hotplug-disks:HostToContainer",
		}
		if diff := cmp.Diff(want, mountsOf(container(t, pod, "compute"))); diff != "" {
			t.Error(diff)
		}
		if got := podVolumes(pod)["container-disks"].EmptyDir; got == nil {
			t.Error("container-disks is no emptyDir")
		}
		if args := container(t, pod, "compute").Args; slices.Contains(args, "--image-volume") {
			t.Errorf("arguments %q", args)
		}
	})
}

// TestSpecMigrationTarget_SourceImages is section 9.1: digests on the target.
func TestSpecMigrationTarget_SourceImages(t *testing.T) {
	ran := func(name, id string) func(*render.Input) {
		return func(in *render.Input) {
			in.Migration.SourcePod.Status = corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: name, ImageID: id}}}
		}
	}
	initialised := func(name, id string) func(*render.Input) {
		return func(in *render.Input) {
			in.Migration.SourcePod.Status = corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{{Name: name, ImageID: id}}}
		}
	}
	sourceHas := func(reference string) func(*render.Input) {
		return func(in *render.Input) {
			in.Migration.SourcePod.Spec.Volumes = []corev1.Volume{{Name: "r0", VolumeSource: corev1.VolumeSource{
				Image: &corev1.ImageVolumeSource{Reference: reference},
			}}}
		}
	}
	for name, tc := range map[string]struct {
		image string
		given []func(*render.Input)
		want  string
		err   error
	}{
		"135: digest of the init container":   {"someImage", []func(*render.Input){initialised("volumer0", "docker://sha256:abcd1234567890")}, "someImage@sha256:abcd1234567890", nil},
		"136: volume by digest":               {"someImage:v1", []func(*render.Input){ran("compute", ""), sourceHas("someImage@sha256:ee")}, "someImage@sha256:ee", nil},
		"137: rubbish":                        {"someImage", []func(*render.Input){initialised("volumer0", "rubbish")}, "", render.ErrInvalid},
		"138: port kept, tag dropped":         {"registry:5000/x:tag", []func(*render.Input){initialised("volumer0", "sha256:aa")}, "registry:5000/x@sha256:aa", nil},
		"135: digest of the container":        {"someImage", []func(*render.Input){gatesOff(noImageVolumes), ran("volumer0", "docker://sha256:abcd1234567890")}, "someImage@sha256:abcd1234567890", nil},
		"137: rubbish of a container":         {"someImage", []func(*render.Input){gatesOff(noImageVolumes), ran("volumer0", "rubbish")}, "", render.ErrInvalid},
		"138: port kept, containers":          {"registry:5000/x:tag", []func(*render.Input){gatesOff(noImageVolumes), ran("volumer0", "sha256:aa")}, "registry:5000/x@sha256:aa", nil},
		"old digest is replaced":              {"x@sha256:bb", []func(*render.Input){gatesOff(noImageVolumes), ran("volumer0", "sha256:aa")}, "x@sha256:aa", nil},
		"container that has not reported":     {"someImage", []func(*render.Input){gatesOff(noImageVolumes), ran("volumer0", "")}, "", render.ErrMissingFact},
		"container that is not there":         {"someImage", []func(*render.Input){gatesOff(noImageVolumes), ran("compute", "sha256:aa")}, "", render.ErrMissingFact},
		"gate switched off since the source":  {"someImage", []func(*render.Input){gatesOff(noImageVolumes), initialised("volumer0", "sha256:aa")}, "someImage@sha256:aa", nil},
		"gate switched on since the source":   {"someImage", []func(*render.Input){ran("volumer0", "sha256:aa")}, "someImage@sha256:aa", nil},
		"the copy's init container is no use": {"someImage", []func(*render.Input){gatesOff(noImageVolumes), initialised("volumer0-init", "sha256:aa")}, "", render.ErrMissingFact},
	} {
		t.Run(name, func(t *testing.T) {
			in := presetInput(newVMI(volume("r0", image(tc.image)), guestCPU("Haswell")))
			in.Migration = &render.Migration{UID: "m", Name: "move", SourcePod: &corev1.Pod{}}
			in.VMI.Status.SelinuxContext = "none"
			for _, change := range tc.given {
				change(&in)
			}
			pod, err := preset(t).MigrationTarget(in)
			if tc.err != nil {
				wantError(t, err, "spec.volumes[0].containerDisk.image", tc.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{tc.want}, guestImages(pod)); diff != "" {
				t.Error(diff)
			}
			if _, ok := podVolumes(pod)["launcher-volume"]; ok {
				t.Error("requests a known digest")
			}
		})
	}
}

// guestImages returns the images of a Pod other than the launcher's, without duplicates.
func guestImages(pod *corev1.Pod) (all []string) {
	for _, v := range pod.Spec.Volumes {
		if v.Image != nil {
			all = append(all, v.Image.Reference)
		}
	}
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if strings.HasPrefix(c.Name, "volume") {
			all = append(all, c.Image)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func guestCPU(model string) change {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU = &v1.CPU{Model: model} }
}
