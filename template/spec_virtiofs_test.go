// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

const containerPathGate = "ContainerPathVolumes"

func filesystem(name string) change {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Filesystems = append(vmi.Spec.Domain.Devices.Filesystems,
			v1.Filesystem{Name: name, Virtiofs: &v1.FilesystemVirtiofs{}})
	}
}

func containerPath(path string) v1.VolumeSource {
	return v1.VolumeSource{ContainerPath: &v1.ContainerPathVolumeSource{Path: path, ReadOnly: new(true)}}
}

var (
	configMapSource = v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}
	secretSource    = v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}
	downwardSource  = v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Fields: []corev1.DownwardAPIVolumeFile{{
		Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"},
	}}}}
	accountSource = v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: "sa"}}
)

// TestSpecVirtiofs is case 116 and section 6.3: the shared folder, its source, and the mounts of the compute container.
func TestSpecVirtiofs(t *testing.T) {
	const sockets = "virtiofs-containers:/var/run/kubevirt/virtiofs-containers"
	filesystemClaim := claim("c", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany)
	for name, tc := range map[string]struct {
		source  v1.VolumeSource
		dir     string
		mounts  []string
		compute []string // mounts of the volume
		asRoot  bool
	}{
		"116: claim": {pvc("c"), "/v", []string{sockets, "v:/v"}, []string{"v:/var/run/kubevirt-private/vmi-disks/v"}, false},
		"data volume": {v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "c"}},
			"/v", []string{sockets, "v:/v"}, []string{"v:/var/run/kubevirt-private/vmi-disks/v"}, false},
		"116: configMap": {configMapSource, "/var/run/kubevirt-private/config-map/v",
			[]string{sockets, "v:/var/run/kubevirt-private/config-map/v"}, nil, false},
		"secret": {secretSource, "/var/run/kubevirt-private/secret/v",
			[]string{sockets, "v:/var/run/kubevirt-private/secret/v"}, nil, false},
		"downwardAPI": {downwardSource, "/var/run/kubevirt-private/downwardapi/v",
			[]string{sockets, "v:/var/run/kubevirt-private/downwardapi/v"}, nil, false},
		"116: service account": {accountSource, "/var/run/secrets/kubernetes.io/serviceaccount/", []string{sockets}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := presetLauncher(t, newVMI(volume("v", tc.source), filesystem("v")), filesystemClaim)
			c := container(t, pod, "virtiofs-v")
			args := []string{
				"--socket-path=/var/run/kubevirt/virtiofs-containers/v.sock", "--shared-dir=" + tc.dir, "--sandbox=none", "--cache=auto",
				"--migration-on-error=guest-error", "--migration-mode=find-paths",
			}
			if tc.asRoot {
				args = append(args, "--translate-uid=host:107:0:1")
			}
			want := corev1.Container{
				Name: "virtiofs-v", Image: "kubevirt/virt-launcher", ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"/usr/libexec/virtiofsd"}, Args: args, VolumeMounts: c.VolumeMounts, Resources: c.Resources,
				SecurityContext: &corev1.SecurityContext{
					RunAsUser: new(int64(107)), RunAsGroup: new(int64(107)), RunAsNonRoot: new(true), AllowPrivilegeEscalation: new(false),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}
			if diff := cmp.Diff(want, c); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tc.mounts, mountsOf(c)); diff != "" {
				t.Errorf("mounts:\n%s", diff)
			}
			compute := mountsOf(container(t, pod, "compute"))
			if !slices.Contains(compute, sockets) {
				t.Errorf("the guest does not reach the sockets: %q", compute)
			}
			compute = slices.DeleteFunc(compute, func(m string) bool { return !strings.HasPrefix(m, "v:") })
			if !slices.Equal(compute, tc.compute) {
				t.Errorf("compute has the volume at %q, want %q", compute, tc.compute)
			}
			if podVolumes(pod)["virtiofs-containers"].EmptyDir == nil {
				t.Error("no folder for sockets")
			}
			if _, there := podVolumes(pod)["v"]; there != (tc.source.ServiceAccount == nil) {
				t.Errorf("volume v is there: %v", there)
			}
		})
	}
}

func TestSpecVirtiofsContainersComeInVolumeOrder(t *testing.T) {
	vmi := newVMI(volume("b", secretSource), volume("a", configMapSource), pulled("root", "", ""), filesystem("a"), filesystem("b"))
	pod := presetLauncher(t, vmi, gatesOff(noImageVolumes))
	if want := []string{"compute", "volumeroot", "virtiofs-b", "virtiofs-a"}; !slices.Equal(want, containerNames(pod.Spec.Containers)) {
		t.Errorf("got %q, want %q", containerNames(pod.Spec.Containers), want)
	}
	pod = presetLauncher(t, newVMI(volume("a", configMapSource)))
	if got := containerNames(pod.Spec.Containers); len(got) != 1 || podVolumes(pod)["virtiofs-containers"].EmptyDir != nil {
		t.Errorf("got containers %q for a volume that is not shared", got)
	}
}

