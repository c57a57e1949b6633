// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// imageCopies adds a container per disk image in clusters without image volumes. It exposes the image's files to the domain
// through a shared folder by a binary of the launcher's image, which the first init container copies. The init container of
// each image makes the kubelet pull it before the domain starts.
func imageCopies(d *render.Draft) error {
	if d.Config().GateEnabled(gateImageVolume) {
		return nil
	}
	all, err := pinnedImages(d)
	if err != nil || len(all) == 0 {
		return err
	}
	d.From("Config.LauncherImage, " + runtimeUser).AddInitContainer(binaryContainer(d))
	for _, image := range all {
		d.From(image.field).AddInitContainer(imageContainer(d, image, "-init", "--no-op"))
	}
	for _, image := range all {
		folder := copyFolder(d.VMI()) + "/" + image.copyName
		d.From(image.field).AddContainer(imageContainer(d, image, "", "--copy-path", folder))
	}
	return nil
}

// copyFolder returns the folder of the containers with disk images within the shared folder.
func copyFolder(vmi *v1.VirtualMachineInstance) string {
	return containerDiskData + "/" + string(vmi.UID)
}

func imageContainer(d *render.Draft, image diskImage, suffix string, args ...string) corev1.Container {
	return corev1.Container{
		Name:            imageContainerPrefix + image.volume + suffix,
		Image:           image.reference,
		ImagePullPolicy: image.pullPolicy,
		Command:         []string{"/usr/bin/container-disk"},
		Args:            args,
		SecurityContext: supportSecurity(),
		Resources:       imageResources(d),
		VolumeMounts: []corev1.VolumeMount{
			{Name: containerDisks, MountPath: copyFolder(d.VMI())},
			{Name: launcherBinaries, MountPath: "/usr/bin"},
		},
	}
}

// binaryContainer copies the binary that runs in images. It runs as the launcher does.
func binaryContainer(d *render.Draft) corev1.Container {
	request, limit := amounts{cpu: "10m", memory: "1M"}, amounts{cpu: "100m", memory: "40M"}
	if d.VMI().IsCPUDedicated() || d.VMI().WantsToHaveQOSGuaranteed() {
		limit.cpu = "10m"
	}
	return corev1.Container{
		Name:            "container-disk-binary",
		Image:           d.Config().LauncherImage,
		ImagePullPolicy: d.Config().ImagePullPolicy,
		Command:         []string{"/usr/bin/cp"},
		Args:            []string{"--preserve=all", "/usr/bin/container-disk", "/init/usr/bin/container-disk"},
		SecurityContext: binarySecurity(d.VMI()),
		Resources:       supportResources(d, v1.ContainerDisk, request, limit),
		VolumeMounts:    []corev1.VolumeMount{{Name: launcherBinaries, MountPath: "/init/usr/bin"}},
		Env:             homeEnv(d.VMI()),

		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

func binarySecurity(vmi *v1.VirtualMachineInstance) *corev1.SecurityContext {
	none := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
	if !nonRoot(vmi) {
		root, no := int64(0), false
		return &corev1.SecurityContext{RunAsUser: &root, RunAsNonRoot: &no, Capabilities: none}
	}
	c := computeSecurity(vmi)
	c.Capabilities = none
	return c
}
