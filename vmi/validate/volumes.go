// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
)

var volumeRules = []Rule{
	{"volume-names", checkVolumeNames, true},
	{"volume-names", checkLauncherVolumes, false}, // the renderer knows the volumes of each Pod
	{"volume-sources", checkVolumeSources, true},
	{"volume-references", checkVolumeReferences, true},
	{"volume-references", checkMemoryDumps, false},
	{"images", checkImages, true},
	{"empty-disks", checkEmptyDisks, true},
	{"host-disks", checkHostDisks, true},
	{"cloud-init", checkSeedSecrets, true},
	{"cloud-init", checkCloudInit, false},
	{"downward-api", checkDownwardAPI, true},
	{"container-paths", checkContainerPaths, true},
	{"single-volumes", checkSingleMetrics, true},
	{"single-volumes", checkSingleVolumes, false},
	{"utility-volumes", checkUtilityVolumes, true},
	{"utility-volumes", checkUtilityTypes, false},
	{"filesystems", checkFilesystems, true},
	{"filesystems", checkFilesystemTags, false},
}

// launcherVolumes are the names of the launcher's own volumes.
var launcherVolumes = []string{
	"private", "public", "sockets", "virt-bin-share-dir", "libvirt-runtime", "ephemeral-disks", "container-disks", "hotplug-disks",
	"launcher-volume", "kernel-boot-volume", "hugepages", "hugetblfs-dir", "hook-sidecar-sockets", "kubevirt-plugin-sockets",
	"network-info-annotation",
}

func checkVolumeNames(k *checker) {
	taken := names{}
	for i := range k.spec.Volumes {
		at, name := atVolumes.index(i).child("name"), k.spec.Volumes[i].Name
		k.text(at, name, validation.IsDNS1123Label, useDNSLabel)
		taken.take(k, at, name)
	}
}

func checkLauncherVolumes(k *checker) {
	for i := range k.spec.Volumes {
		if name := k.spec.Volumes[i].Name; slices.Contains(launcherVolumes, name) {
			k.invalid(atVolumes.index(i).child("name"), name, "is reserved for the launcher", "use another name")
		}
	}
}

func sources(s *v1.VolumeSource) []string {
	return chosen(
		alternative{"hostDisk", s.HostDisk != nil}, alternative{"persistentVolumeClaim", s.PersistentVolumeClaim != nil},
		alternative{"cloudInitNoCloud", s.CloudInitNoCloud != nil}, alternative{"cloudInitConfigDrive", s.CloudInitConfigDrive != nil},
		alternative{"sysprep", s.Sysprep != nil}, alternative{"containerDisk", s.ContainerDisk != nil},
		alternative{"ephemeral", s.Ephemeral != nil}, alternative{"emptyDisk", s.EmptyDisk != nil},
		alternative{"dataVolume", s.DataVolume != nil}, alternative{"configMap", s.ConfigMap != nil},
		alternative{"secret", s.Secret != nil}, alternative{"downwardAPI", s.DownwardAPI != nil},
		alternative{"serviceAccount", s.ServiceAccount != nil}, alternative{"downwardMetrics", s.DownwardMetrics != nil},
		alternative{"memoryDump", s.MemoryDump != nil}, alternative{"containerPath", s.ContainerPath != nil},
	)
}

func checkVolumeSources(k *checker) {
	for i := range k.spec.Volumes {
		k.only(atVolumes.index(i), sources(&k.spec.Volumes[i].VolumeSource), "a source, such as containerDisk or persistentVolumeClaim")
	}
}

// checkVolumeReferences rejects volumes without a reference to an object.
func checkVolumeReferences(k *checker) {
	for i := range k.spec.Volumes {
		s, at := &k.spec.Volumes[i].VolumeSource, atVolumes.index(i)
		k.claims(at, s)
		if s.ConfigMap != nil {
			k.named(at.child("configMap.name"), s.ConfigMap.Name)
		}
		if s.Secret != nil {
			k.named(at.child("secret.secretName"), s.Secret.SecretName)
		}
		if s.ServiceAccount != nil {
			k.named(at.child("serviceAccount.serviceAccountName"), s.ServiceAccount.ServiceAccountName)
			if name := s.ServiceAccount.ServiceAccountName; k.existing && name != "" {
				k.text(at.child("serviceAccount.serviceAccountName"), name, validation.IsDNS1123Subdomain, useDNSName)
			}
		}
		if s.Sysprep != nil {
			checkSysprep(k, at.child("sysprep"), s.Sysprep)
		}
	}
}

func (k *checker) claims(at *fieldPath, s *v1.VolumeSource) {
	if s.PersistentVolumeClaim != nil {
		k.named(at.child("persistentVolumeClaim.claimName"), s.PersistentVolumeClaim.ClaimName)
	}
	if s.DataVolume != nil {
		k.named(at.child("dataVolume.name"), s.DataVolume.Name)
	}
	if s.Ephemeral != nil {
		name := ""
		if s.Ephemeral.PersistentVolumeClaim != nil {
			name = s.Ephemeral.PersistentVolumeClaim.ClaimName
		}
		k.named(at.child("ephemeral.persistentVolumeClaim.claimName"), name)
	}
}

// checkMemoryDumps rejects dumps without a claim, for which existing VMIs have no volume in their Pod.
func checkMemoryDumps(k *checker) {
	for i := range k.spec.Volumes {
		if d := k.spec.Volumes[i].MemoryDump; d != nil {
			k.named(atVolumes.index(i).child("memoryDump.claimName"), d.ClaimName)
		}
	}
}