func TestSpecVirtiofsResources(t *testing.T) {
	small, large := list("cpu", "10m", "memory", "1M"), list("cpu", "100m", "memory", "80M")
	for name, tc := range map[string]struct {
		vmi              []change
		config           func(*template.Input)
		requests, limits corev1.ResourceList
	}{
		"117: default":    {nil, nil, small, large},
		"117: guaranteed": {[]change{requests("cpu", "1", "memory", "1Gi"), limits("cpu", "1", "memory", "1Gi")}, nil, large, large},
		"117: dedicated": {[]change{guest("1Gi"), func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.CPU = &v1.CPU{Cores: 1, DedicatedCPUPlacement: true}
		}}, nil, large, large},
		"configured": {nil, func(in *template.Input) {
			in.Config.ContainerResources = []v1.SupportContainerResources{{Type: v1.VirtioFS, Resources: v1.ResourceRequirementsWithoutClaims{
				Requests: list("memory", "2M"), Limits: list("cpu", "1"),
			}}}
		}, list("cpu", "10m", "memory", "2M"), list("cpu", "1", "memory", "80M")},
	} {
		t.Run(name, func(t *testing.T) {
			in := presetInput(newVMI(append(tc.vmi, volume("v", configMapSource), filesystem("v"))...))
			if tc.config != nil {
				tc.config(&in)
			}
			pod, err := preset(t).Launcher(in)
			if err != nil {
				t.Fatal(err)
			}
			want := corev1.ResourceRequirements{Requests: tc.requests, Limits: tc.limits}
			if diff := cmp.Diff(want, container(t, pod, "virtiofs-v").Resources); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// injected returns a custom stage that mounts further volumes into compute, as webhooks do.
func injected(t *testing.T) *template.Renderer {
	t.Helper()
	r, err := preset(t).Before(template.StageVirtiofs, render.Stage{Name: "injected", Apply: func(d *render.Draft) error {
		token := corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}
		for name, source := range map[string]corev1.VolumeSource{
			"cloud-token": {Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{token}}},
			"bundle":      {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "ca"}}},
			"inner":       {Secret: &corev1.SecretVolumeSource{SecretName: "inner"}},
			"host":        {HostPath: &corev1.HostPathVolumeSource{Path: "/etc"}},
		} {
			d.Volume(corev1.Volume{Name: name, VolumeSource: source})
		}
		for _, m := range []corev1.VolumeMount{
			{Name: "cloud-token", MountPath: "/var/run/secrets/cloud"}, {Name: "bundle", MountPath: "/etc/ca/", SubPath: "certs"},
			{Name: "inner", MountPath: "/etc/ca/inner"}, {Name: "host", MountPath: "/host"},
			{Name: "bundle", MountPath: "/expanded", SubPathExpr: "$(POD_NAME)"},
		} {
			d.Container("compute").Mount(m)
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestSpecContainerPath is the last statement of section 6.3.
func TestSpecContainerPath(t *testing.T) {
	for name, tc := range map[string]struct {
		path   string
		mount  string
		asRoot bool
		fault  string
	}{
		"exact":                {"/var/run/secrets/cloud", "cloud-token:/virtiofs-data/v:ro", true, ""},
		"below":                {"/var/run/secrets/cloud/a/b", "cloud-token:/virtiofs-data/v:a/b:ro", true, ""},
		"longest prefix":       {"/etc/ca/inner/x", "inner:/virtiofs-data/v:x:ro", false, ""},
		"sub-path of a mount":  {"/etc/ca/root", "bundle:/virtiofs-data/v:certs/root:ro", false, ""},
		"part of a name":       {"/etc/ca/innermost", "bundle:/virtiofs-data/v:certs/innermost:ro", false, ""},
		"emptyDir":             {"/var/run/libvirt", "libvirt-runtime:/virtiofs-data/v:ro", false, ""},
		"nothing there":        {"/srv", "", false, "must be below a mount"},
		"the kubelet's token":  {"/var/run/secrets/kubernetes.io/serviceaccount", "", false, "must be below a mount"},
		"the node's files":     {"/host/passwd", "", false, "cannot be shared"},
		"path of the variable": {"/expanded", "", false, "subPathExpr"},
	} {
		t.Run(name, func(t *testing.T) {
			in := presetInput(newVMI(volume("v", containerPath(tc.path)), filesystem("v")), gates(containerPathGate))
			pod, err := injected(t).Launcher(in)
			if tc.fault != "" {
				wantError(t, err, "spec.volumes[0].containerPath.path", render.ErrInvalid)
				if !strings.Contains(err.Error(), tc.fault) {
					t.Errorf("got %v, want it to say %q", err, tc.fault)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			c := container(t, pod, "virtiofs-v")
			want := []string{"virtiofs-containers:/var/run/kubevirt/virtiofs-containers", tc.mount}
			if diff := cmp.Diff(want, mountsOf(c)); diff != "" {
				t.Error(diff)
			}
			if !slices.Contains(c.Args, "--shared-dir=/virtiofs-data/v") || slices.Contains(c.Args, "--translate-uid=host:107:0:1") != tc.asRoot {
				t.Errorf("arguments %q", c.Args)
			}
			if c.ImagePullPolicy != corev1.PullIfNotPresent {
				t.Errorf("pull policy %s", c.ImagePullPolicy)
			}
			if _, ok := podVolumes(pod)["v"]; ok {
				t.Error("has a volume of its own")
			}
		})
	}
}

func TestContainerPath_GateDisabled(t *testing.T) {
	vmi := newVMI(volume("v", containerPath("/var/run/libvirt")), filesystem("v"))
	_, err := preset(t).Launcher(presetInput(vmi))
	wantError(t, err, "spec.volumes[0].containerPath", render.ErrUnsupported)
	if !strings.Contains(err.Error(), containerPathGate) {
		t.Errorf("%v does not name the gate", err)
	}
	pod := presetLauncher(t, vmi, gates(containerPathGate))
	if got := containerNames(pod.Spec.Containers); !slices.Equal(got, []string{"compute", "virtiofs-v"}) {
		t.Errorf("containers %q", got)
	}
}

func TestFilesystems_Invalid(t *testing.T) {
	block := claim("c", corev1.PersistentVolumeBlock, corev1.ReadWriteMany)
	for name, tc := range map[string]struct {
		vmi   []change
		field string
	}{
		"no volume":      {[]change{filesystem("v")}, "spec.domain.devices.filesystems[0].name"},
		"shared twice":   {[]change{volume("v", secretSource), filesystem("v"), filesystem("v")}, "spec.domain.devices.filesystems[1].name"},
		"nothing shared": {[]change{volume("v", image("i")), filesystem("v")}, "spec.domain.devices.filesystems[0].name"},
		"no driver": {[]change{volume("v", secretSource), func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Filesystems = []v1.Filesystem{{Name: "v"}}
		}}, "spec.domain.devices.filesystems[0].virtiofs"},
		"plugged in": {[]change{volume("v", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "c", Hotpluggable: true}}), filesystem("v")},
			"spec.domain.devices.filesystems[0].name"},
		"hides the binary":   {[]change{volume("usr", pvc("c")), filesystem("usr")}, "spec.domain.devices.filesystems[0].name"},
		"block device":       {[]change{volume("v", pvc("c")), filesystem("v")}, "spec.volumes[0].persistentVolumeClaim.claimName"},
		"long name":          {[]change{volume(strings.Repeat("v", 55), secretSource), filesystem(strings.Repeat("v", 55))}, "spec.domain.devices.filesystems[0].name"},
		"relative path":      {[]change{volume("v", containerPath("a")), filesystem("v")}, "spec.volumes[0].containerPath.path"},
		"climbing path":      {[]change{volume("v", containerPath("/a/../b")), filesystem("v")}, "spec.volumes[0].containerPath.path"},
		"path of nothing":    {[]change{volume("v", containerPath("")), filesystem("v")}, "spec.volumes[0].containerPath.path"},
		"path nobody shares": {[]change{volume("v", containerPath("/var/run/libvirt"))}, "spec.volumes[0].containerPath"},
		"writable path": {[]change{volume("v", v1.VolumeSource{ContainerPath: &v1.ContainerPathVolumeSource{
			Path: "/var/run/libvirt", ReadOnly: new(bool),
		}}), filesystem("v")}, "spec.volumes[0].containerPath.readOnly"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := preset(t).Launcher(presetInput(newVMI(tc.vmi...), block, gates(containerPathGate)))
			wantError(t, err, tc.field, render.ErrInvalid)
		})
	}
	if _, err := preset(t).Launcher(presetInput(newVMI(volume(strings.Repeat("v", 54), secretSource), filesystem(strings.Repeat("v", 54))))); err != nil {
		t.Errorf("the longest name is refused: %v", err)
	}
}
