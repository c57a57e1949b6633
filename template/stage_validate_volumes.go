// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// checkStorage returns the faults of volumes, file systems and credentials: those that the API server would reject in the
// Pod, and names that collide.
func checkStorage(d *render.Draft) []error {
	var f faults
	for i := range d.VMI().Spec.Volumes {
		at := elementOf(vmiVolumes, i)
		checkVolumeReferences(&f, at, &d.VMI().Spec.Volumes[i])
		checkContainerPath(&f, at+".containerPath", d.VMI(), &d.VMI().Spec.Volumes[i])
	}
	checkImages(&f, d.VMI())
	checkImageNames(&f, d)
	checkCloudInitNames(&f, d.VMI().Spec.Volumes)
	checkMetrics(&f, d.VMI().Spec.Volumes)
	checkUtilityVolumes(&f, &d.VMI().Spec)
	checkFilesystems(&f, d.VMI())
	for i := range d.VMI().Spec.AccessCredentials {
		checkCredential(&f, elementOf(vmiCredentials, i), &d.VMI().Spec.AccessCredentials[i])
	}
	return f
}

// checkVolumeReferences reports volumes without a reference to an object.
func checkVolumeReferences(f *faults, at string, v *v1.Volume) {
	named := func(field, name string) {
		if name == "" {
			f.add(at+"."+field, "must be set", "set the source of the volume")
		}
	}
	s := &v.VolumeSource
	if s.ConfigMap != nil {
		named("configMap.name", s.ConfigMap.Name)
	}
	if s.Secret != nil {
		named("secret.secretName", s.Secret.SecretName)
	}
	switch {
	case s.Sysprep == nil:
	case s.Sysprep.Secret != nil:
		named("sysprep.secret.name", s.Sysprep.Secret.Name)
	case s.Sysprep.ConfigMap != nil:
		named("sysprep.configMap.name", s.Sysprep.ConfigMap.Name)
	}
	for _, seed := range seedsOf(v) {
		named(seed.field, seed.secret)
	}
	if s.DownwardAPI != nil {
		checkDownwardFields(f, at+".downwardAPI", s.DownwardAPI)
	}
}

func checkDownwardFields(f *faults, at string, source *v1.DownwardAPIVolumeSource) {
	seen := map[string]bool{}
	for i := range source.Fields {
		file, field := &source.Fields[i], elementOf(at+".fields", i)
		switch {
		case file.Path == "" || path.IsAbs(file.Path) || path.Clean(file.Path) != file.Path || file.Path == ".." || strings.HasPrefix(file.Path, "../"):
			f.add(field+".path", fmt.Sprintf("%q must be a clean relative path", file.Path), "use the name of a file in the volume, such as labels")
		case seen[file.Path]:
			f.add(field+".path", fmt.Sprintf("%q is a duplicate", file.Path), "use unique file names")
		case (file.FieldRef == nil) == (file.ResourceFieldRef == nil):
			f.add(field, "must specify either fieldRef or resourceFieldRef", "keep one of them")
		}
		seen[file.Path] = true
	}
}

func checkContainerPath(f *faults, at string, vmi *v1.VirtualMachineInstance, v *v1.Volume) {
	c := v.ContainerPath
	if c == nil {
		return
	}
	if !path.IsAbs(c.Path) || path.Clean(c.Path) != c.Path {
		f.add(at+".path", fmt.Sprintf("%q must be a clean absolute path", c.Path), "use a path of the compute container, without .. and without a slash at its end")
	}
	if c.ReadOnly != nil && !*c.ReadOnly {
		f.add(at+".readOnly", "must be true", "set it to true: the guest must not change the launcher's files")
	}
	if !sharedVolumes(vmi)[v.Name] {
		f.add(at, "requires a file system", "add a file system named "+v.Name+" to "+vmiFilesystems)
	}
}

