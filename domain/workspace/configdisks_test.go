// SPDX-License-Identifier: Apache-2.0

package workspace_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

// objects are ConfigMaps and Secrets in memory: cm/NAME or secret/NAME, then key.
type objects map[string]map[string]string

func (o objects) read(name string) (map[string][]byte, error) {
	data, found := o[name]
	if !found {
		return nil, fs.ErrNotExist
	}
	out := map[string][]byte{}
	for k, v := range data {
		out[k] = []byte(v)
	}
	return out, nil
}

func (o objects) ConfigMap(_ context.Context, ns, name string) (map[string][]byte, error) {
	return o.read("cm/" + ns + "/" + name)
}

func (o objects) Secret(_ context.Context, ns, name string) (map[string][]byte, error) {
	return o.read("secret/" + ns + "/" + name)
}

// disc returns the label of an ISO 9660 disk and its files by path.
func disc(t *testing.T, path string) (string, map[string]string) {
	t.Helper()
	disk, err := file.OpenFromPath(path, true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = disk.Close() }()
	iso, err := iso9660.Read(disk, 0, 0, 2048)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	collect(t, iso, ".", files)
	return strings.TrimRight(iso.Label(), " "), files
}

func collect(t *testing.T, iso *iso9660.FileSystem, dir string, files map[string]string) {
	t.Helper()
	entries, err := iso.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		if e.IsDir() {
			collect(t, iso, name, files)
			continue
		}
		b, err := iso.ReadFile(name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		files[name] = string(b)
	}
}

func volumeOf(source v1.VolumeSource) v1.Volume { return v1.Volume{Name: "conf", VolumeSource: source} }

func configMapVolume(c v1.ConfigMapVolumeSource) v1.Volume {
	c.Name = "c"
	return volumeOf(v1.VolumeSource{ConfigMap: &c})
}

func sysprep(s v1.SysprepSource) v1.Volume { return volumeOf(v1.VolumeSource{Sysprep: &s}) }

func downward(label string, fields ...corev1.DownwardAPIVolumeFile) v1.Volume {
	return volumeOf(v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Fields: fields, VolumeLabel: label}})
}

func fieldAt(path, field string) corev1.DownwardAPIVolumeFile {
	return corev1.DownwardAPIVolumeFile{Path: path, FieldRef: &corev1.ObjectFieldSelector{FieldPath: field}}
}

func ref(name string) *corev1.LocalObjectReference { return &corev1.LocalObjectReference{Name: name} }

func yes() *bool {
	b := true
	return &b
}

func TestConfigDisks_Content(t *testing.T) {
	store := objects{
		"cm/ns/c":       {"colour": "blue", "Colour": "green", strings.Repeat("l", 64): "long", "empty": ""},
		"secret/ns/s":   {"key": "\x00\xff"},
		"secret/ns/win": {"Autounattend.xml": "<unattend/>", "extra.cmd": "x"},
		"cm/ns/win":     {"unattend.xml": "<unattend/>"},
		"secret/other/": {"never": "seen"},
	}
	for name, tt := range map[string]struct {
		volume v1.Volume
		label  string
		files  map[string]string
	}{
		"config map": {configMapVolume(v1.ConfigMapVolumeSource{}), "cfgdata",
			map[string]string{"colour": "blue", "Colour": "green", strings.Repeat("l", 64): "long", "empty": ""}},
		"config map with a label": {configMapVolume(v1.ConfigMapVolumeSource{VolumeLabel: "OEMDRV"}), "OEMDRV",
			map[string]string{"colour": "blue", "Colour": "green", strings.Repeat("l", 64): "long", "empty": ""}},
		"secret": {volumeOf(v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}), "cfgdata", map[string]string{"key": "\x00\xff"}},
		"secret that need not be there": {volumeOf(v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "none", Optional: yes(), VolumeLabel: "x y"}}),
			"x y", map[string]string{}},
		"answers of a secret": {sysprep(v1.SysprepSource{Secret: ref("win")}), "unattendCD",
			map[string]string{"Autounattend.xml": "<unattend/>", "extra.cmd": "x"}},
		"answers of a config map": {sysprep(v1.SysprepSource{ConfigMap: ref("win")}), "unattendCD", map[string]string{"unattend.xml": "<unattend/>"}},
		"fields of the guest": {
			downward("ABOUT", fieldAt("labels", "metadata.labels"), fieldAt("sub/dir/one", "metadata.labels['app']"),
				fieldAt("sub/note", "metadata.annotations['none']"), fieldAt("notes", "metadata.annotations"),
				fieldAt("name", "metadata.name"), fieldAt("ns", "metadata.namespace"), fieldAt("uid", "metadata.uid")), "ABOUT",
			map[string]string{
				"labels": "app=\"a\\\"b\"\nzone=\"z\"", "sub/dir/one": `a"b`, "sub/note": "", "notes": `x="line\nbreak"`,
				"name": "guest", "ns": "ns", "uid": "uid-1",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkspace(t)
			w.Objects = store
			vmi := guest("uid-1", tt.volume)
			vmi.Labels, vmi.Annotations = map[string]string{"zone": "z", "app": `a"b`}, map[string]string{"x": "line\nbreak"}
			d := prepare(t, w, vmi).Disks["conf"]
			label, files := disc(t, d.Path)
			if label != tt.label {
				t.Errorf("label %q, want %q", label, tt.label)
			}
			if diff := cmp.Diff(tt.files, files); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			// Later changes of the objects are for the next VMI.
			w.Objects = objects{}
			if again := prepare(t, w, vmi).Disks["conf"]; !cmp.Equal(d, again) {
				t.Errorf("then %+v", again)
			}
		})
	}
}

