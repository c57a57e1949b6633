// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmidefaults"
)

// updateRules lists all checks of an update, which compare the VMI with its old version.
var updateRules = []struct {
	name  string
	check func(k *checker, old *v1.VirtualMachineInstance)
}{
	{"spec-unchanged", checkSpecUnchanged},
	{"labels-kept", checkLabelsKept},
	{"annotations-kept", checkAnnotationsKept},
	{"finalizers-kept", checkFinalizersKept},
	{"plugged-volumes", checkHotpluggedVolumes},
}

// ValidateUpdate returns the changes that are forbidden. Users may change labels and annotations that are not reserved; the
// spec is immutable for them. The control plane (Request.Privileged) may change everything, but hotplugs supported volumes
// only.
func ValidateUpdate(old, updated *v1.VirtualMachineInstance, c Config) field.ErrorList {
	k := newChecker(updated, &c)
	for _, r := range updateRules {
		r.check(k, old)
	}
	return k.errs
}

func checkSpecUnchanged(k *checker, old *v1.VirtualMachineInstance) {
	if !k.config.Request.Privileged && !equality.Semantic.DeepEqual(old.Spec, k.vmi.Spec) {
		k.forbidden(atSpec, "is immutable after creation", "recreate the VMI, or change its VirtualMachine")
	}
}

func checkLabelsKept(k *checker, old *v1.VirtualMachineInstance) {
	k.kept(atLabels, ReservedOfVMIs().Labels, old.Labels, k.vmi.Labels)
}

func checkAnnotationsKept(k *checker, old *v1.VirtualMachineInstance) {
	k.kept(atAnnotations, k.reservedAnnotations(), old.Annotations, k.vmi.Annotations)
}

// checkFinalizersKept rejects a user's removal of a finalizer while the domain may run.
func checkFinalizersKept(k *checker, old *v1.VirtualMachineInstance) {
	if k.config.Request.Privileged {
		return
	}
	for _, f := range ReservedOfVMIs().Finalizers {
		if slices.Contains(old.Finalizers, f) && !slices.Contains(k.vmi.Finalizers, f) {
			k.forbidden(atFinalizers, f+" "+reservedReason, "keep the finalizer: the controller removes it after the VMI has ended")
		}
	}
}

// kept reports reserved keys that a user has changed, added or removed.
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
			k.forbidden(at.Key(key), reservedReason, "keep the old value")
		}
	}
}

// checkHotpluggedVolumes rejects volumes that are added to a running VMI without support for hotplug.
func checkHotpluggedVolumes(k *checker, old *v1.VirtualMachineInstance) {
	if !k.config.Request.Privileged || old.Status.Phase == v1.VmPhaseUnset {
		return
	}
	for i := range k.vmi.Spec.Volumes {
		v := &k.vmi.Spec.Volumes[i]
		known := slices.ContainsFunc(old.Spec.Volumes, func(o v1.Volume) bool { return o.Name == v.Name })
		if !known && !vmidefaults.Hotpluggable(v) {
			k.invalid(atVolumes.Index(i), v.Name, "cannot be hotplugged", "use a persistentVolumeClaim or dataVolume with hotpluggable, or restart the VMI")
		}
	}
}