// checkImages reports images that are invalid for a container.
func checkImages(f *faults, vmi *v1.VirtualMachineInstance) {
	for _, image := range diskImages(vmi) {
		if strings.TrimSpace(image.reference) != image.reference {
			f.add(image.field, fmt.Sprintf("%q must not begin or end with white space", image.reference), "remove it")
		}
		f.oneOf(image.field+"PullPolicy", string(image.pullPolicy), pullPolicies...)
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

func checkMetrics(f *faults, volumes []v1.Volume) {
	first := -1
	for i := range volumes {
		switch {
		case volumes[i].DownwardMetrics == nil:
		case first < 0:
			first = i
		default:
			f.add(elementOf(vmiVolumes, i)+".downwardMetrics", fmt.Sprintf("is a duplicate of volumes[%d]", first), "keep one of them")
		}
	}
}

func checkUtilityVolumes(f *faults, spec *v1.VirtualMachineInstanceSpec) {
	taken := map[string]bool{}
	for i := range spec.Volumes {
		taken[spec.Volumes[i].Name] = true
	}
	for i := range spec.UtilityVolumes {
		v, at := &spec.UtilityVolumes[i], elementOf("spec.utilityVolumes", i)
		f.text(at+".name", v.Name, validation.IsDNS1123Label, useDNSLabel)
		if taken[v.Name] {
			f.add(at+".name", fmt.Sprintf("%q is a duplicate of another volume", v.Name), "use unique volume names")
		}
		if v.ClaimName == "" {
			f.add(at+".claimName", "must be set", "set the claim of the volume")
		}
		taken[v.Name] = true
	}
}

// foldersOfImage are the folders of the launcher's image that a volume would hide from its virtiofs process.
var foldersOfImage = []string{
	"bin", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "tmp", "usr", "var", "virtiofs-data",
}

func checkFilesystems(f *faults, vmi *v1.VirtualMachineInstance) {
	volumes, seen, plugged := map[string]*v1.Volume{}, map[string]int{}, hotpluggedNames(vmi)
	for i := range vmi.Spec.Volumes {
		volumes[vmi.Spec.Volumes[i].Name] = &vmi.Spec.Volumes[i]
	}
	for i := range vmi.Spec.Domain.Devices.Filesystems {
		fs, at := &vmi.Spec.Domain.Devices.Filesystems[i], elementOf(vmiFilesystems, i)
		if first, ok := seen[fs.Name]; ok {
			f.add(at+".name", fmt.Sprintf("%q is a duplicate of filesystems[%d]", fs.Name, first), "share every volume once")
		}
		seen[fs.Name] = i
		if fs.Virtiofs == nil {
			f.add(at+".virtiofs", "must be set", "set it to {}")
		}
		if v := volumes[fs.Name]; v == nil {
			f.add(at+".name", fmt.Sprintf("volume %q is not defined", fs.Name), "add the volume to spec.volumes or remove the file system")
		} else {
			checkShared(f, at+".name", plugged, v)
		}
	}
}

// checkShared reports volumes without files to share.
func checkShared(f *faults, at string, plugged map[string]bool, v *v1.Volume) {
	checkLength(f, at, "container", virtiofsPrefix+v.Name)
	_, config := configSource(v)
	claimed := v.PersistentVolumeClaim != nil || v.DataVolume != nil
	switch {
	case hotplugged(plugged, v):
		f.add(at, fmt.Sprintf("hotplugged volume %q cannot be shared", v.Name), "use a volume that is not hotpluggable")
	case !claimed && config == "" && v.ServiceAccount == nil && v.ContainerPath == nil:
		f.add(at, fmt.Sprintf("volume %q cannot be shared", v.Name),
			"use a persistentVolumeClaim, dataVolume, configMap, secret, downwardAPI, serviceAccount or containerPath volume")
	case claimed && slices.Contains(foldersOfImage, v.Name):
		f.add(at, fmt.Sprintf("volume %q would hide the folder /%s of the launcher's image", v.Name, v.Name), "rename the volume")
	}
}

func checkCredential(f *faults, at string, c *v1.AccessCredential) {
	sources := credentialsOf(c)
	if len(sources) == 0 {
		f.add(at, "must specify a source", "set sshPublicKey or userPassword")
	}
	for _, s := range sources {
		field := at + "." + s.kind + ".source.secret"
		switch {
		case s.secret == nil:
			f.add(field, "must be set", "set the Secret")
		case s.secret.SecretName == "":
			f.add(field+".secretName", "must be set", "set the name of the Secret")
		default:
			if problems := validation.IsDNS1123Label(credentialVolume(s.secret.SecretName)); len(problems) > 0 {
				f.add(field+".secretName", fmt.Sprintf("results in the volume name %q: %s", credentialVolume(s.secret.SecretName), problems[0]),
					"rename the Secret: use at most 51 lower case letters, digits and dashes")
			}
		}
	}
}
