// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vmi/validate"
)

// validateVMI rejects a VMI that cannot be rendered: by the rules that all its readers share, and since the names of its Pod
// would be invalid or collide. It reports all faults, not only the first.
func validateVMI(d *render.Draft) error {
	f := faults(render.Refused(validate.Structure(d.VMI())))
	f = append(f, render.Refused(validate.Metadata(d.VMI()))...)
	checkVolumeNames(&f, d)
	checkNodeLabels(&f, d)
	return errors.Join(f...)
}

// checkVolumeNames reports names of volumes that result in invalid names in the Pod.
func checkVolumeNames(f *faults, d *render.Draft) {
	for i := range d.VMI().Spec.Volumes {
		if name := d.VMI().Spec.Volumes[i].Name; slices.Contains(reservedVolumes, name) {
			f.add(elementOf(vmiVolumes, i)+".name", fmt.Sprintf("%q is reserved for the launcher", name), "use another name")
		}
	}
	checkImageNames(f, d)
	checkCloudInitNames(f, d.VMI().Spec.Volumes)
	checkSharedNames(f, d.VMI())
	for i := range d.VMI().Spec.AccessCredentials {
		checkCredentialNames(f, elementOf(vmiCredentials, i), &d.VMI().Spec.AccessCredentials[i])
	}
}

// checkImageNames checks the names of the containers of images. Without image volumes, each image has two.
func checkImageNames(f *faults, d *render.Draft) {
	suffixes := []string{"", "-init"}
	if d.Config().GateEnabled(gateImageVolume) {
		suffixes = suffixes[:1]
		if !asksForDigests(d) {
			return
		}
	}
	owners := map[string]string{}
	for _, image := range diskImages(d.VMI()) {
		field, named := strings.CutSuffix(image.field, ".containerDisk.image")
		if named {
			field += ".name"
		}
		for _, suffix := range suffixes {
			name := imageContainerPrefix + image.volume + suffix
			checkLength(f, field, "container", name)
			if other := owners[name]; other != "" {
				f.add(field, fmt.Sprintf("container name %q is a duplicate of that of %s", name, other), "rename one of the volumes")
			}
			owners[name] = image.field
		}
	}
}

func checkCloudInitNames(f *faults, volumes []v1.Volume) {
	for i := range volumes {
		for _, seed := range seedsOf(&volumes[i]) {
			checkLength(f, elementOf(vmiVolumes, i)+".name", "volume", volumes[i].Name+seed.suffix)
		}
	}
}

// checkLength reports names that exceed the maximum with their prefix and suffix.
func checkLength(f *faults, field, kind, name string) {
	if over := len(name) - validation.DNS1123LabelMaxLength; over > 0 {
		f.add(field, fmt.Sprintf("results in the %s name %q, which exceeds the maximum of %d characters", kind, name, validation.DNS1123LabelMaxLength),
			fmt.Sprintf("shorten the name by %d", over))
	}
}

// foldersOfImage are the folders of the launcher's image that a volume would hide from its virtiofs process.
var foldersOfImage = []string{
	"bin", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "tmp", "usr", "var", "virtiofs-data",
}

// checkSharedNames reports names of file systems that result in invalid containers or mounts.
func checkSharedNames(f *faults, vmi *v1.VirtualMachineInstance) {
	for i := range vmi.Spec.Domain.Devices.Filesystems {
		name := vmi.Spec.Domain.Devices.Filesystems[i].Name
		at := elementOf(vmiFilesystems, i) + ".name"
		checkLength(f, at, "container", virtiofsPrefix+name)
		if slices.Contains(foldersOfImage, name) && slices.ContainsFunc(vmi.Spec.Volumes, func(v v1.Volume) bool {
			return v.Name == name && (v.PersistentVolumeClaim != nil || v.DataVolume != nil)
		}) {
			f.add(at, fmt.Sprintf("volume %q would hide the folder /%s of the launcher's image", name, name), "rename the volume")
		}
	}
}

// checkCredentialNames reports names of Secrets that cannot be part of the name of a volume.
func checkCredentialNames(f *faults, at string, c *v1.AccessCredential) {
	for _, s := range credentialsOf(c) {
		if s.secret == nil || s.secret.SecretName == "" {
			continue // reported by the rules for credentials
		}
		if problems := validation.IsDNS1123Label(credentialVolume(s.secret.SecretName)); len(problems) > 0 {
			f.add(at+"."+s.kind+".source.secret.secretName", fmt.Sprintf("results in the volume name %q: %s", credentialVolume(s.secret.SecretName), problems[0]),
				"rename the Secret: use at most 51 lower case letters, digits and dashes")
		}
	}
}

// checkNodeLabels checks the node selector of the cluster, and names that become part of a node label's name.
func checkNodeLabels(f *faults, d *render.Draft) {
	vmi := d.VMI()
	*f = append(*f, render.Refused(validate.Labels("Config.NodeSelectors", d.Config().NodeSelectors))...)
	label := func(at, prefix, name string) {
		if name != "" && len(validate.LabelKey(prefix+name)) > 0 {
			f.add(at, fmt.Sprintf("results in the invalid node label %q", prefix+name), useLabelValue)
		}
	}
	label("spec.architecture", v1.VMArchLabel, strings.ToLower(vmi.Spec.Architecture))
	f.text("spec.architecture", strings.ToLower(vmi.Spec.Architecture), validate.LabelValue, useLabelValue)
	at := "spec.domain.machine.type"
	if m := vmi.Status.Machine; m != nil && m.Type != "" {
		at = "status.machine.type"
	}
	label(at, v1.SupportedMachineTypeLabel, machineType(vmi))
}
