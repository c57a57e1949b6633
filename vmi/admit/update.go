// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"
)

// updateRules are all checks of a change, which look at the guest as it was as well.
var updateRules = []struct {
	name  string
	check func(k *checker, old *v1.VirtualMachineInstance)
}{
	{"spec-unchanged", checkSpecUnchanged},
	{"labels-kept", checkLabelsKept},
	{"annotations-kept", checkAnnotationsKept},
	{"finalizers-kept", checkFinalizersKept},
	{"plugged-volumes", checkPluggedVolumes},
}

// ValidateUpdate finds what may not be changed. Users change labels and annotations that are not the control plane's; the
// spec is what the guest runs by. The control plane (Request.Privileged) changes what it likes, but plugs in only what can be.
func ValidateUpdate(old, updated *v1.VirtualMachineInstance, c Config) field.ErrorList {
	k := &checker{vmi: updated, spec: &updated.Spec, domain: &updated.Spec.Domain, devices: &updated.Spec.Domain.Devices, config: &c,
		arch: c.architecture(&updated.Spec)}
	for _, r := range updateRules {
		r.check(k, old)
	}
	return k.errs
}

func checkSpecUnchanged(k *checker, old *v1.VirtualMachineInstance) {
	if !k.config.Request.Privileged && !equality.Semantic.DeepEqual(old.Spec, *k.spec) {
		k.forbidden(atSpec, "belongs to the control plane once the guest exists", "delete the guest and create it anew, or change its VirtualMachine")
	}
}

func checkLabelsKept(k *checker, old *v1.VirtualMachineInstance) {
	k.kept(atLabels, ReservedOfGuests().Labels, old.Labels, k.vmi.Labels)
}

func checkAnnotationsKept(k *checker, old *v1.VirtualMachineInstance) {
	k.kept(atAnnotations, k.reservedAnnotations(), old.Annotations, k.vmi.Annotations)
}

// checkFinalizersKept finds whether a user lets go of an object whose guest may run.
func checkFinalizersKept(k *checker, old *v1.VirtualMachineInstance) {
	if k.config.Request.Privileged {
		return
	}
	for _, f := range ReservedOfGuests().Finalizers {
		if slices.Contains(old.Finalizers, f) && !slices.Contains(k.vmi.Finalizers, f) {
			k.forbidden(atFinalizers, f+" "+reservedReason, "leave it: it goes once the guest has ended")
		}
	}
}

// kept reports what a user has changed, added or removed of what is reserved.
func (k *checker) kept(at *field.Path, reserved []string, old, updated map[string]string) {
	if k.config.Request.Privileged {
		return
	}
	all := map[string]string{}
	maps.Copy(all, old)
	maps.Copy(all, updated)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		was, before := old[key]
		is, after := updated[key]
		if reserves(reserved, key) && (was != is || before != after) {
			k.forbidden(at.Key(key), reservedReason, "leave it as it is")
		}
	}
}

// checkPluggedVolumes finds volumes that appear in a running guest though they can be there from the start only.
func checkPluggedVolumes(k *checker, old *v1.VirtualMachineInstance) {
	if !k.config.Request.Privileged || old.Status.Phase == v1.VmPhaseUnset {
		return
	}
	for i := range k.spec.Volumes {
		v := &k.spec.Volumes[i]
		known := slices.ContainsFunc(old.Spec.Volumes, func(o v1.Volume) bool { return o.Name == v.Name })
		if !known && !pluggable(v) {
			k.invalid(atVolumes.Index(i), v.Name, "cannot be plugged into a running guest", "use a persistentVolumeClaim or dataVolume with hotpluggable, or restart the guest")
		}
	}
}
