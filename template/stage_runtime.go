// SPDX-License-Identifier: Apache-2.0

package template

import corev1 "k8s.io/api/core/v1"

// reservedVolumes are the names of volumes that belong to the launcher and not to the guest.
var reservedVolumes = []string{
	"private", "public", "sockets", "virt-bin-share-dir", "libvirt-runtime", "ephemeral-disks", "container-disks",
	"hotplug-disks", "launcher-volume", "kernel-boot-volume", "hugepages", "hugetblfs-dir",
}

// runtimeDirs adds the folders in which launcher, libvirt and node agent meet.
func runtimeDirs(d *Draft) error {
	for _, name := range []string{
		"private", "public", "sockets", "virt-bin-share-dir", "libvirt-runtime", "ephemeral-disks",
	} {
		d.EmptyDir(name)
	}
	for _, m := range []corev1.VolumeMount{
		{Name: "private", MountPath: privateDir},
		{Name: "public", MountPath: shareDir},
		{Name: "ephemeral-disks", MountPath: ephemeralDir},
		{Name: "libvirt-runtime", MountPath: libvirtDir},
		{Name: "sockets", MountPath: shareDir + "/sockets"},
	} {
		d.Mount(computeContainer, m)
	}
	return nil
}
