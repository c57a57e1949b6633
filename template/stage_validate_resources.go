// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vmi/validate"
)

const (
	maxBytes     = validate.MaxBytes
	maxBytesText = "1Ei"
	maxCPUs      = validate.MaxCPUs
	maxCPUsText  = "1048576"

	fieldRequests      = "spec.domain.resources.requests"
	fieldLimits        = "spec.domain.resources.limits"
	fieldMemoryRequest = fieldRequests + ".memory"
	fieldReserved      = "spec.domain.memory.reservedOverhead.addedOverhead"
	fieldOverheadRatio = "Config.AdditionalGuestMemoryOverheadRatio"
)

// requestField and limitField return the field of a VMI with the request or limit of a resource.
func requestField(name corev1.ResourceName) string { return resourceField(fieldRequests, name) }

func limitField(name corev1.ResourceName) string { return resourceField(fieldLimits, name) }

func resourceField(list string, name corev1.ResourceName) string {
	if name == corev1.ResourceCPU || name == corev1.ResourceMemory {
		return list + "." + string(name)
	}
	return list + "[" + string(name) + "]"
}

// largest returns the maximum of a resource, and its text.
func largest(name corev1.ResourceName) (int64, string) {
	if name == corev1.ResourceCPU {
		return maxCPUs, maxCPUsText
	}
	return maxBytes, maxBytesText
}

// tooLarge returns the error of the first amount of a container that is negative or above the maximum, with the source of
// its largest term.
func tooLarge(kind string, amounts map[corev1.ResourceName]Calculation) *render.Error {
	var worst corev1.ResourceName
	for name, a := range amounts {
		most, _ := largest(name)
		if (a.Quantity.Sign() < 0 || a.Quantity.CmpInt64(most) > 0) && (worst == "" || name < worst) {
			worst = name
		}
	}
	if worst == "" {
		return nil
	}
	a := amounts[worst]
	_, text := largest(worst)
	return render.Invalid(culprit(&a), fmt.Sprintf("results in a %s of %s of %s, which must be between 0 and %s", kind, worst, a.Quantity.String(), text),
		"use a size that a node can have")
}

// culprit returns the source of the largest term with the sign of the sum.
func culprit(a *Calculation) string {
	from, sign := "spec.domain", a.Quantity.Sign()
	var most resource.Quantity
	for _, t := range a.Terms {
		if t.From != "" && t.Amount.Sign() == sign && t.Amount.Cmp(most)*sign > 0 {
			from, most = t.From, t.Amount
		}
	}
	field, _, _ := strings.Cut(from, ", ")
	return field
}

// firstError returns the first of the faults that checks have found.
func firstError(lists ...[]error) *render.Error {
	for _, errs := range lists {
		for _, err := range errs {
			var e *render.Error
			if errors.As(err, &e) {
				return e
			}
		}
	}
	return nil
}
