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

func objectRef(name string) *corev1.LocalObjectReference {
	return &corev1.LocalObjectReference{Name: name}
}

func claimVolume(name string, readOnly bool) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name, ReadOnly: readOnly}}
}

func hostFolder(path string, kind corev1.HostPathType) corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}
}

// inPod are the parts of a Pod that belong to a volume of the VMI.
type inPod struct {
	volumes map[string]corev1.VolumeSource
	mounts  []string
	devices []string
	shared  string // SHARED_FILESYSTEM_PATHS
}

// TestSpecVolumes is table 6.2, except for images (see TestSpecImageVolumes).
func TestSpecVolumes(t *testing.T) {
	const private = "/var/run/kubevirt-private"
	readOnly := pvc("rwo")
	readOnly.PersistentVolumeClaim.ReadOnly = true
	cloudInit := func(user, network *corev1.LocalObjectReference) v1.VolumeSource {
		return v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserDataSecretRef: user, NetworkDataSecretRef: network}}
	}
	secretVolume := func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}
	}
	udata := []string{
		"v-udata:" + private + "/secret/v/userdata:userdata:ro", "v-udata:" + private + "/secret/v/userData:userData:ro",
	}
	ndata := []string{
		"v-ndata:" + private + "/secret/v/networkdata:networkdata:ro", "v-ndata:" + private + "/secret/v/networkData:networkData:ro",
	}
	disks := []string{"v:" + private + "/vmi-disks/v"}
	plugged := func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "v", HotplugVolume: &v1.HotplugVolumeStatus{}}}
	}
	permanent := func(vmi *v1.VirtualMachineInstance) { vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "v"}} }
	for name, tc := range map[string]struct {
		source v1.VolumeSource
		vmi    []change
		want   inPod
	}{
		"107: user data": {cloudInit(objectRef("some-secret"), nil), nil,
			inPod{volumes: map[string]corev1.VolumeSource{"v-udata": secretVolume("some-secret")}, mounts: udata}},
		"107: network data": {cloudInit(nil, objectRef("net")), nil,
			inPod{volumes: map[string]corev1.VolumeSource{"v-ndata": secretVolume("net")}, mounts: ndata}},
		"107: config drive with both": {v1.VolumeSource{CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{
			UserDataSecretRef: objectRef("u"), NetworkDataSecretRef: objectRef("n"),
		}}, nil, inPod{volumes: map[string]corev1.VolumeSource{"v-udata": secretVolume("u"), "v-ndata": secretVolume("n")},
			mounts: slices.Concat(udata, ndata)}},
		"108: inline":              {v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: "x", NetworkData: "y"}}, nil, inPod{}},
		"108: inline config drive": {v1.VolumeSource{CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{UserData: "x"}}, nil, inPod{}},
		"claim":                    {pvc("rwo"), nil, inPod{volumes: map[string]corev1.VolumeSource{"v": claimVolume("rwo", false)}, mounts: disks}},
		"claim, read only":         {readOnly, nil, inPod{volumes: map[string]corev1.VolumeSource{"v": claimVolume("rwo", true)}, mounts: disks}},
		"shared claim": {pvc("rwx"), nil, inPod{volumes: map[string]corev1.VolumeSource{"v": claimVolume("rwx", false)}, mounts: disks,
			shared: private + "/vmi-disks/v"}},
		"claim for many readers": {pvc("rox"), nil, inPod{volumes: map[string]corev1.VolumeSource{"v": claimVolume("rox", false)}, mounts: disks}},
		"block claim": {pvc("block"), nil, inPod{volumes: map[string]corev1.VolumeSource{"v": claimVolume("block", false)},
			devices: []string{"v:/dev/v"}}},
		"data volume": {v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "rwx"}}, nil,
			inPod{volumes: map[string]corev1.VolumeSource{"v": claimVolume("rwx", false)}, mounts: disks, shared: private + "/vmi-disks/v"}},
		"block data volume": {v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "block"}}, nil,
			inPod{volumes: map[string]corev1.VolumeSource{"v": claimVolume("block", false)}, devices: []string{"v:/dev/v"}}},
		"ephemeral": {v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "rwx", ReadOnly: true},
		}}, nil, inPod{volumes: map[string]corev1.VolumeSource{"v": claimVolume("rwx", true)}, mounts: disks, shared: private + "/vmi-disks/v"}},
		"111: hotpluggable claim": {v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
			Hotpluggable: true, PersistentVolumeClaimVolumeSource: pvc("rwo").PersistentVolumeClaim.PersistentVolumeClaimVolumeSource,
		}}, nil, inPod{}},
		"111: hotpluggable data volume": {v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "rwx", Hotpluggable: true}}, nil, inPod{}},
		"111: plugged by status":        {pvc("rwx"), []change{plugged}, inPod{}},
		"111: permanent":                {pvc("rwo"), []change{permanent}, inPod{volumes: map[string]corev1.VolumeSource{"v": claimVolume("rwo", false)}, mounts: disks}},
		"memory dump": {v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{
			PersistentVolumeClaimVolumeSource: *pvc("rwo").PersistentVolumeClaim,
		}}, nil, inPod{}},
		"112: empty disk": {v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: *quantity("1Gi")}}, nil, inPod{}},
		"110: host disk that may be made": {hostDisk("/a/b/c", v1.HostDiskExistsOrCreate), nil, inPod{
			volumes: map[string]corev1.VolumeSource{"v": hostFolder("/a/b", corev1.HostPathDirectoryOrCreate)}, mounts: disks}},
		"110: host disk": {hostDisk("/a/b/c", v1.HostDiskExists), nil, inPod{
			volumes: map[string]corev1.VolumeSource{"v": hostFolder("/a/b", corev1.HostPathDirectory)}, mounts: disks}},
		"host disk of no type": {hostDisk("/a/b", ""), nil, inPod{
			volumes: map[string]corev1.VolumeSource{"v": hostFolder("/a", corev1.HostPathUnset)}, mounts: disks}},
		"109: configMap as a disk": {configMapSource, []change{disk("v")}, inPod{volumes: map[string]corev1.VolumeSource{
			"v": {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: *objectRef("cm")}},
		}, mounts: []string{"v:" + private + "/config-map/v:ro"}}},
		"configMap without a disk": {v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: *objectRef("cm"), Optional: new(true)}}, nil,
			inPod{volumes: map[string]corev1.VolumeSource{
				"v": {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: *objectRef("cm"), Optional: new(true)}},
			}}},
		"109: secret as a disk": {secretSource, []change{disk("v")}, inPod{volumes: map[string]corev1.VolumeSource{"v": secretVolume("s")},
			mounts: []string{"v:" + private + "/secret/v:ro"}}},
		"secret without a disk": {v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", Optional: new(false)}}, nil,
			inPod{volumes: map[string]corev1.VolumeSource{"v": {Secret: &corev1.SecretVolumeSource{SecretName: "s", Optional: new(false)}}}}},
		"Q17: secret of an ACPI table": {secretSource, []change{func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Firmware = &v1.Firmware{ACPI: &v1.ACPI{MsdmNameRef: "v"}}
		}}, inPod{volumes: map[string]corev1.VolumeSource{"v": secretVolume("s")}, mounts: []string{"v:" + private + "/secret/v:ro"}}},
		"109: downwardAPI as a disk": {downwardSource, []change{disk("v")}, inPod{volumes: map[string]corev1.VolumeSource{
			"v": {DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: downwardSource.DownwardAPI.Fields}},
		}, mounts: []string{"v:" + private + "/downwardapi/v:ro"}}},
		"service account": {accountSource, []change{disk("v")}, inPod{}},
		"downward metrics": {v1.VolumeSource{DownwardMetrics: &v1.DownwardMetricsVolumeSource{}}, nil, inPod{volumes: map[string]corev1.VolumeSource{
			"v": {EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: quantity("1Mi")}},
		}, mounts: []string{"v:" + private + "/downwardmetric-disk"}}},
		"109: sysprep secret": {v1.VolumeSource{Sysprep: &v1.SysprepSource{Secret: objectRef("s")}}, nil,
			inPod{volumes: map[string]corev1.VolumeSource{"v": secretVolume("s")}, mounts: []string{"v:" + private + "/sysprep/v:ro"}}},
		"109: sysprep configMap": {v1.VolumeSource{Sysprep: &v1.SysprepSource{ConfigMap: objectRef("cm")}}, nil, inPod{volumes: map[string]corev1.VolumeSource{
			"v": {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: *objectRef("cm")}},
		}, mounts: []string{"v:" + private + "/sysprep/v:ro"}}},
		"sysprep of both": {v1.VolumeSource{Sysprep: &v1.SysprepSource{ConfigMap: objectRef("cm"), Secret: objectRef("s")}}, nil,
			inPod{volumes: map[string]corev1.VolumeSource{"v": secretVolume("s")}, mounts: []string{"v:" + private + "/sysprep/v:ro"}}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := presetLauncher(t, newVMI(append([]change{volume("v", tc.source)}, tc.vmi...)...),
				claim("rwo", corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce), claim("rwx", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany),
				claim("rox", corev1.PersistentVolumeFilesystem, corev1.ReadOnlyMany), claim("block", corev1.PersistentVolumeBlock, corev1.ReadWriteMany))
			if diff := cmp.Diff(tc.want, leadsTo(t, pod), cmp.AllowUnexported(inPod{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// leadsTo collects the parts of a Pod named after volume v.
func leadsTo(t *testing.T, pod *corev1.Pod) (got inPod) {
	t.Helper()
	guests := func(name string) bool { return name == "v" || strings.HasPrefix(name, "v-") }
	for name, source := range podVolumes(pod) {
		if guests(name) {
			if got.volumes == nil {
				got.volumes = map[string]corev1.VolumeSource{}
			}
			got.volumes[name] = source
		}
	}
	compute := container(t, pod, "compute")
	for i, m := range mountsOf(compute) {
		if guests(compute.VolumeMounts[i].Name) {
			got.mounts = append(got.mounts, m)
		}
	}
	for _, d := range compute.VolumeDevices {
		got.devices = append(got.devices, d.Name+":"+d.DevicePath)
	}
	for _, e := range compute.Env {
		if e.Name == "SHARED_FILESYSTEM_PATHS" {
			got.shared = e.Value
		}
	}
	return got
}

func TestVolumes_BlockDeviceCollision(t *testing.T) {
	block := claim("c", corev1.PersistentVolumeBlock, corev1.ReadWriteMany)
	_, err := preset(t).Launcher(presetInput(newVMI(volume("kvm", pvc("c"))), block))
	wantError(t, err, "spec.volumes[0].name", render.ErrInvalid)
	presetLauncher(t, newVMI(volume("kvm", pvc("c"))), claim("c", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany))
}

// TestSpec89DownwardMetrics is case 89.
func TestSpec89DownwardMetrics(t *testing.T) {
	vmi := newVMI(volume("metrics", v1.VolumeSource{DownwardMetrics: &v1.DownwardMetricsVolumeSource{}}))
	pod := presetLauncher(t, vmi, gatesOff(noImageVolumes))
	if got := container(t, pod, "compute").VolumeMounts[6]; got.Name != "metrics" {
		t.Errorf("mount 6 is of %s", got.Name)
	}
	with, without := pod.Annotations["kubevirt.io/memory-overhead-bytes"], presetLauncher(t, newVMI()).Annotations["kubevirt.io/memory-overhead-bytes"]
	if with != "303038464" || without != "301989888" {
		t.Errorf("overhead %s with the volume and %s without, want 1Mi between them", with, without)
	}
}

func TestSpecUtilityVolumes_NotInLauncher(t *testing.T) {
	vmi := newVMI(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.UtilityVolumes = []v1.UtilityVolume{{
			Name: "v", PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
		}}
	})
	if diff := cmp.Diff(inPod{}, leadsTo(t, presetLauncher(t, vmi)), cmp.AllowUnexported(inPod{})); diff != "" {
		t.Error(diff)
	}
}

// TestSpecConsoleLog is case 120.
func TestSpecConsoleLog(t *testing.T) {
	for name, tc := range map[string]struct{ attach, log, want bool }{
		"120: TT": {true, true, true}, "120: TF": {true, false, false}, "120: FT": {false, true, false}, "120: FF": {false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := presetLauncher(t, newVMI(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Domain.Devices.AutoattachSerialConsole, vmi.Spec.Domain.Devices.LogSerialConsole = &tc.attach, &tc.log
			}), gatesOff(noImageVolumes))
			if got := slices.Contains(containerNames(pod.Spec.InitContainers), "guest-console-log"); got != tc.want {
				t.Errorf("there: %v, want %v", got, tc.want)
			}
		})
	}
}

// TestVolumes_Invalid has names, references and paths that would result in a Pod the API server rejects.
func TestVolumes_Invalid(t *testing.T) {
	long := func(n int) string { return strings.Repeat("v", n) }
	seeded := func(name, user, network string) change {
		return volume(name, v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{
			UserDataSecretRef: objectRef(user), NetworkDataSecretRef: objectRef(network),
		}})
	}
	downward := func(files ...corev1.DownwardAPIVolumeFile) change {
		return volume("v", v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Fields: files}})
	}
	label := &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}
	metrics := v1.VolumeSource{DownwardMetrics: &v1.DownwardMetricsVolumeSource{}}
	utility := func(name, claim string) change {
		return func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.UtilityVolumes = append(vmi.Spec.UtilityVolumes, v1.UtilityVolume{
				Name: name, PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			})
		}
	}
	off := gatesOff(noImageVolumes)
	on := func(*render.Input) {}
	for name, tc := range map[string]struct {
		vmi   []change
		gates func(*render.Input)
		field string // empty: it is rendered
	}{
		"image, longest name":          {[]change{volume(long(57), image("i"))}, on, ""},
		"image, long name":             {[]change{volume(long(58), image("i"))}, on, "spec.volumes[0].name"},
		"image, long name, no digest":  {[]change{volume(long(63), image("i")), annotate("kubevirt.io/image-volume-skip-digest-resolution", "true")}, on, ""},
		"copy, longest name":           {[]change{volume(long(52), image("i"))}, off, ""},
		"copy, long name":              {[]change{volume(long(53), image("i"))}, off, "spec.volumes[0].name"},
		"copy named like another's":    {[]change{volume("a", image("i")), volume("a-init", image("i"))}, off, "spec.volumes[1].name"},
		"image named like a copy's":    {[]change{volume("a", image("i")), volume("a-init", image("i"))}, on, ""},
		"copy named like the kernel's": {[]change{volume("kernel-boot-volume-init", image("i")), kernelBoot("i", "/k")}, off, "spec.domain.firmware.kernelBoot.container.image"},
		"seed, longest name":           {[]change{seeded(long(57), "u", "n")}, on, ""},
		"seed, long name":              {[]change{seeded(long(58), "u", "n")}, on, "spec.volumes[0].name"},
		"user data of nothing":         {[]change{seeded("v", "", "n")}, on, "spec.volumes[0].cloudInitNoCloud.secretRef.name"},
		"network data of nothing":      {[]change{seeded("v", "u", "")}, on, "spec.volumes[0].cloudInitNoCloud.networkDataSecretRef.name"},
		"configMap of nothing":         {[]change{volume("v", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}})}, on, "spec.volumes[0].configMap.name"},
		"secret of nothing":            {[]change{volume("v", v1.VolumeSource{Secret: &v1.SecretVolumeSource{}})}, on, "spec.volumes[0].secret.secretName"},
		"sysprep secret of nothing":    {[]change{volume("v", v1.VolumeSource{Sysprep: &v1.SysprepSource{Secret: objectRef("")}})}, on, "spec.volumes[0].sysprep.secret.name"},
		"sysprep configMap of nothing": {[]change{volume("v", v1.VolumeSource{Sysprep: &v1.SysprepSource{ConfigMap: objectRef("")}})}, on, "spec.volumes[0].sysprep.configMap.name"},
		"sysprep of nothing":           {[]change{volume("v", v1.VolumeSource{Sysprep: &v1.SysprepSource{}})}, on, "spec.volumes[0].sysprep"},
		"metrics twice":                {[]change{volume("a", metrics), volume("b", metrics)}, on, "spec.volumes[1]"},
		"downwardAPI, absolute path":   {[]change{downward(corev1.DownwardAPIVolumeFile{Path: "/x", FieldRef: label})}, on, "spec.volumes[0].downwardAPI.fields[0].path"},
		"downwardAPI, climbing path":   {[]change{downward(corev1.DownwardAPIVolumeFile{Path: "../x", FieldRef: label})}, on, "spec.volumes[0].downwardAPI.fields[0].path"},
		"downwardAPI, path twice":      {[]change{downward(corev1.DownwardAPIVolumeFile{Path: "x", FieldRef: label}, corev1.DownwardAPIVolumeFile{Path: "x", FieldRef: label})}, on, "spec.volumes[0].downwardAPI.fields[1].path"},
		"downwardAPI, nothing in it":   {[]change{downward(corev1.DownwardAPIVolumeFile{Path: "x"})}, on, "spec.volumes[0].downwardAPI.fields[0]"},
		"utility volume, name":         {[]change{utility("V_", "c")}, on, "spec.utilityVolumes[0].name"},
		"utility volume, name twice":   {[]change{volume("v", secretSource), utility("v", "c")}, on, "spec.utilityVolumes[0].name"},
		"utility volume of nothing":    {[]change{utility("v", "")}, on, "spec.utilityVolumes[0].claimName"},
		"credential of nothing":        {[]change{credential("", "")}, on, "spec.accessCredentials[0]"},
		"credential without a secret": {[]change{func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.AccessCredentials = []v1.AccessCredential{{UserPassword: &v1.UserPasswordAccessCredential{}}}
		}}, on, "spec.accessCredentials[0].userPassword.source.secret"},
		"credential, longest secret":    {[]change{credential(long(51), "")}, on, ""},
		"credential, long secret":       {[]change{credential(long(52), "")}, on, "spec.accessCredentials[0].sshPublicKey.source.secret.secretName"},
		"volume named as a state claim": {[]change{volume("vm-state", secretSource), persistentTPM}, stateOf("s", "persistent-state-for=testvmi"), "spec.volumes[vm-state]"},
		"volume named as the sockets'":  {[]change{volume("virtiofs-containers", secretSource), filesystem("virtiofs-containers")}, on, "spec.volumes[virtiofs-containers]"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := preset(t).Launcher(presetInput(newVMI(tc.vmi...), tc.gates))
			if tc.field != "" {
				wantError(t, err, tc.field, render.ErrInvalid)
			} else if err != nil {
				t.Errorf("is refused: %v", err)
			}
		})
	}
}
