// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	virtiofsPrefix  = "virtiofs-"           // prefix of the container names
	virtiofsSockets = "virtiofs-containers" // the volume with the sockets for qemu
	virtiofsDir     = shareDir + "/virtiofs-containers"
	accountDir      = "/var/run/secrets/kubernetes.io/serviceaccount/"
	vmiFilesystems  = "spec.domain.devices.filesystems"
	// translateUser shows files of qemu's user as root's to the guest: kernels follow links in sticky folders only if the
	// owner of the link is that of the folder.
	translateUser = "--translate-uid=host:107:0:1"
)

// virtiofs adds a container for every volume with a file system of the VMI.
func virtiofs(d *render.Draft) error {
	shared := sharedVolumes(d.VMI())
	if len(shared) == 0 {
		return nil
	}
	from := d.From(vmiFilesystems)
	from.EmptyDir(virtiofsSockets)
	from.Container(computeContainer).Mount(corev1.VolumeMount{Name: virtiofsSockets, MountPath: virtiofsDir})
	for i := range d.VMI().Spec.Volumes {
		v := &d.VMI().Spec.Volumes[i]
		if !shared[v.Name] || v.ContainerPath != nil {
			continue
		}
		if source, field := claimOf(v); source != nil && isBlock(d.Facts().Claims[source.ClaimName]) {
			return render.Invalid(elementOf(vmiVolumes, i)+"."+field, fmt.Sprintf("claim %q must not be a block device", source.ClaimName),
				"use a claim with volumeMode Filesystem, or a disk")
		}
		d.From(elementOf(vmiVolumes, i)).AddContainer(virtiofsContainer(d, sharedFolder(v)))
	}
	return containerPaths(d, shared)
}

// sharedVolumes returns the names of the volumes of the VMI's file systems.
func sharedVolumes(vmi *v1.VirtualMachineInstance) map[string]bool {
	names := map[string]bool{}
	for i := range vmi.Spec.Domain.Devices.Filesystems {
		if f := &vmi.Spec.Domain.Devices.Filesystems[i]; f.Virtiofs != nil {
			names[f.Name] = true
		}
	}
	return names
}

// folder is the folder that a virtiofs container shares.
type folder struct {
	volume string // the VMI's volume, which names container and socket
	path   string // path in the container
	mount  *corev1.VolumeMount
	asRoot bool // show files of qemu's user as root's
}

// sharedFolder returns the folder of a volume in its container. The kubelet mounts the token of a service account.
func sharedFolder(v *v1.Volume) folder {
	if v.ServiceAccount != nil {
		return folder{volume: v.Name, path: accountDir, asRoot: true}
	}
	path := "/" + v.Name
	if _, kind := configSource(v); kind != "" {
		path = privateDir + "/" + kind + "/" + v.Name
	}
	return folder{volume: v.Name, path: path, mount: &corev1.VolumeMount{Name: v.Name, MountPath: path}}
}

func virtiofsContainer(d *render.Draft, f folder) corev1.Container {
	yes, no := true, false
	c := corev1.Container{
		Name: virtiofsPrefix + f.volume, Image: d.Config().LauncherImage, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"/usr/libexec/virtiofsd"},
		Args: []string{
			"--socket-path=" + virtiofsDir + "/" + f.volume + ".sock",
			"--shared-dir=" + f.path,
			"--sandbox=none",
			"--cache=auto",
			// A file that cannot be migrated becomes inaccessible in the guest and does not abort the migration.
			"--migration-on-error=guest-error",
			"--migration-mode=find-paths",
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: new(render.QEMUUser), RunAsGroup: new(render.QEMUUser), RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		Resources:    supportResources(d, v1.VirtioFS, amounts{cpu: "10m", memory: "1M"}, amounts{cpu: "100m", memory: "80M"}),
		VolumeMounts: []corev1.VolumeMount{{Name: virtiofsSockets, MountPath: virtiofsDir}},
	}
	if f.asRoot {
		c.Args = append(c.Args, translateUser)
	}
	if f.mount != nil {
		c.VolumeMounts = append(c.VolumeMounts, *f.mount)
	}
	return c
}
