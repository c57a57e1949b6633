// SPDX-License-Identifier: Apache-2.0

package template

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	hookSocketsVolume   = "hook-sidecar-sockets"
	pluginSocketsVolume = "kubevirt-plugin-sockets"
	fromSidecars        = "stage " + StageHooks
)

// hookSockets adds the folders with the sockets of sidecars and plugins.
func hookSockets(d *render.Draft) error {
	if len(d.Sidecars()) > 0 {
		d.From(fromSidecars).EmptyDir(hookSocketsVolume)
		d.From(fromSidecars).Container(computeContainer).Mount(corev1.VolumeMount{Name: hookSocketsVolume, MountPath: hookSocketsDir})
	}
	if d.Config().GateEnabled(gatePlugins) {
		d.From("Config.FeatureGates").EmptyDir(pluginSocketsVolume)
		d.From("Config.FeatureGates").Container(computeContainer).Mount(corev1.VolumeMount{Name: pluginSocketsVolume, MountPath: pluginSocketsDir})
	}
	return nil
}

// sidecars adds the containers that stage hooks requested.
func sidecars(d *render.Draft) error {
	for i := range d.Sidecars() {
		if err := addSidecar(d.From(d.Sidecars()[i].From), i, &d.Sidecars()[i]); err != nil {
			return err
		}
	}
	return nil
}

func addSidecar(d render.Draft, index int, s *render.Sidecar) error {
	name := fmt.Sprintf("hook-sidecar-%d", index)
	image := s.Image
	if image == "" {
		image = d.Config().SidecarShimImage
	}
	mounts := []corev1.VolumeMount{{Name: hookSocketsVolume, MountPath: hookSocketsDir, SubPath: name}}
	if s.DeviceInfo {
		mounts = append(mounts, podInfoMount())
	}
	if c := s.ConfigMap; c != nil {
		mode := int32(0o755)
		volume := sidecarVolume(d, "hook-configmap-", c.Name, corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: c.Name}, DefaultMode: &mode,
		}})
		mounts = append(mounts, corev1.VolumeMount{Name: volume, MountPath: c.HookPath, SubPath: c.Key})
	}
	if c := s.Claim; c != nil {
		volume := sidecarVolume(d, "hook-claim-", c.Name, corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Name},
		})
		mounts = append(mounts, corev1.VolumeMount{Name: volume, MountPath: c.VolumePath})
		if err := shareWithCompute(d, s.From+".pvc.sharedComputePath", volume, c.SharedComputePath); err != nil {
			return err
		}
	}
	d.AddContainer(corev1.Container{
		Name: name, Image: image, ImagePullPolicy: s.PullPolicy,
		Command: slices.Clone(s.Command), Args: slices.Clone(s.Args), Env: sidecarEnv(d, name, s),
		SecurityContext: sidecarSecurity(d.VMI()), Resources: sidecarResources(d), VolumeMounts: mounts,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	})
	return nil
}

// sidecarVolume adds the volume of a ConfigMap or claim and returns its name: that of the object, or one derived from it if
// that is invalid or in use for another volume. Sidecars with the same object share its volume.
func sidecarVolume(d render.Draft, prefix, object string, source corev1.VolumeSource) string {
	name := object
	other := slices.ContainsFunc(d.View().Spec.Volumes, func(v corev1.Volume) bool {
		return v.Name == object && !equality.Semantic.DeepEqual(v.VolumeSource, source)
	})
	if other || len(validation.IsDNS1123Label(object)) > 0 {
		sum := sha256.Sum256([]byte(object))
		name = prefix + hex.EncodeToString(sum[:])[:10]
	}
	d.Volume(corev1.Volume{Name: name, VolumeSource: source})
	return name
}

// shareWithCompute mounts a sidecar's claim into the compute container as well.
func shareWithCompute(d render.Draft, at, volume, path string) error {
	if path == "" {
		return nil
	}
	compute := d.Container(computeContainer).View()
	if compute == nil {
		return nil // recorded by View
	}
	for _, m := range compute.VolumeMounts {
		if m.MountPath == path && m.Name != volume {
			return render.Invalid(at, fmt.Sprintf("%s is already used by volume %q of the launcher", path, m.Name), "use another path")
		}
	}
	d.Container(computeContainer).Mount(corev1.VolumeMount{Name: volume, MountPath: path})
	return nil
}

func sidecarEnv(d render.Draft, name string, s *render.Sidecar) (env []corev1.EnvVar) {
	env = append(homeEnv(d.VMI()), corev1.EnvVar{Name: "CONTAINER_NAME", Value: name})
	if s.Plugin != "" {
		env = append(env, corev1.EnvVar{Name: "NETWORK_BINDING_PLUGIN_NAME", Value: s.Plugin})
	}
	return env
}

// homeEnv sets the home folders of programs that run as the launcher's user.
func homeEnv(vmi *v1.VirtualMachineInstance) []corev1.EnvVar {
	if !nonRoot(vmi) {
		return nil
	}
	return []corev1.EnvVar{
		{Name: "XDG_CACHE_HOME", Value: privateDir}, {Name: "XDG_CONFIG_HOME", Value: privateDir}, {Name: "XDG_RUNTIME_DIR", Value: "/var/run"},
	}
}

// sidecarSecurity sets the user of the launcher on sidecars, because they share sockets with it.
func sidecarSecurity(vmi *v1.VirtualMachineInstance) *corev1.SecurityContext {
	if nonRoot(vmi) {
		c, group := supportSecurity(), render.QEMUUser
		c.RunAsGroup = &group
		return c
	}
	root, no := int64(0), false
	return &corev1.SecurityContext{RunAsUser: &root, RunAsNonRoot: &no}
}

// sidecarResources returns the configured resources, by default none, since only the author of a sidecar knows its needs. A
// Pod of guaranteed quality of service needs some in all of its containers.
func sidecarResources(d render.Draft) corev1.ResourceRequirements {
	var limit amounts
	if d.VMI().IsCPUDedicated() || d.VMI().WantsToHaveQOSGuaranteed() {
		limit = amounts{cpu: "200m", memory: "64M"}
	}
	return supportResources(&d, v1.SideCar, amounts{}, limit)
}
