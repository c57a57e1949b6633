// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi/validate"
)

// rules lists the checks of a new VMI that depend on who creates it. Those of its spec are in package validate.
var rules = []rule{
	{"reserved-labels", checkReservedLabels},
	{"reserved-annotations", checkReservedAnnotations},
	{"new-status", checkNewStatus},
}

const reservedReason = "is reserved for the control plane"

func checkReservedLabels(k *checker) {
	k.unreserved(atLabels, k.vmi.Labels, ReservedOfVMIs().Labels, "remove the label")
}

func checkReservedAnnotations(k *checker) {
	k.unreserved(atAnnotations, k.vmi.Annotations, k.reservedAnnotations(), "remove the annotation")
}

// reservedAnnotations returns the reserved keys of every cluster and of this one.
func (k *checker) reservedAnnotations() []string {
	return append(ReservedOfVMIs().Annotations, k.config.ReservedAnnotations...)
}

// unreserved reports reserved keys that a user sets on a new VMI.
func (k *checker) unreserved(at *field.Path, has map[string]string, reserved []string, remedy string) {
	if k.config.Request.Privileged {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(has)) {
		if reserves(reserved, key) {
			k.forbidden(at.Key(key), reservedReason, remedy)
		}
	}
}

// checkNewStatus rejects a status with the history of another VMI. It accepts the status that the defaults set.
func checkNewStatus(k *checker) {
	if k.config.Request.Privileged {
		return
	}
	at, rest := field.NewPath("status"), k.vmi.Status.DeepCopy()
	if p := rest.Phase; p != v1.VmPhaseUnset && p != v1.Pending {
		k.invalid(at.Child("phase"), p, "is not supported for a new VMI", "remove the status")
	}
	for i, t := range rest.PhaseTransitionTimestamps {
		if t.Phase != v1.Pending {
			k.invalid(at.Child("phaseTransitionTimestamps").Index(i).Child("phase"), t.Phase, "is not supported for a new VMI", "remove the status")
		}
	}
	if u := rest.RuntimeUser; u != 0 && (u != runtimeUser || k.config.gateEnabled(validate.Root)) {
		k.invalid(at.Child("runtimeUser"), u, "is not the runtime user of this cluster", "remove the status")
	}
	rest.Phase, rest.PhaseTransitionTimestamps, rest.RuntimeUser = "", nil, 0
	if !equality.Semantic.DeepEqual(*rest, v1.VirtualMachineInstanceStatus{}) {
		k.forbidden(at, "is reserved for the control plane: "+strings.Join(fieldsOf(rest), ", "), "remove the status")
	}
}

// fieldsOf returns the names of the fields that are set in a status.
func fieldsOf(st *v1.VirtualMachineInstanceStatus) []string {
	fields := map[string]any{}
	text, err := json.Marshal(st)
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	if err != nil {
		return []string{err.Error()}
	}
	maps.DeleteFunc(fields, func(_ string, value any) bool { // fields without omitempty
		m, isMap := value.(map[string]any)
		return value == float64(0) || isMap && len(m) == 0
	})
	return slices.Sorted(maps.Keys(fields))
}
