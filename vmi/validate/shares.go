// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"encoding/base64"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmidefaults"
)

// maxInline is the maximum size of user or network data in a VMI, in bytes after decoding.
const maxInline = 2048

// seeds are the data of a cloud-init volume; both kinds have the same fields.
type seeds v1.CloudInitNoCloudSource

// eachSeed applies a check to all data for cloud-init.
func (k *checker) eachSeed(check func(k *checker, at *fieldPath, s *seeds)) {
	for i := range k.spec.Volumes {
		if c := k.spec.Volumes[i].CloudInitNoCloud; c != nil {
			check(k, atVolumes.index(i).child("cloudInitNoCloud"), (*seeds)(c))
		}
		if c := k.spec.Volumes[i].CloudInitConfigDrive; c != nil {
			check(k, atVolumes.index(i).child("cloudInitConfigDrive"), (*seeds)(c))
		}
	}
}

func checkSeedSecrets(k *checker) { k.eachSeed((*checker).seedSecrets) }

func (k *checker) seedSecrets(at *fieldPath, s *seeds) {
	if s.UserDataSecretRef != nil {
		k.named(at.child("secretRef.name"), s.UserDataSecretRef.Name)
	}
	if s.NetworkDataSecretRef != nil {
		k.named(at.child("networkDataSecretRef.name"), s.NetworkDataSecretRef.Name)
	}
}

func checkCloudInit(k *checker) { k.eachSeed((*checker).seeds) }

func (k *checker) seeds(at *fieldPath, s *seeds) {
	user := k.seed(at, s.UserDataSecretRef, [3]string{"secretRef", "userData", "userDataBase64"}, s.UserData, s.UserDataBase64)
	network := k.seed(at, s.NetworkDataSecretRef, [3]string{"networkDataSecretRef", "networkData", "networkDataBase64"}, s.NetworkData, s.NetworkDataBase64)
	if !user && !network {
		k.required(at, "must specify data", "set userData, or a Secret in secretRef")
	}
}

// seed checks one kind of data, which is in a Secret, plain or encoded text.
func (k *checker) seed(at *fieldPath, secret *corev1.LocalObjectReference, fields [3]string, plain, encoded string) bool {
	given := chosen(alternative{fields[0], secret != nil}, alternative{fields[1], plain != ""}, alternative{fields[2], encoded != ""})
	if len(given) > 1 {
		k.only(at, given, "")
	}
	remedy := "move it to a Secret, and set its name in " + fields[0]
	if len(plain) > maxInline {
		k.invalid(at.child(fields[1]), fmt.Sprintf("%d bytes", len(plain)), fmt.Sprintf("exceeds the maximum of %d", maxInline), remedy)
	}
	text, err := base64.StdEncoding.DecodeString(encoded)
	switch {
	case err != nil:
		k.invalid(at.child(fields[2]), beginning(encoded), "must be base64", "encode it, or use "+fields[1])
	case len(text) > maxInline:
		k.invalid(at.child(fields[2]), fmt.Sprintf("%d bytes", len(text)), fmt.Sprintf("exceeds the maximum of %d", maxInline), remedy)
	}
	return len(given) > 0
}

// beginning returns the beginning of a long text.
func beginning(s string) string {
	const most = 32
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// maxTag is the maximum length of the mount tag of a file system.
const maxTag = 36

func checkFilesystems(k *checker) {
	if len(k.devices.Filesystems) == 0 {
		return
	}
	volumes, plugged, taken := specVolumesByName(k.spec), pluggedVolumes(k.vmi), names{}
	for i := range k.devices.Filesystems {
		fs, at := &k.devices.Filesystems[i], atDevices.child("filesystems").index(i)
		if fs.Virtiofs == nil {
			k.required(at.child("virtiofs"), "must be set", "set it to {}")
		}
		taken.take(k, at.child("name"), fs.Name)
		if v := volumes[fs.Name]; v == nil {
			k.invalid(at.child("name"), fs.Name, "volume is not defined", "add it to spec.volumes, or remove the file system")
		} else {
			k.shared(at.child("name"), v, plugged[v.Name])
		}
	}
}

// pluggedVolumes returns the names of the hotplugged volumes according to the status.
func pluggedVolumes(vmi *v1.VirtualMachineInstance) map[string]bool {
	names := map[string]bool{}
	for i := range vmi.Status.VolumeStatus {
		if s := &vmi.Status.VolumeStatus[i]; s.HotplugVolume != nil {
			names[s.Name] = true
		}
	}
	return names
}

// checkFilesystemTags checks names of file systems, which become mount tags and names of devices.
func checkFilesystemTags(k *checker) {
	disks := map[string]bool{}
	for i := range k.devices.Disks {
		disks[k.devices.Disks[i].Name] = true
	}
	for i := range k.devices.Filesystems {
		name, at := k.devices.Filesystems[i].Name, atDevices.child("filesystems").index(i).child("name")
		if len(name) > maxTag {
			k.invalid(at, name, fmt.Sprintf("exceeds the maximum of %d characters", maxTag), "use a shorter name")
		}
		if disks[name] {
			k.invalid(at, name, "is already used by a disk", "keep one of them")
		}
	}
}

// shared reports volumes without files to share.
func (k *checker) shared(at *fieldPath, v *v1.Volume, plugged bool) {
	claimed := v.PersistentVolumeClaim != nil || v.DataVolume != nil
	config := v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.ServiceAccount != nil
	switch {
	case plugged || vmidefaults.Hotpluggable(v):
		k.invalid(at, v.Name, "a hotplugged volume cannot be shared", "use a volume that is not hotpluggable")
	case !claimed && !config && v.ContainerPath == nil:
		k.invalid(at, v.Name, "volume cannot be shared", "use a persistentVolumeClaim, dataVolume, configMap, secret, downwardAPI, serviceAccount or containerPath volume")
	}
}
