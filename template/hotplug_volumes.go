// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// hotplugVolume is a volume of a hotplug Pod.
type hotplugVolume struct {
	name  string
	at    string // path of the volume in the VMI
	field string // path of its claim's name
	claim *corev1.PersistentVolumeClaim
}

// hotplugVolumes returns the volumes of Input.Hotplug in order, without duplicates. It reports all faults.
func hotplugVolumes(d *render.Draft) (all []hotplugVolume, err error) {
	var errs []error
	for i, name := range d.Input().Hotplug.Volumes {
		if slices.ContainsFunc(all, func(p hotplugVolume) bool { return p.name == name }) {
			continue
		}
		p, err := findHotplugVolume(d, fmt.Sprintf("Input.Hotplug.Volumes[%d]", i), name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, p)
	}
	return all, errors.Join(errs...)
}

func findHotplugVolume(d *render.Draft, asked, name string) (hotplugVolume, error) {
	found := namedVolumes(&d.VMI().Spec, name)
	switch {
	case len(found) == 0:
		return hotplugVolume{}, render.Invalid(asked, fmt.Sprintf("the VMI has no volume %q", name), "use volumes of spec.volumes or spec.utilityVolumes")
	case len(found) > 1:
		return hotplugVolume{}, render.Invalid(found[1].at+".name", fmt.Sprintf("%q is a duplicate of %s", name, found[0].at), "use unique volume names")
	}
	v := found[0]
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return hotplugVolume{}, render.Invalid(v.at+".name", fmt.Sprintf("%q: %s", name, problems[0]), "use lower case letters, digits and dashes")
	}
	if name == hotplugFolder {
		return hotplugVolume{}, render.Invalid(v.at+".name", fmt.Sprintf("%q is reserved for the Pod", name), "use another name")
	}
	if v.field == "" {
		return hotplugVolume{}, render.Invalid(v.at, "cannot be hotplugged without a claim",
			"hotplug volumes with dataVolume, persistentVolumeClaim or memoryDump")
	}
	if v.claimName == "" {
		return hotplugVolume{}, render.Invalid(v.field, "must be set", "set the source of the volume")
	}
	claim := d.Facts().Claims[v.claimName]
	if claim == nil || claim.UID == "" {
		return hotplugVolume{}, &render.Error{
			Field: v.field, Reason: fmt.Sprintf("claim %q not found", v.claimName),
			Remedy: "create the PersistentVolumeClaim in the namespace of the VMI", Err: render.ErrMissingFact,
		}
	}
	return hotplugVolume{name: name, at: v.at, field: v.field, claim: claim}, nil
}

// namedVolume is a volume of a VMI with the name in question.
type namedVolume struct{ at, field, claimName string }

func namedVolumes(spec *v1.VirtualMachineInstanceSpec, name string) (found []namedVolume) {
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		if v.Name != name {
			continue
		}
		n := namedVolume{at: fmt.Sprintf("spec.volumes[%d]", i)}
		switch {
		case v.PersistentVolumeClaim != nil:
			n.field, n.claimName = n.at+".persistentVolumeClaim.claimName", v.PersistentVolumeClaim.ClaimName
		case v.DataVolume != nil:
			n.field, n.claimName = n.at+".dataVolume.name", v.DataVolume.Name
		case v.MemoryDump != nil:
			n.field, n.claimName = n.at+".memoryDump.claimName", v.MemoryDump.ClaimName
		}
		found = append(found, n)
	}
	for i := range spec.UtilityVolumes {
		if v := &spec.UtilityVolumes[i]; v.Name == name {
			at := fmt.Sprintf("spec.utilityVolumes[%d]", i)
			found = append(found, namedVolume{at: at, field: at + ".claimName", claimName: v.ClaimName})
		}
	}
	return found
}

// put adds the volume to the Pod.
func (p hotplugVolume) put(d *render.Draft) {
	d.From(p.field).Volume(corev1.Volume{Name: p.name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: p.claim.Name},
	}})
}
