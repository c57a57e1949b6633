// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
)

// checkStorage finds volumes, file systems and credentials that would make a Pod the API server refuses, or one in which
// two of them cannot be told apart.
func checkStorage(d *Draft) []error {
	var f faults
	for i := range d.vmi.Spec.Volumes {
		at := elementOf(vmiVolumes, i)
		checkVolumeReferences(&f, at, &d.vmi.Spec.Volumes[i])
		checkContainerPath(&f, at+".containerPath", d.vmi, &d.vmi.Spec.Volumes[i])
	}
	checkImages(&f, d.vmi)
	checkImageNames(&f, d)
	checkCloudInitNames(&f, d.vmi.Spec.Volumes)
	checkMetrics(&f, d.vmi.Spec.Volumes)
	checkUtilityVolumes(&f, &d.vmi.Spec)
	checkFilesystems(&f, d.vmi)
	for i := range d.vmi.Spec.AccessCredentials {
		checkCredential(&f, elementOf(vmiCredentials, i), &d.vmi.Spec.AccessCredentials[i])
	}
	return f
}

// checkVolumeReferences finds volumes that name no object.
func checkVolumeReferences(f *faults, at string, v *v1.Volume) {
	named := func(field, name string) {
		if name == "" {
			f.add(at+"."+field, "is empty", "name what the volume is made from")
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
			f.add(field+".path", fmt.Sprintf("%q is no clean relative path", file.Path), "name a file in the volume, such as labels")
		case seen[file.Path]:
			f.add(field+".path", fmt.Sprintf("%q is there twice", file.Path), "give every file its own name")
		case (file.FieldRef == nil) == (file.ResourceFieldRef == nil):
			f.add(field, "needs either fieldRef or resourceFieldRef", "say what the file holds, once")
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
		f.add(at+".path", fmt.Sprintf("%q is no clean absolute path", c.Path), "use a path of the compute container, without .. and without a slash at its end")
	}
	if c.ReadOnly != nil && !*c.ReadOnly {
		f.add(at+".readOnly", "is false", "set it to true: a guest must not change the launcher's files")
	}
	if !sharedVolumes(vmi)[v.Name] {
		f.add(at, "is not shared with the guest", "add a file system named "+v.Name+" to "+vmiFilesystems)
	}
}

// checkImages finds images that no container may have.
func checkImages(f *faults, vmi *v1.VirtualMachineInstance) {
	for _, image := range diskImages(vmi) {
		if strings.TrimSpace(image.reference) != image.reference {
			f.add(image.field, fmt.Sprintf("%q begins or ends with white space", image.reference), "remove it")
		}
		f.oneOf(image.field+"PullPolicy", string(image.pullPolicy), pullPolicies...)
	}
}

// checkImageNames checks the names of the containers that are made for images. Without image volumes there are two for
// each.
func checkImageNames(f *faults, d *Draft) {
	suffixes := []string{"", "-init"}
	if d.config.GateEnabled(gateImageVolume) {
		suffixes = suffixes[:1]
		if !asksForDigests(d) {
			return
		}
	}
	owners := map[string]string{}
	for _, image := range diskImages(d.vmi) {
		field, named := strings.CutSuffix(image.field, ".containerDisk.image")
		if named {
			field += ".name"
		}
		for _, suffix := range suffixes {
			name := imageContainerPrefix + image.volume + suffix
			checkLength(f, field, "container", name)
			if other := owners[name]; other != "" {
				f.add(field, fmt.Sprintf("the container %q of its image is that of %s as well", name, other), "rename one of the volumes")
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

// checkLength finds names that became too long by what was put around them.
func checkLength(f *faults, field, kind, name string) {
	if over := len(name) - validation.DNS1123LabelMaxLength; over > 0 {
		f.add(field, fmt.Sprintf("makes a %s %q, whose name is longer than %d characters", kind, name, validation.DNS1123LabelMaxLength),
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
			f.add(elementOf(vmiVolumes, i)+".downwardMetrics", fmt.Sprintf("volumes[%d] has them already", first), "keep one of them")
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
			f.add(at+".name", fmt.Sprintf("%q is the name of another volume as well", v.Name), "give every volume its own name")
		}
		if v.ClaimName == "" {
			f.add(at+".claimName", "is empty", "name the claim the volume is made from")
		}
		taken[v.Name] = true
	}
}

// foldersOfImage are those of the launcher's image that a volume would hide from the process that shares it.
var foldersOfImage = []string{
	"bin", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "tmp", "usr", "var", "virtiofs-data",
}

func checkFilesystems(f *faults, vmi *v1.VirtualMachineInstance) {
	volumes, seen, plugged := map[string]*v1.Volume{}, map[string]int{}, pluggedNames(vmi)
	for i := range vmi.Spec.Volumes {
		volumes[vmi.Spec.Volumes[i].Name] = &vmi.Spec.Volumes[i]
	}
	for i := range vmi.Spec.Domain.Devices.Filesystems {
		fs, at := &vmi.Spec.Domain.Devices.Filesystems[i], elementOf(vmiFilesystems, i)
		if first, ok := seen[fs.Name]; ok {
			f.add(at+".name", fmt.Sprintf("%q is the name of filesystems[%d] as well", fs.Name, first), "share every volume once")
		}
		seen[fs.Name] = i
		if fs.Virtiofs == nil {
			f.add(at+".virtiofs", "is missing", "set it to {}: file systems are shared by virtiofs")
		}
		if v := volumes[fs.Name]; v == nil {
			f.add(at+".name", fmt.Sprintf("there is no volume %q", fs.Name), "add the volume to spec.volumes or remove the file system")
		} else {
			checkShared(f, at+".name", plugged, v)
		}
	}
}

// checkShared finds volumes that have no files which could be shared.
func checkShared(f *faults, at string, plugged map[string]bool, v *v1.Volume) {
	checkLength(f, at, "container", virtiofsPrefix+v.Name)
	_, config := configSource(v)
	claimed := v.PersistentVolumeClaim != nil || v.DataVolume != nil
	switch {
	case hotplugged(plugged, v):
		f.add(at, fmt.Sprintf("volume %q is plugged into the running guest", v.Name), "share volumes that are there from the start")
	case !claimed && config == "" && v.ServiceAccount == nil && v.ContainerPath == nil:
		f.add(at, fmt.Sprintf("volume %q has no files to share", v.Name),
			"use a persistentVolumeClaim, dataVolume, configMap, secret, downwardAPI, serviceAccount or containerPath volume")
	case claimed && slices.Contains(foldersOfImage, v.Name):
		f.add(at, fmt.Sprintf("volume %q would hide the folder /%s of the launcher's image", v.Name, v.Name), "rename the volume")
	}
}

func checkCredential(f *faults, at string, c *v1.AccessCredential) {
	sources := credentialsOf(c)
	if len(sources) == 0 {
		f.add(at, "has no source", "set sshPublicKey or userPassword")
	}
	for _, s := range sources {
		field := at + "." + s.kind + ".source.secret"
		switch {
		case s.secret == nil:
			f.add(field, "is missing", "name the secret")
		case s.secret.SecretName == "":
			f.add(field+".secretName", "is empty", "name the secret")
		default:
			if problems := validation.IsDNS1123Label(credentialVolume(s.secret.SecretName)); len(problems) > 0 {
				f.add(field+".secretName", fmt.Sprintf("makes a volume %q: %s", credentialVolume(s.secret.SecretName), problems[0]),
					"rename the secret: lower case letters, digits and dashes, at most 51")
			}
		}
	}
}
