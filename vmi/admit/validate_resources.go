// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmirules"
)

var resourceRules = []rule{
	{"memory", checkMemory},
	{"hugepages", checkHugepages},
	{"max-guest", checkMaxGuest},
	{"reserved-overhead", checkReservedOverhead},
	{"requests-and-limits", checkRequestsAndLimits},
	{"extended-resources", checkExtendedResources},
}

// minMemory is libvirt's minimum.
const minMemory = 1 << 20

// size reports an amount of memory that is too small for any domain.
func (k *checker) size(at *field.Path, q *resource.Quantity) {
	if q.Sign() >= 0 && q.CmpInt64(minMemory) < 0 {
		k.invalid(at, q.String(), "is too small", fmt.Sprintf("use at least %s", resource.NewQuantity(minMemory, resource.BinarySI)))
	}
}

// memoryPath returns the field that determines the VMI's memory.
func (k *checker) memoryPath() *field.Path {
	switch {
	case k.domain.Memory != nil && k.domain.Memory.Guest != nil:
		return atMemory.Child("guest")
	case !k.domain.Resources.Requests.Memory().IsZero():
		return atResources.Child("requests", "memory")
	case !k.domain.Resources.Limits.Memory().IsZero():
		return atResources.Child("limits", "memory")
	default:
		return atMemory.Child("hugepages", "pageSize")
	}
}

func checkMemory(k *checker) {
	guest := memoryOf(k.domain)
	if guest == nil {
		k.required(atMemory.Child("guest"), "memory must be set", "set it, or "+atResources.Child("requests", "memory").String())
		return
	}
	k.size(k.memoryPath(), guest)
	if limit := k.domain.Resources.Limits.Memory(); !limit.IsZero() && guest.Cmp(*limit) > 0 {
		k.invalid(k.memoryPath(), guest.String(), "must not exceed the memory limit of "+limit.String(), "increase the limit, or reduce the memory")
	}
}

func checkHugepages(k *checker) {
	if k.domain.Memory == nil || k.domain.Memory.Hugepages == nil {
		return
	}
	at, text := atMemory.Child("hugepages", "pageSize"), k.domain.Memory.Hugepages.PageSize
	const remedy = "use a page size of the nodes, such as 2Mi or 1Gi"
	page, err := resource.ParseQuantity(text)
	if err != nil || page.Sign() <= 0 || page.CmpInt64(vmirules.MaxBytes) > 0 {
		return // reported by checkCommon
	}
	k.text(at, corev1.ResourceHugePagesPrefix+text, validation.IsQualifiedName, remedy)
	guest := memoryOf(k.domain)
	if guest != nil && guest.Value()%page.Value() != 0 {
		k.invalid(k.memoryPath(), guest.String(), "must be a multiple of the page size "+text, "change it to a multiple")
	}
	if request := k.domain.Resources.Requests.Memory(); guest != nil && !request.IsZero() && request.Cmp(*guest) < 0 {
		k.invalid(atResources.Child("requests", "memory"), request.String(), "must not be below the guest memory with huge pages",
			"set it to "+guest.String()+", or remove it")
	}
}

func checkMaxGuest(k *checker) {
	guest := memoryOf(k.domain)
	if k.domain.Memory == nil || k.domain.Memory.MaxGuest == nil || guest == nil {
		return
	}
	most, at := k.domain.Memory.MaxGuest, atMemory.Child("maxGuest")
	k.size(at, most)
	if most.Cmp(*guest) < 0 {
		k.invalid(at, most.String(), "must not be below the guest memory of "+guest.String(), "increase it, or remove it")
	}
}

func checkReservedOverhead(k *checker) {
	if k.domain.Memory == nil || k.domain.Memory.ReservedOverhead == nil {
		return
	}
	r, at := k.domain.Memory.ReservedOverhead, atMemory.Child("reservedOverhead")
	if r.MemLock != nil {
		oneOf(k, at.Child("memLock"), *r.MemLock, v1.MemLockRequired, v1.MemLockNotRequired)
	}
}

func sortedNames(lists ...corev1.ResourceList) []corev1.ResourceName {
	all := map[corev1.ResourceName]bool{}
	for _, list := range lists {
		for name := range list {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

func atResource(list string, name corev1.ResourceName) *field.Path {
	if standard(name) && name != corev1.ResourceEphemeralStorage {
		return atResources.Child(list, string(name))
	}
	return atResources.Child(list).Key(string(name))
}

// standard reports whether a container's limit of the resource may exceed its request.
func standard(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage
}

func checkRequestsAndLimits(k *checker) {
	r := &k.domain.Resources
	for _, name := range sortedNames(r.Requests) {
		request, limit := r.Requests[name], r.Limits[name]
		if standard(name) && !limit.IsZero() && request.Cmp(limit) > 0 {
			k.invalid(atResource("requests", name), request.String(), "must not exceed the limit of "+limit.String(), "increase the limit, or reduce the request")
		}
	}
}

// devicePrefix is the prefix of devices that the launcher requests itself.
const devicePrefix = "devices.kubevirt.io/"

// checkExtendedResources rejects amounts of resources that cannot be overcommitted.
func checkExtendedResources(k *checker) {
	r := &k.domain.Resources
	for _, name := range sortedNames(r.Requests, r.Limits) {
		if standard(name) {
			continue
		}
		request, requested := r.Requests[name]
		limit, limited := r.Limits[name]
		list, q := "limits", limit
		if requested {
			list, q = "requests", request
		}
		at := atResource(list, name)
		k.text(at, string(name), validation.IsQualifiedName, "use a name such as example.com/card")
		switch {
		case strings.HasPrefix(string(name), devicePrefix):
			k.invalid(at, q.String(), "is reserved for the launcher", "remove it")
		case !strings.Contains(string(name), "/") && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
			k.invalid(at, q.String(), "is not a container resource", "use cpu, memory, ephemeral-storage, hugepages-SIZE or a device such as example.com/card")
		case requested && (!limited || request.Cmp(limit) != 0):
			k.invalid(at, q.String(), "must be equal to the limit", "use the same amount")
		case q.MilliValue()%1000 != 0:
			k.invalid(at, q.String(), "must be a whole number", "use a whole number")
		}
	}
}