// named reports an empty reference, or the invalid one of a new VMI: an existing VMI waits for an object that cannot exist.
func (k *checker) named(at *fieldPath, name string) {
	switch {
	case name == "":
		k.required(at, "must be set", "set the source of the volume")
	case !k.existing:
		k.text(at, name, validation.IsDNS1123Subdomain, useDNSName)
	}
}

// checkSysprep ignores the ConfigMap of an existing VMI with both, as its Pod does.
func checkSysprep(k *checker, at *fieldPath, s *v1.SysprepSource) {
	both := s.Secret != nil && s.ConfigMap != nil
	if !k.existing || !both {
		k.only(at, chosen(alternative{"secret", s.Secret != nil}, alternative{"configMap", s.ConfigMap != nil}), "secret or configMap")
	}
	if s.Secret != nil {
		k.named(at.child("secret.name"), s.Secret.Name)
	}
	if s.ConfigMap != nil && (!k.existing || !both) {
		k.named(at.child("configMap.name"), s.ConfigMap.Name)
	}
}

// image reports an image that is invalid for a container.
func (k *checker) image(at *fieldPath, reference, policy string) {
	switch {
	case reference == "":
		k.required(at.child("image"), "must be set", "set an image")
	case strings.TrimSpace(reference) != reference:
		k.invalid(at.child("image"), reference, "must not begin or end with white space", "remove it")
	}
	oneOf(k, at.child("imagePullPolicy"), policy, string(corev1.PullAlways), string(corev1.PullIfNotPresent), string(corev1.PullNever))
}

func checkImages(k *checker) {
	for i := range k.spec.Volumes {
		c, at := k.spec.Volumes[i].ContainerDisk, atVolumes.index(i).child("containerDisk")
		if c == nil {
			continue
		}
		k.image(at, c.Image, string(c.ImagePullPolicy))
	}
}

func checkEmptyDisks(k *checker) {
	for i := range k.spec.Volumes {
		if e := k.spec.Volumes[i].EmptyDisk; e != nil && e.Capacity.Sign() <= 0 {
			k.invalid(atVolumes.index(i).child("emptyDisk.capacity"), brief(e.Capacity.String()), "must be a positive size", "use a size such as 1Gi")
		}
	}
}

// checkHostDisks checks the files of nodes that VMIs use.
func checkHostDisks(k *checker) {
	for i := range k.spec.Volumes {
		h, at := k.spec.Volumes[i].HostDisk, atVolumes.index(i).child("hostDisk")
		if h == nil {
			continue
		}
		oneOf(k, at.child("type"), h.Type, v1.HostDiskExists, v1.HostDiskExistsOrCreate)
		if h.Type == v1.HostDiskExistsOrCreate && h.Capacity.Sign() <= 0 {
			k.invalid(at.child("capacity"), brief(h.Capacity.String()), "must be a positive size to create the disk", "use a size such as 1Gi")
		}
	}
}

func checkDownwardAPI(k *checker) {
	for i := range k.spec.Volumes {
		source := k.spec.Volumes[i].DownwardAPI
		if source == nil {
			continue
		}
		taken := names{}
		for j := range source.Fields {
			f, at := &source.Fields[j], atVolumes.index(i).child("downwardAPI.fields").index(j)
			taken.take(k, at.child("path"), f.Path)
			k.only(at, chosen(alternative{"fieldRef", f.FieldRef != nil}, alternative{"resourceFieldRef", f.ResourceFieldRef != nil}), "fieldRef or resourceFieldRef")
		}
	}
}

func checkContainerPaths(k *checker) {
	for i := range k.spec.Volumes {
		v := &k.spec.Volumes[i]
		c, at := v.ContainerPath, atVolumes.index(i).child("containerPath")
		if c == nil {
			continue
		}
		if isFalse(c.ReadOnly) {
			k.invalid(at.child("readOnly"), false, "must be true: the guest must not change the launcher's files", "set it to true")
		}
		if !slices.ContainsFunc(k.devices.Filesystems, func(fs v1.Filesystem) bool { return fs.Name == v.Name }) {
			k.invalid(at, c.Path, "requires a file system", "add "+v.Name+" to "+atDevices.child("filesystems").String())
		}
	}
}

func checkSingleMetrics(k *checker) {
	metrics := names{}
	for i := range k.spec.Volumes {
		if k.spec.Volumes[i].DownwardMetrics != nil {
			metrics.take(k, atVolumes.index(i), "downwardMetrics")
		}
	}
}

// checkSingleVolumes rejects a second volume of a kind that a VMI may have only once.
func checkSingleVolumes(k *checker) {
	accounts, dumps := names{}, names{}
	for i := range k.spec.Volumes {
		s, at := &k.spec.Volumes[i].VolumeSource, atVolumes.index(i)
		if s.ServiceAccount != nil {
			accounts.take(k, at, "serviceAccount")
		}
		if s.MemoryDump != nil {
			dumps.take(k, at, "memoryDump")
		}
	}
}

func checkUtilityVolumes(k *checker) {
	taken := names{}
	for i := range k.spec.Volumes {
		taken[k.spec.Volumes[i].Name] = atVolumes.index(i)
	}
	for i := range k.spec.UtilityVolumes {
		v, at := &k.spec.UtilityVolumes[i], atSpec.child("utilityVolumes").index(i)
		k.text(at.child("name"), v.Name, validation.IsDNS1123Label, useDNSLabel)
		taken.take(k, at.child("name"), v.Name)
		k.named(at.child("claimName"), v.ClaimName)
	}
}

func checkUtilityTypes(k *checker) {
	for i := range k.spec.UtilityVolumes {
		if v := &k.spec.UtilityVolumes[i]; v.Type != nil {
			oneOf(k, atSpec.child("utilityVolumes").index(i).child("type"), *v.Type, v1.MemoryDump, v1.Backup)
		}
	}
}
