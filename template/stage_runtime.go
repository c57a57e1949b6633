// SPDX-License-Identifier: Apache-2.0

package template

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

const (
	containerDisks   = "container-disks"    // the volume in which containers with disk images and the guest meet
	launcherBinaries = "virt-bin-share-dir" // the volume by which they get a binary of the launcher's image
)

// reservedVolumes are the names of volumes that belong to the launcher and not to the guest.
var reservedVolumes = []string{
	"private", "public", "sockets", launcherBinaries, "libvirt-runtime", "ephemeral-disks", containerDisks,
	"hotplug-disks", "launcher-volume", "kernel-boot-volume", "hugepages", "hugetblfs-dir",
	hookSocketsVolume, pluginSocketsVolume, networkInfoVolume,
}

// runtimeDirs adds the folders in which launcher, libvirt and node agent meet.
func runtimeDirs(d *Draft) error {
	d.pod.Spec.Volumes = slices.Grow(d.pod.Spec.Volumes, 16) // most Pods have no more
	for _, name := range []string{
		"private", "public", "sockets", launcherBinaries, "libvirt-runtime", "ephemeral-disks",
	} {
		d.EmptyDir(name)
	}
	if !d.config.GateEnabled(gateImageVolume) {
		d.From("Config.FeatureGates").EmptyDir(containerDisks)
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
	if !d.config.GateEnabled(gateImageVolume) {
		// The node agent mounts the images below it when the containers that have them are up.
		propagation := corev1.MountPropagationHostToContainer
		d.From("Config.FeatureGates").Mount(computeContainer, corev1.VolumeMount{
			Name: containerDisks, MountPath: containerDiskDir, MountPropagation: &propagation,
		})
	}
	return nil
}
