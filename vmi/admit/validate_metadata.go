// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmirules"
)

var metadataRules = []rule{
	{"reserved-labels", checkReservedLabels},
	{"reserved-annotations", checkReservedAnnotations},
	{"hook-sidecars", checkHookSidecars},
	{"log-filters", checkLogFilters},
	{"mesh", checkMesh},
	{"new-status", checkNewStatus},
}

const (
	istioInject    = "sidecar.istio.io/inject"
	hookSidecars   = "hooks.kubevirt.io/hookSidecars"
	reservedReason = "is reserved for the control plane"
)

func checkReservedLabels(k *checker) {
	k.unreserved(atLabels, k.vmi.Labels, ReservedOfGuests().Labels, "remove the label")
}

func checkReservedAnnotations(k *checker) {
	k.unreserved(atAnnotations, k.vmi.Annotations, k.reservedAnnotations(), "remove the annotation")
}

// reservedAnnotations are those of every cluster, and of this one.
func (k *checker) reservedAnnotations() []string {
	return append(ReservedOfGuests().Annotations, k.config.ReservedAnnotations...)
}

// unreserved reports what a user gives a new guest of what is reserved.
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

func checkHookSidecars(k *checker) {
	text, there := k.vmi.Annotations[hookSidecars]
	if !there {
		return
	}
	at := atAnnotations.Key(hookSidecars)
	var list []map[string]any
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		k.invalid(at, text, "is no JSON list of objects: "+err.Error(), `write one such as [{"image": "registry.example/hook:1"}]`)
	}
}

// checkLogFilters keeps the launcher's arguments what they are.
func checkLogFilters(k *checker) {
	if filters := k.vmi.Annotations[v1.CustomLibvirtLogFiltersAnnotation]; strings.HasPrefix(filters, "--") {
		k.invalid(atAnnotations.Key(v1.CustomLibvirtLogFiltersAnnotation), filters, "reads like an argument of the launcher",
			"use filters of libvirt, such as 3:remote 1:*")
	}
}

func checkMesh(k *checker) {
	if inject, there := k.vmi.Annotations[istioInject]; there {
		k.text(atAnnotations.Key(istioInject), inject, validation.IsValidLabelValue, "use true or false: it becomes a label")
	}
}

// checkNewStatus finds a status that tells of a past a new guest does not have. What the defaults write is no such.
func checkNewStatus(k *checker) {
	if k.config.Request.Privileged {
		return
	}
	at, rest := field.NewPath("status"), k.vmi.Status.DeepCopy()
	if p := rest.Phase; p != v1.VmPhaseUnset && p != v1.Pending {
		k.invalid(at.Child("phase"), p, "is no phase of a new guest", "leave the status out")
	}
	for i, t := range rest.PhaseTransitionTimestamps {
		if t.Phase != v1.Pending {
			k.invalid(at.Child("phaseTransitionTimestamps").Index(i).Child("phase"), t.Phase, "is no phase of a new guest", "leave the status out")
		}
	}
	if u := rest.RuntimeUser; u != 0 && (u != runtimeUser || k.config.GateEnabled(vmirules.Root)) {
		k.invalid(at.Child("runtimeUser"), u, "is not the user of guests in this cluster", "leave the status out")
	}
	rest.Phase, rest.PhaseTransitionTimestamps, rest.RuntimeUser = "", nil, 0
	if !equality.Semantic.DeepEqual(*rest, v1.VirtualMachineInstanceStatus{}) {
		k.forbidden(at, "is written by the control plane alone: "+strings.Join(fieldsOf(rest), ", "), "leave the status out")
	}
}

// fieldsOf are the fields of a status that are set.
func fieldsOf(st *v1.VirtualMachineInstanceStatus) []string {
	fields := map[string]any{}
	text, err := json.Marshal(st)
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	if err != nil {
		return []string{err.Error()}
	}
	maps.DeleteFunc(fields, func(_ string, value any) bool { // what has no omitempty
		m, isMap := value.(map[string]any)
		return value == float64(0) || isMap && len(m) == 0
	})
	return slices.Sorted(maps.Keys(fields))
}
