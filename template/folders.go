// SPDX-License-Identifier: Apache-2.0

package template

// Folders in the compute container, as virt-handler and virt-launcher expect them.
const (
	shareDir          = "/var/run/kubevirt"
	privateDir        = "/var/run/kubevirt-private"
	ephemeralDir      = "/var/run/kubevirt-ephemeral-disks"
	containerDiskDir  = "/var/run/kubevirt/container-disks"
	hotplugDisks      = "/var/run/kubevirt/hotplug-disks"
	imageVolumeDir    = "/var/run/kubevirt-image-volume"
	kernelBootDir     = "/var/run/kubevirt-kernel-boot"
	libvirtDir        = "/var/run/libvirt"
	vmiDisksDir       = privateDir + "/vmi-disks"
	digestBinaryMount = "/container-disk-binary"
	containerDiskData = ephemeralDir + "/container-disk-data"
)