func TestConfigDisks_Invalid(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	store := objects{
		"cm/ns/c": {"../up": "x"}, "cm/ns/noanswer": {"other.xml": ""}, "secret/ns/s": {"key": ""},
		"secret/ns/long": {strings.Repeat("k", 101): ""},
		"secret/ns/big":  {"a": big, "b": big, "c": big, "d": big, "e": "x"},
	}
	secret := func(name, label string) v1.Volume {
		return volumeOf(v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name, VolumeLabel: label}})
	}
	noCloud := func(c v1.CloudInitNoCloudSource) v1.Volume { return volumeOf(v1.VolumeSource{CloudInitNoCloud: &c}) }
	resource := corev1.DownwardAPIVolumeFile{Path: "memory", ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "requests.memory"}}
	for name, tt := range map[string]struct {
		volume v1.Volume
		words  []string
	}{
		"key that is a path":   {configMapVolume(v1.ConfigMapVolumeSource{}), []string{"configMap.name", "../up"}},
		"long key":             {secret("long", ""), []string{"secret", "100 characters"}},
		"no secret":            {secret("none", ""), []string{"secret.secretName", "none", "create it"}},
		"too much":             {secret("big", ""), []string{"secret", "4194304 bytes"}},
		"long label":           {secret("s", strings.Repeat("l", 33)), []string{"secret.volumeLabel", "32"}},
		"label with a newline": {secret("s", "a\nb"), []string{"secret.volumeLabel"}},
		"no answers":           {sysprep(v1.SysprepSource{ConfigMap: ref("noanswer")}), []string{"sysprep.configMap.name", "autounattend.xml"}},
		"answers of nobody":    {sysprep(v1.SysprepSource{}), []string{"sysprep", "Required value: secret or configMap"}},
		"no answer secret":     {sysprep(v1.SysprepSource{Secret: ref("none")}), []string{"sysprep.secret.name"}},
		"resources":            {downward("", resource), []string{"downwardAPI.fields[0].resourceFieldRef", "use fieldRef"}},
		"unknown field":        {downward("", fieldAt("x", "status.podIP")), []string{"downwardAPI.fields[0].fieldRef.fieldPath", "status.podIP"}},
		"path upwards":         {downward("", fieldAt("../x", "metadata.name")), []string{"downwardAPI.fields[0].path", "../x"}},
		"absolute path":        {downward("", fieldAt("/x", "metadata.name")), []string{"downwardAPI.fields[0].path"}},
		"no path":              {downward("", fieldAt("", "metadata.name")), []string{"downwardAPI.fields[0].path"}},
		"user data of nobody":  {noCloud(v1.CloudInitNoCloudSource{UserDataSecretRef: ref("none")}), []string{"cloudInitNoCloud.secretRef", "none"}},
		"user data elsewhere":  {noCloud(v1.CloudInitNoCloudSource{UserDataSecretRef: ref("s")}), []string{"cloudInitNoCloud.secretRef", "userdata or userData"}},
		"network data elsewhere": {volumeOf(v1.VolumeSource{CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{NetworkDataSecretRef: ref("s")}}),
			[]string{"cloudInitConfigDrive.networkDataSecretRef", "networkdata"}},
		"token": {volumeOf(v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: "sa"}}),
			[]string{"serviceAccount", "kubernetes.io/service-account-token"}},
		"metrics of the host": {volumeOf(v1.VolumeSource{DownwardMetrics: &v1.DownwardMetricsVolumeSource{}}), []string{"downwardMetrics"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkspace(t)
			w.Objects = store
			vmi := guest("uid-1", tt.volume)
			vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "conf"}}
			f, err := w.Prepare(t.Context(), vmi, kvmHost)
			domainfixture.Says(t, err, append(tt.words, "VirtualMachineInstance ns/guest", "spec.volumes[0].")...)
			var of *convert.Error
			if !errors.As(err, &of) || of.Remedy == "" {
				t.Errorf("the error has no remedy: %v", err)
			}
			if left, err := os.ReadDir(f.Dir); err != nil && !os.IsNotExist(err) || len(left) != 0 {
				t.Errorf("files %v, %v", left, err)
			}
		})
	}
}

