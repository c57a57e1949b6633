// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	containerDisks   = "container-disks"    // the volume shared by containers with disk images and the domain
	launcherBinaries = "virt-bin-share-dir" // the volume with the launcher binary for them
)

// reservedVolumes are the names of the launcher's own volumes.
var reservedVolumes = []string{
	"private", "public", "sockets", launcherBinaries, "libvirt-runtime", "ephemeral-disks", containerDisks,
	"hotplug-disks", "launcher-volume", "kernel-boot-volume", "hugepages", "hugetblfs-dir",
	hookSocketsVolume, pluginSocketsVolume, networkInfoVolume,
}

// runtimeDirs adds the folders shared by launcher, libvirt and node agent.
func runtimeDirs(d *render.Draft) error {
	for _, name := range []string{
		"private", "public", "sockets", launcherBinaries, "libvirt-runtime", "ephemeral-disks",
	} {
		d.EmptyDir(name)
	}
	if !d.Config().GateEnabled(gateImageVolume) {
		d.From("Config.FeatureGates").EmptyDir(containerDisks)
	}
	for _, m := range []corev1.VolumeMount{
		{Name: "private", MountPath: privateDir},
		{Name: "public", MountPath: shareDir},
		{Name: "ephemeral-disks", MountPath: ephemeralDir},
		{Name: "libvirt-runtime", MountPath: libvirtDir},
		{Name: "sockets", MountPath: shareDir + "/sockets"},
	} {
		d.Container(computeContainer).Mount(m)
	}
	if !d.Config().GateEnabled(gateImageVolume) {
		// The node agent mounts the images below it when their containers are running.
		propagation := corev1.MountPropagationHostToContainer
		d.From("Config.FeatureGates").Container(computeContainer).Mount(corev1.VolumeMount{
			Name: containerDisks, MountPath: containerDiskDir, MountPropagation: &propagation,
		})
	}
	return nil
}
