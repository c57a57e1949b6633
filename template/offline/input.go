// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// Input returns the input of a Pod of one kind. A required object without a manifest is an error wrapping
// render.ErrMissingFact; missing claims of volumes are left to the renderer.
//
// A hotplug attachment belongs to the VMI's Pod or, if there are a migration that is not final and its target Pod, to the
// latter.
func (c *Cluster) Input(kind render.PodKind) (template.Input, error) {
	in := template.Input{Config: template.ConfigFrom(c.KubeVirt, cmp.Or(c.LauncherImage, c.image("virt-launcher"), c.FallbackLauncherImage))}
	in.Config.ExporterImage = cmp.Or(c.ExporterImage, c.image("virt-exportserver"))
	in.Config.SidecarShimImage = cmp.Or(c.SidecarShimImage, c.image("sidecar-shim"), in.Config.SidecarShimImage)
	if kind == render.ExporterPod {
		export, err := c.export()
		if err != nil {
			return in, err
		}
		in.Export = &render.Export{Object: export}
		return in, needImage(in.Config.ExporterImage, "exporter", "--exporter-image")
	}
	if c.VMI == nil {
		return in, &Error{
			Reason: "VirtualMachineInstance not found", Remedy: "add its manifest with -f", Err: render.ErrMissingFact,
		}
	}
	if err := needImage(in.Config.LauncherImage, "launcher", "--image"); err != nil {
		return in, err
	}
	in.VMI, in.Facts = c.VMI, c.facts(c.VMI.Namespace)
	var err error
	switch kind {
	case render.TargetPod:
		in.Migration, err = c.migration()
	case render.AttachmentPod, render.TriggerPod:
		err = c.hotplug(kind, &in)
	}
	return in, err
}

// image returns the image of a component with the name of KubeVirt's operator; empty if the KubeVirt object has no registry
// or tag.
func (c *Cluster) image(component string) string {
	if c.KubeVirt == nil {
		return ""
	}
	spec, status := &c.KubeVirt.Spec, &c.KubeVirt.Status
	registry := cmp.Or(spec.ImageRegistry, status.ObservedKubeVirtRegistry, status.TargetKubeVirtRegistry)
	tag := cmp.Or(spec.ImageTag, status.ObservedKubeVirtVersion, status.TargetKubeVirtVersion)
	if registry == "" || tag == "" {
		return ""
	}
	return registry + "/" + component + ":" + tag
}

func needImage(image, what, flag string) error {
	if image != "" {
		return nil
	}
	return &Error{
		Reason: "the " + what + " image must be set", Err: render.ErrMissingFact,
		Remedy: "use " + flag + ", or add a KubeVirt manifest with spec.imageRegistry and spec.imageTag",
	}
}

func (c *Cluster) vmiName() string {
	return objectName("VirtualMachineInstance", c.VMI.Namespace, c.VMI.Name)
}

// hotplug sets the owner and the volumes of hotplug Pods.
func (c *Cluster) hotplug(kind render.PodKind, in *template.Input) error {
	in.Hotplug = &render.Hotplug{Volumes: c.Volumes}
	if len(c.Volumes) == 0 {
		in.Hotplug.Volumes = hotplugged(c.VMI)
	}
	many := kind == render.TriggerPod && len(in.Hotplug.Volumes) > 1
	if len(in.Hotplug.Volumes) == 0 || many {
		reason := "no volume is hotplugged"
		if many {
			reason = "more than one volume is hotplugged, but a trigger takes one"
		}
		fault := c.vmi.fault("spec.volumes", reason, "select one with --volume")
		fault.Err = render.ErrMissingFact
		return fault
	}
	source, err := c.sourcePod()
	if err != nil {
		return err
	}
	in.Hotplug.Owner = source
	if kind == render.TriggerPod {
		return nil
	}
	m, err := c.current()
	if m == nil || err != nil {
		return err
	}
	if target := c.targetPod(m); target != nil {
		in.Hotplug.Owner = target
		in.Migration = &render.Migration{UID: m.UID, Name: m.Name, SourcePod: source, SourceNode: c.node(source)}
	}
	return nil
}

// hotplugged returns the names of a VMI's hotpluggable or hotplugged volumes, in the order of the manifest, utility volumes
// last.
func hotplugged(vmi *v1.VirtualMachineInstance) (names []string) {
	var reported []string
	for i := range vmi.Status.VolumeStatus {
		if vmi.Status.VolumeStatus[i].HotplugVolume != nil {
			reported = append(reported, vmi.Status.VolumeStatus[i].Name)
		}
	}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		hotpluggable := v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.Hotpluggable ||
			v.DataVolume != nil && v.DataVolume.Hotpluggable || v.MemoryDump != nil
		if hotpluggable || slices.Contains(reported, v.Name) {
			names = append(names, v.Name)
		}
	}
	for i := range vmi.Spec.UtilityVolumes {
		names = append(names, vmi.Spec.UtilityVolumes[i].Name)
	}
	return names
}

// node returns the Node of a Pod; nil if no manifest has it.
func (c *Cluster) node(pod *corev1.Pod) *corev1.Node {
	for _, n := range every[*corev1.Node](c) {
		if pod != nil && n.Name == pod.Spec.NodeName {
			return n
		}
	}
	return nil
}
