// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"encoding/base64"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"
)

// maxInline is the maximum size of user or network data in a VMI, in bytes after decoding.
const maxInline = 2048

func checkCloudInit(k *checker) {
	for i := range k.spec.Volumes {
		if c := k.spec.Volumes[i].CloudInitNoCloud; c != nil {
			k.seeds(atVolumes.Index(i).Child("cloudInitNoCloud"), (*seeds)(c))
		}
		if c := k.spec.Volumes[i].CloudInitConfigDrive; c != nil {
			k.seeds(atVolumes.Index(i).Child("cloudInitConfigDrive"), (*seeds)(c))
		}
	}
}

// seeds are the data of a cloud-init volume; both kinds have the same fields.
type seeds v1.CloudInitNoCloudSource

func (k *checker) seeds(at *field.Path, s *seeds) {
	user := k.seed(at, s.UserDataSecretRef, [3]string{"secretRef", "userData", "userDataBase64"}, s.UserData, s.UserDataBase64)
	network := k.seed(at, s.NetworkDataSecretRef, [3]string{"networkDataSecretRef", "networkData", "networkDataBase64"}, s.NetworkData, s.NetworkDataBase64)
	if !user && !network {
		k.required(at, "must specify data", "set userData, or a Secret in secretRef")
	}
}

// seed checks one kind of data, which is in a Secret, plain or encoded text.
func (k *checker) seed(at *field.Path, secret *corev1.LocalObjectReference, fields [3]string, plain, encoded string) bool {
	given := chosen(alternative{fields[0], secret != nil}, alternative{fields[1], plain != ""}, alternative{fields[2], encoded != ""})
	if len(given) > 1 {
		k.only(at, given, "")
	}
	if secret != nil {
		k.named(at.Child(fields[0], "name"), secret.Name)
	}
	remedy := "move it to a Secret, and set its name in " + fields[0]
	if len(plain) > maxInline {
		k.invalid(at.Child(fields[1]), fmt.Sprintf("%d bytes", len(plain)), fmt.Sprintf("exceeds the maximum of %d", maxInline), remedy)
	}
	text, err := base64.StdEncoding.DecodeString(encoded)
	switch {
	case err != nil:
		k.invalid(at.Child(fields[2]), brief(encoded), "must be base64", "encode it, or use "+fields[1])
	case len(text) > maxInline:
		k.invalid(at.Child(fields[2]), fmt.Sprintf("%d bytes", len(text)), fmt.Sprintf("exceeds the maximum of %d", maxInline), remedy)
	}
	return len(given) > 0
}

// brief returns the beginning of a long text.
func brief(s string) string {
	const most = 32
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// maxTag is the maximum length of the mount tag of a file system.
const maxTag = 36

func checkFilesystems(k *checker) {
	volumes := map[string]*v1.Volume{}
	for i := range k.spec.Volumes {
		volumes[k.spec.Volumes[i].Name] = &k.spec.Volumes[i]
	}
	taken, disks := names{}, map[string]bool{}
	for i := range k.devices.Disks {
		disks[k.devices.Disks[i].Name] = true
	}
	for i := range k.devices.Filesystems {
		fs, at := &k.devices.Filesystems[i], atDevices.Child("filesystems").Index(i)
		if fs.Virtiofs == nil {
			k.required(at.Child("virtiofs"), "must be set", "set it to {}")
		}
		if len(fs.Name) > maxTag {
			k.invalid(at.Child("name"), fs.Name, fmt.Sprintf("exceeds the maximum of %d characters", maxTag), "use a shorter name")
		}
		taken.take(k, at.Child("name"), fs.Name)
		if disks[fs.Name] {
			k.invalid(at.Child("name"), fs.Name, "is already used by a disk", "keep one of them")
		}
		if v := volumes[fs.Name]; v == nil {
			k.invalid(at.Child("name"), fs.Name, "volume is not defined", "add it to spec.volumes, or remove the file system")
		} else {
			k.shared(at.Child("name"), v)
		}
	}
}

// shared reports volumes without files to share.
func (k *checker) shared(at *field.Path, v *v1.Volume) {
	claimed := v.PersistentVolumeClaim != nil || v.DataVolume != nil
	config := v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.ServiceAccount != nil
	switch {
	case isHotpluggable(v):
		k.invalid(at, v.Name, "a hotplugged volume cannot be shared", "use a volume that is not hotpluggable")
	case !claimed && !config && v.ContainerPath == nil:
		k.invalid(at, v.Name, "volume cannot be shared", "use a persistentVolumeClaim, dataVolume, configMap, secret, downwardAPI, serviceAccount or containerPath volume")
	}
}

// isHotpluggable reports whether a volume supports hotplug.
func isHotpluggable(v *v1.Volume) bool {
	return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.Hotpluggable || v.DataVolume != nil && v.DataVolume.Hotpluggable || v.MemoryDump != nil
}
