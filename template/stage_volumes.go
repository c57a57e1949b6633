// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// volumes adds the volumes of the VMI's disks, except images. Hotplugged volumes are attached by Pods of their own.
func volumes(d *render.Draft) error {
	plugged := hotpluggedNames(d.VMI())
	for i := range d.VMI().Spec.Volumes {
		v := &d.VMI().Spec.Volumes[i]
		if hotplugged(plugged, v) {
			continue
		}
		at := elementOf(vmiVolumes, i)
		if err := addVolume(d.From(at), v, at); err != nil {
			return err
		}
	}
	return nil
}

func hotplugged(plugged map[string]bool, v *v1.Volume) bool {
	return (v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.Hotpluggable) || (v.DataVolume != nil && v.DataVolume.Hotpluggable) ||
		plugged[v.Name]
}

// hotpluggedNames returns the names of the hotplugged volumes according to the status.
func hotpluggedNames(vmi *v1.VirtualMachineInstance) map[string]bool {
	if len(vmi.Status.VolumeStatus) == 0 {
		return nil
	}
	names := make(map[string]bool, len(vmi.Status.VolumeStatus))
	for i := range vmi.Status.VolumeStatus {
		if s := &vmi.Status.VolumeStatus[i]; s.HotplugVolume != nil {
			names[s.Name] = true
		}
	}
	return names
}

func addVolume(d render.Draft, v *v1.Volume, at string) error {
	if claim, field := claimOf(v); claim != nil {
		if isBlock(d.Facts().Claims[claim.ClaimName]) && slices.Contains(devicesOfLauncher, v.Name) {
			return render.Invalid(at+".name", fmt.Sprintf("the block device /dev/%s would hide a device of the launcher", v.Name), "rename the volume")
		}
		return addClaim(d, v.Name, at+"."+field, claim)
	}
	switch {
	case v.HostDisk != nil:
		addHostDisk(d, v.Name, v.HostDisk)
	case v.Sysprep != nil:
		addSysprep(d, v.Name, v.Sysprep)
	case v.DownwardMetrics != nil:
		limit := *resource.NewQuantity(mi, resource.BinarySI)
		d.Volume(corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &limit},
		}})
		d.Container(computeContainer).Mount(corev1.VolumeMount{Name: v.Name, MountPath: privateDir + "/downwardmetric-disk"})
	}
	return nil
}

// claimOf returns the claim of a volume, and the field with its name. Memory dumps are not part of the domain.
func claimOf(v *v1.Volume) (*corev1.PersistentVolumeClaimVolumeSource, string) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return &v.PersistentVolumeClaim.PersistentVolumeClaimVolumeSource, "persistentVolumeClaim.claimName"
	case v.DataVolume != nil:
		return &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.DataVolume.Name}, "dataVolume.name"
	case v.Ephemeral != nil:
		return v.Ephemeral.PersistentVolumeClaim, "ephemeral.persistentVolumeClaim.claimName"
	default:
		return nil, ""
	}
}

// devicesOfLauncher are files in /dev of the runtime or of device plugins.
var devicesOfLauncher = []string{
	"console", "core", "fd", "full", "hugepages", "kvm", "mqueue", "mshv", "net", "null", "ptmx", "pts", "random", "sev", "shm",
	"stderr", "stdin", "stdout", "tty", "urandom", "vfio", "vhost-net", "vhost-vsock", "zero",
}

func addClaim(d render.Draft, name, field string, source *corev1.PersistentVolumeClaimVolumeSource) error {
	claim := d.Facts().Claims[source.ClaimName]
	if claim == nil {
		return &render.Error{
			Field: field, Reason: fmt.Sprintf("claim %q not found", source.ClaimName),
			Remedy: "create the PersistentVolumeClaim in the namespace of the VMI", Err: render.ErrMissingFact,
		}
	}
	d.Volume(corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: source}})
	if isBlock(claim) {
		d.Container(computeContainer).Device(corev1.VolumeDevice{Name: name, DevicePath: "/dev/" + name})
		return nil
	}
	d.Container(computeContainer).Mount(corev1.VolumeMount{Name: name, MountPath: vmiDisksDir + "/" + name})
	return nil
}

func isBlock(claim *corev1.PersistentVolumeClaim) bool {
	return claim != nil && claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// sharedPaths returns the mount paths of file systems that several nodes can write to; a migration does not copy those.
func sharedPaths(d *render.Draft) (paths []string) {
	plugged := hotpluggedNames(d.VMI())
	for i := range d.VMI().Spec.Volumes {
		v := &d.VMI().Spec.Volumes[i]
		source, _ := claimOf(v)
		if source == nil || hotplugged(plugged, v) {
			continue
		}
		claim := d.Facts().Claims[source.ClaimName]
		if claim != nil && !isBlock(claim) && slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany) {
			paths = append(paths, vmiDisksDir+"/"+v.Name)
		}
	}
	return paths
}

func addHostDisk(d render.Draft, name string, h *v1.HostDisk) {
	kind := corev1.HostPathUnset
	switch h.Type {
	case v1.HostDiskExists:
		kind = corev1.HostPathDirectory
	case v1.HostDiskExistsOrCreate:
		kind = corev1.HostPathDirectoryOrCreate
	}
	d.Volume(corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: path.Dir(h.Path), Type: &kind},
	}})
	d.Container(computeContainer).Mount(corev1.VolumeMount{Name: name, MountPath: vmiDisksDir + "/" + name})
}

func addSysprep(d render.Draft, name string, s *v1.SysprepSource) {
	var source corev1.VolumeSource
	if s.Secret != nil {
		source.Secret = &corev1.SecretVolumeSource{SecretName: s.Secret.Name}
	} else {
		source.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: *s.ConfigMap}
	}
	d.Volume(corev1.Volume{Name: name, VolumeSource: source})
	d.Container(computeContainer).Mount(corev1.VolumeMount{Name: name, MountPath: privateDir + "/sysprep/" + name, ReadOnly: true})
}
