// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
)

// plugged is a volume that a hotplug Pod holds.
type plugged struct {
	name  string
	at    string // the volume in the VMI
	field string // what names its claim
	claim *corev1.PersistentVolumeClaim
}

// pluggedVolumes finds the volumes of Input.Hotplug, each once, in the given order. It reports every fault it finds.
func pluggedVolumes(d *Draft) (all []plugged, err error) {
	var errs []error
	for i, name := range d.input.Hotplug.Volumes {
		if slices.ContainsFunc(all, func(p plugged) bool { return p.name == name }) {
			continue
		}
		p, err := pluggedVolume(d, fmt.Sprintf("Input.Hotplug.Volumes[%d]", i), name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, p)
	}
	return all, errors.Join(errs...)
}

func pluggedVolume(d *Draft, asked, name string) (plugged, error) {
	found := namedVolumes(&d.vmi.Spec, name)
	switch {
	case len(found) == 0:
		return plugged{}, invalid(asked, fmt.Sprintf("the guest has no volume %q", name), "name volumes of spec.volumes or spec.utilityVolumes")
	case len(found) > 1:
		return plugged{}, invalid(found[1].at+".name", fmt.Sprintf("%q is the name of %s as well", name, found[0].at), "give every volume its own name")
	}
	v := found[0]
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return plugged{}, invalid(v.at+".name", fmt.Sprintf("%q: %s", name, problems[0]), "use lower case letters, digits and dashes")
	}
	if name == hotplugFolder {
		return plugged{}, invalid(v.at+".name", fmt.Sprintf("%q is used by the Pod itself", name), "choose another name")
	}
	if v.field == "" {
		return plugged{}, invalid(v.at, "is not made from a claim, so it cannot be plugged in",
			"plug in volumes with dataVolume, persistentVolumeClaim or memoryDump")
	}
	if v.claimName == "" {
		return plugged{}, invalid(v.field, "is empty", "name what the volume is made from")
	}
	claim := d.facts.Claims[v.claimName]
	if claim == nil || claim.UID == "" {
		return plugged{}, &Error{
			Field: v.field, Reason: fmt.Sprintf("claim %q is not known", v.claimName),
			Remedy: "create the PersistentVolumeClaim in the namespace of the guest", Err: ErrMissingFact,
		}
	}
	return plugged{name: name, at: v.at, field: v.field, claim: claim}, nil
}

// namedVolume is a place in a VMI that has a volume of the name in question.
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
func (p plugged) put(d *Draft) {
	d.From(p.field).Volume(corev1.Volume{Name: p.name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: p.claim.Name},
	}})
}
