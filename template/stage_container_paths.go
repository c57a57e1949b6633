// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// containerPathDir is the folder of a container for shared paths of the launcher. It differs from the launcher's own path,
// at which webhooks may mount volumes into every container.
const containerPathDir = "/virtiofs-data/"

// containerPaths adds a container for every file system that shares a path of the launcher itself. KubeVirt does so in a
// webhook, after others have changed the Pod; here, the volumes must come from stages before virtiofs.
func containerPaths(d *render.Draft, shared map[string]bool) error {
	for i := range d.VMI().Spec.Volumes {
		v := &d.VMI().Spec.Volumes[i]
		if v.ContainerPath == nil || !shared[v.Name] {
			continue
		}
		source, rest := mountAt(d.View(), v.ContainerPath.Path)
		if problem := unshareable(d.View(), source); problem != "" {
			return render.Invalid(elementOf(vmiVolumes, i)+".containerPath.path", fmt.Sprintf("%q %s", v.ContainerPath.Path, problem),
				"use a path that compute mounts from a configMap, secret, projected, downwardAPI or emptyDir volume, or insert a stage "+
					"before virtiofs that mounts it; for the token of a service account use a serviceAccount volume")
		}
		at := containerPathDir + v.Name
		d.From(elementOf(vmiVolumes, i)).AddContainer(virtiofsContainer(d, folder{
			volume: v.Name, path: at, asRoot: hasToken(d.View(), source.Name),
			mount: &corev1.VolumeMount{Name: source.Name, MountPath: at, SubPath: path.Join(source.SubPath, rest), ReadOnly: true},
		}))
	}
	return nil
}

// mountAt returns the innermost mount of compute that contains a path, and the rest of the path below it.
func mountAt(pod *corev1.Pod, folder string) (mount *corev1.VolumeMount, rest string) {
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == computeContainer })
	if i < 0 {
		return nil, ""
	}
	mounts, longest := pod.Spec.Containers[i].VolumeMounts, 0
	for j := range mounts {
		at := strings.TrimSuffix(mounts[j].MountPath, "/")
		below, ok := strings.CutPrefix(folder, at)
		if ok && (below == "" || below[0] == '/') && len(at) >= longest {
			mount, rest, longest = &mounts[j], strings.TrimPrefix(below, "/"), len(at)
		}
	}
	return mount, rest
}

// unshareable returns why a mount cannot be shared, or an empty string.
func unshareable(pod *corev1.Pod, mount *corev1.VolumeMount) string {
	if mount == nil {
		return "must be below a mount of the compute container"
	}
	if mount.SubPathExpr != "" {
		return "must not be on a mount with subPathExpr"
	}
	v := volumeOf(pod, mount.Name)
	if v == nil || (v.ConfigMap == nil && v.Secret == nil && v.Projected == nil && v.DownwardAPI == nil && v.EmptyDir == nil) {
		return fmt.Sprintf("must not be on volume %q, which cannot be shared", mount.Name)
	}
	return ""
}

func volumeOf(pod *corev1.Pod, name string) *corev1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}

// hasToken reports whether a volume contains a service account token.
func hasToken(pod *corev1.Pod, name string) bool {
	v := volumeOf(pod, name)
	return v != nil && v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
		return s.ServiceAccountToken != nil
	})
}
