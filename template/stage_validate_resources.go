// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

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

// checkMemory rejects invalid memory sizes and resources that no container can have.
func checkMemory(domain *v1.DomainSpec) (errs []error) {
	if m := domain.Memory; m != nil {
		if m.Guest != nil && m.Guest.IsZero() {
			errs = append(errs, invalid(fieldGuest, m.Guest.String()+" must be a positive size", "use a size such as 1Gi"))
		}
		if m.Hugepages != nil {
			// The string becomes part of a resource name.
			errs = append(errs, checkAsked(fieldPage, corev1.ResourceName(corev1.ResourceHugePagesPrefix+m.Hugepages.PageSize))...)
		}
	}
	asked := &domain.Resources
	for _, name := range sortedKeys(asked.Requests) {
		q := asked.Requests[name]
		errs = append(errs, checkAsked(requestField(name), name)...)
		if limit := asked.Limits[name]; !limit.IsZero() && q.Cmp(limit) > 0 {
			errs = append(errs, invalid(requestField(name), q.String()+" must not exceed the limit of "+limit.String(), "increase the limit, or reduce the request"))
		}
	}
	for _, name := range sortedKeys(asked.Limits) {
		errs = append(errs, checkAsked(limitField(name), name)...)
	}
	return append(errs, checkFixed(asked)...)
}

// checkFixed rejects fractions of resources that cannot be overcommitted, which are all but the standard ones, and requests
// of them that differ from the limit.
func checkFixed(asked *v1.ResourceRequirements) (errs []error) {
	for _, name := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(sortedKeys(asked.Requests), sortedKeys(asked.Limits))))) {
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
			continue
		}
		request, requested := asked.Requests[name]
		limit, limited := asked.Limits[name]
		switch {
		case strings.HasPrefix(string(name), devicePrefix):
			field := limitField(name)
			if requested {
				field = requestField(name)
			}
			errs = append(errs, invalid(field, "is reserved for the launcher", "remove it"))
		case requested && (!limited || request.Cmp(limit) != 0):
			errs = append(errs, invalid(requestField(name), request.String()+" must be equal to the limit", "set the limit to the same amount"))
		case resource.NewQuantity(limit.Value(), limit.Format).Cmp(limit) != 0:
			errs = append(errs, invalid(limitField(name), limit.String()+" must be a whole number", "use a whole number"))
		}
	}
	return errs
}

// checkAsked rejects a resource that no container can have.
func checkAsked(field string, name corev1.ResourceName) (errs []error) {
	standard := name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage
	if !standard {
		if problems := labelKey(string(name)); len(problems) > 0 {
			errs = append(errs, invalid(field, fmt.Sprintf("%q must be a valid resource name: %s", name, problems[0]), "use a name such as memory"))
		} else if !strings.Contains(string(name), "/") && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			errs = append(errs, invalid(field, fmt.Sprintf("%q is not a container resource", name), "use cpu, memory, ephemeral-storage, hugepages-SIZE, or a device such as example.com/card"))
		}
	}
	return errs
}

// largest returns the maximum of a resource, and its text.
func largest(name corev1.ResourceName) (int64, string) {
	if name == corev1.ResourceCPU {
		return maxCPUs, maxCPUsText
	}
	return maxBytes, maxBytesText
}

// checkCPU rejects CPUs that no container can have.
func checkCPU(domain *v1.DomainSpec) (errs []error) {
	if io := domain.IOThreads; io != nil && io.SupplementalPoolThreadCount != nil && *io.SupplementalPoolThreadCount > maxCPUs {
		errs = append(errs, invalid(fieldThreads, fmt.Sprintf("%d exceeds the maximum of "+maxCPUsText, *io.SupplementalPoolThreadCount), "use fewer threads"))
	}
	cpu := domain.CPU
	if cpu == nil {
		return errs
	}
	if vCPUs(cpu) > maxCPUs {
		errs = append(errs, invalid(fieldCPU, fmt.Sprintf("%d sockets of %d cores of %d threads exceed the maximum of "+maxCPUsText+" CPUs",
			cpu.Sockets, cpu.Cores, cpu.Threads), "use a smaller topology"))
	}
	if cpu.DedicatedCPUPlacement && vCPUs(cpu) == 0 {
		errs = append(errs, checkDedicated(&domain.Resources)...)
	}
	if cpu.IsolateEmulatorThread && !cpu.DedicatedCPUPlacement {
		errs = append(errs, invalid("spec.domain.cpu.isolateEmulatorThread", "requires dedicated CPUs", "set dedicatedCpuPlacement as well"))
	}
	for i, f := range cpu.Features {
		if f.Name == "" {
			errs = append(errs, invalid(fmt.Sprintf("spec.domain.cpu.features[%d].name", i), "must be set", "set the name of the CPU feature"))
		}
	}
	return errs
}

// checkDedicated rejects dedicated CPUs that the node would not assign: it assigns whole CPUs with equal request and limit
// only.
func checkDedicated(asked *v1.ResourceRequirements) (errs []error) {
	request, limit := asked.Requests.Cpu(), asked.Limits.Cpu()
	if !request.IsZero() && !limit.IsZero() && request.Cmp(*limit) < 0 {
		errs = append(errs, invalid(requestField(corev1.ResourceCPU), "dedicated CPUs must be equal to the limit of "+limit.String(),
			"use the same amount, or set a topology in spec.domain.cpu"))
	}
	if q := slices.MaxFunc([]*resource.Quantity{request, limit}, func(a, b *resource.Quantity) int { return a.Cmp(*b) }); q.MilliValue()%1000 != 0 {
		errs = append(errs, invalid(requestField(corev1.ResourceCPU), q.String()+" dedicated CPUs must be a whole number",
			"use a whole number, or set a topology in spec.domain.cpu"))
	}
	return errs
}

// tooLarge returns the error of the first amount of a container that is negative or above the maximum, with the source of
// its largest term.
func tooLarge(kind string, amounts map[corev1.ResourceName]Calculation) *Error {
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
	return invalid(culprit(&a), fmt.Sprintf("results in a %s of %s of %s, which must be between 0 and %s", kind, worst, a.Quantity.String(), text),
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
func firstError(lists ...[]error) *Error {
	for _, errs := range lists {
		for _, err := range errs {
			var e *Error
			if errors.As(err, &e) {
				return e
			}
		}
	}
	return nil
}