func TestConfigDisks_NoAccessToObjects(t *testing.T) {
	_, err := newWorkspace(t).Prepare(t.Context(), guest("uid-1", configMapVolume(v1.ConfigMapVolumeSource{Optional: yes()})), kvmHost)
	domainfixture.Says(t, err, "ns/guest", "configMap.name", "configure")
}

// forbidding lets the agent read nothing.
type forbidding struct{}

func (forbidding) ConfigMap(context.Context, string, string) (map[string][]byte, error) {
	return nil, fmt.Errorf("request 17: %w", fs.ErrPermission)
}

func (forbidding) Secret(context.Context, string, string) (map[string][]byte, error) {
	return nil, fmt.Errorf("request 18: %w", fs.ErrPermission)
}

// TestWorkspace_SecretThatAgentsMayNotRead: the error has a remedy, with the same text each time,
// even if the Secret is optional.
func TestWorkspace_SecretThatAgentsMayNotRead(t *testing.T) {
	w := newWorkspace(t)
	w.Objects = forbidding{}
	for name, source := range map[string]v1.VolumeSource{
		"cloud-init":      {CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserDataSecretRef: &corev1.LocalObjectReference{Name: "s"}}},
		"a disk":          {Secret: &v1.SecretVolumeSource{SecretName: "s"}},
		"an optional one": {Secret: &v1.SecretVolumeSource{SecretName: "s", Optional: yes()}},
		"answers":         {Sysprep: &v1.SysprepSource{Secret: &corev1.LocalObjectReference{Name: "s"}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.Prepare(t.Context(), guest("uid-1", volumeOf(source)), kvmHost)
			domainfixture.Says(t, err, "ns/guest", `agents may not read Secret "s"`, "by a Role in namespace ns")
			if !errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "request") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestVolumes_WithoutDisk(t *testing.T) {
	vmi := guest("uid-1", configMapVolume(v1.ConfigMapVolumeSource{}),
		v1.Volume{Name: "token", VolumeSource: v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{}}},
		v1.Volume{Name: "later", VolumeSource: claimed("c").VolumeSource})
	vmi.Spec.Domain.Devices.Filesystems = []v1.Filesystem{{Name: "conf"}}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "later"}}
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "later", Phase: v1.VolumeBound, HotplugVolume: &v1.HotplugVolumeStatus{}}}
	if f := prepare(t, newWorkspace(t), vmi); len(f.Disks) != 0 {
		t.Errorf("disks %+v", f.Disks)
	}
}

func TestConfigDisks_ManyFiles(t *testing.T) {
	w, want := newWorkspace(t), map[string]string{}
	for i := range 400 {
		want[fmt.Sprintf("%s-%04d", strings.Repeat("k", 95), i)] = fmt.Sprint(i)
	}
	w.Objects = objects{"cm/ns/c": want}
	_, files := disc(t, prepare(t, w, guest("uid-1", configMapVolume(v1.ConfigMapVolumeSource{}))).Disks["conf"].Path)
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("(-want +got):\n%.1000s", diff)
	}
}
