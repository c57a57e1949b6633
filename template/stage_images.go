// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	kernelBootVolume     = "kernel-boot-volume"
	launcherVolume       = "launcher-volume"
	imageContainerPrefix = "volume"
	skipDigestAnnotation = "kubevirt.io/image-volume-skip-digest-resolution"
	digestMark           = "@sha256:"
)

var digestPattern = regexp.MustCompile(`sha256:([a-zA-Z0-9]+)`)

// diskImage is one image that the VMI boots from or has a disk of.
type diskImage struct {
	volume     string // name of the Pod's volume
	field      string // field of the VMI that references the image
	reference  string
	pullPolicy corev1.PullPolicy
	pullSecret string
	mountPath  string // mount path in compute as an image volume
	copyName   string // name of its container's files below the VMI's folder
}

// images adds containerDisk and kernel boot images as image volumes. An init container per image makes the kubelet report
// the digest of its tag, which pins the image for a later migration.
func images(d *render.Draft) error {
	all, err := pinnedImages(d)
	if err != nil {
		return err
	}
	for _, image := range all {
		d.From(image.field).PullSecret(image.pullSecret)
	}
	d.From("Config.ImagePullSecret").PullSecret(d.Config().ImagePullSecret)
	if !d.Config().GateEnabled(gateImageVolume) {
		return nil
	}
	digests := asksForDigests(d)
	for _, image := range all {
		from := d.From(image.field)
		from.Volume(corev1.Volume{Name: image.volume, VolumeSource: corev1.VolumeSource{
			Image: &corev1.ImageVolumeSource{Reference: image.reference, PullPolicy: image.pullPolicy},
		}})
		from.Container(computeContainer).Mount(corev1.VolumeMount{Name: image.volume, MountPath: image.mountPath, ReadOnly: true})
		if digests {
			from.AddInitContainer(digestContainer(d, image))
		}
	}
	if digests && len(all) > 0 {
		d.From("Config.LauncherImage").Volume(corev1.Volume{Name: launcherVolume, VolumeSource: corev1.VolumeSource{
			Image: &corev1.ImageVolumeSource{Reference: d.Config().LauncherImage, PullPolicy: d.Config().ImagePullPolicy},
		}})
	}
	return nil
}

// pinnedImages returns the images of the VMI, on a migration target by the digests of the source.
func pinnedImages(d *render.Draft) ([]diskImage, error) {
	all := diskImages(d.VMI())
	if d.Migration() == nil {
		return all, nil
	}
	for i := range all {
		pinned, err := pinnedImage(d, all[i])
		if err != nil {
			return nil, err
		}
		all[i].reference = pinned
	}
	return all, nil
}

// asksForDigests reports whether image volumes come with containers that reveal digests. A target has them already.
func asksForDigests(d *render.Draft) bool { return d.Migration() == nil && !skipsDigest(d.VMI()) }

func diskImages(vmi *v1.VirtualMachineInstance) (all []diskImage) {
	for i := range vmi.Spec.Volumes {
		if c := vmi.Spec.Volumes[i].ContainerDisk; c != nil {
			all = append(all, diskImage{
				volume: vmi.Spec.Volumes[i].Name, field: fmt.Sprintf("spec.volumes[%d].containerDisk.image", i),
				reference: c.Image, pullPolicy: c.ImagePullPolicy, pullSecret: c.ImagePullSecret,
				mountPath: fmt.Sprintf("%s/disk_%d", imageVolumeDir, i), copyName: fmt.Sprintf("disk_%d", i),
			})
		}
	}
	if f := vmi.Spec.Domain.Firmware; f != nil && f.KernelBoot != nil && f.KernelBoot.Container != nil {
		c := f.KernelBoot.Container
		all = append(all, diskImage{
			volume: kernelBootVolume, field: "spec.domain.firmware.kernelBoot.container.image",
			reference: c.Image, pullPolicy: c.ImagePullPolicy, pullSecret: c.ImagePullSecret,
			mountPath: kernelBootDir, copyName: "kernel-boot",
		})
	}
	return all
}

func skipsDigest(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Annotations[skipDigestAnnotation] == "true"
}

func digestContainer(d *render.Draft, image diskImage) corev1.Container {
	return corev1.Container{
		Name:            imageContainerPrefix + image.volume,
		Image:           image.reference,
		ImagePullPolicy: image.pullPolicy,
		Command:         []string{digestBinaryMount + "/usr/bin/container-disk"},
		Args:            []string{"--no-op"},
		SecurityContext: supportSecurity(),
		Resources:       imageResources(d),
		VolumeMounts:    []corev1.VolumeMount{{Name: launcherVolume, MountPath: digestBinaryMount, ReadOnly: true}},
	}
}

// imageResources returns the resources of a container that runs from a disk image.
func imageResources(d *render.Draft) corev1.ResourceRequirements {
	r := supportResources(d, v1.ContainerDisk, amounts{cpu: "1m", memory: "1M"}, amounts{cpu: "10m", memory: "40M"})
	r.Requests[corev1.ResourceEphemeralStorage] = *resource.NewScaledQuantity(ephemeralStorageBytes, 0)
	return r
}

// pinnedImage returns the reference of the source Pod's image. The target needs the same bytes, even if the tag has moved
// meanwhile.
func pinnedImage(d *render.Draft, image diskImage) (string, error) {
	source := d.Migration().SourcePod
	if d.Migration().Receives {
		return receivedImage(d, image)
	}
	reference := image.reference
	for _, v := range source.Spec.Volumes {
		if v.Name == image.volume && v.Image != nil && strings.Contains(v.Image.Reference, digestMark) {
			reference = v.Image.Reference
		}
	}
	reported, found := reportedImageID(source, imageContainerPrefix+image.volume)
	if digest := digestPattern.FindStringSubmatch(reported); digest != nil {
		return withoutTag(image.reference) + digestMark + digest[1], nil
	}
	if strings.Contains(reference, digestMark) || (!found && skipsDigest(d.VMI())) {
		return reference, nil
	}
	if !found || reported == "" {
		return "", &render.Error{
			Field: image.field, Reason: fmt.Sprintf("pod %q does not report the digest of image %q", source.Name, image.reference),
			Remedy: "wait for the report, or reference the image by digest", Err: render.ErrMissingFact,
		}
	}
	return "", render.Invalid(image.field, fmt.Sprintf("pod %q reports image ID %q of image %q without a sha256 digest",
		source.Name, reported, image.reference), "reference the image by digest")
}

// receivedImage returns the image reference of a VMI from another cluster. Its digest there is unknown, and a guest that
// finds other bytes below its writes loses its disk.
func receivedImage(d *render.Draft, image diskImage) (string, error) {
	if strings.Contains(image.reference, digestMark) || skipsDigest(d.VMI()) {
		return image.reference, nil
	}
	return "", render.Invalid(image.field, fmt.Sprintf("the source's digest of image %q is unknown", image.reference),
		"reference the image by digest on both sides, or annotate the VMI with "+skipDigestAnnotation+"=true if the tag never moves")
}

func reportedImageID(pod *corev1.Pod, container string) (id string, found bool) {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range statuses {
			if statuses[i].Name == container {
				id, found = statuses[i].ImageID, true
			}
		}
	}
	return id, found
}

// withoutTag removes tag and digest of an image reference. A colon before the last slash belongs to a port.
func withoutTag(reference string) string {
	reference, _, _ = strings.Cut(reference, "@")
	if colon := strings.LastIndex(reference, ":"); colon > strings.LastIndex(reference, "/") {
		return reference[:colon]
	}
	return reference
}
