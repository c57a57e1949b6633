// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmidefaults"
)

var resourceRules = []Rule{
	{"memory", checkMemory, true},
	{"memory", checkMemorySize, false},
	{"hugepages", checkHugepages, true},
	{"hugepages", checkWholePages, false},
	{"max-guest", checkMaxGuest, false},
	{"reserved-overhead", checkReservedOverhead, false},
	{"requests-and-limits", checkRequestsAndLimits, true},
	{"extended-resources", checkExtendedResources, true},
}

// minMemory is libvirt's minimum.
const minMemory = 1 << 20

// size reports an amount of memory that is too small for any domain.
func (k *checker) size(at *fieldPath, q *resource.Quantity) {
	if q.Sign() >= 0 && q.CmpInt64(minMemory) < 0 {
		k.invalid(at, brief(q.String()), "is too small", fmt.Sprintf("use at least %s", resource.NewQuantity(minMemory, resource.BinarySI)))
	}
}

func checkMemory(k *checker) {
	if m := k.domain.Memory; m != nil && m.Guest != nil && m.Guest.IsZero() {
		k.size(atMemory.child("guest"), m.Guest)
	}
}

// memoryPath returns the field that determines the VMI's memory.
func (k *checker) memoryPath() *fieldPath {
	switch {
	case k.domain.Memory != nil && k.domain.Memory.Guest != nil:
		return atMemory.child("guest")
	case !k.domain.Resources.Requests.Memory().IsZero():
		return atResources.child("requests.memory")
	case !k.domain.Resources.Limits.Memory().IsZero():
		return atResources.child("limits.memory")
	default:
		return atMemory.child("hugepages.pageSize")
	}
}

func checkMemorySize(k *checker) {
	guest := vmidefaults.MemoryOf(k.domain)
	if guest == nil {
		k.required(atMemory.child("guest"), "memory must be set", "set it, or "+atResources.child("requests.memory").String())
		return
	}
	if !guest.IsZero() { // otherwise reported by checkMemory
		k.size(k.memoryPath(), guest)
	}
	if limit := k.domain.Resources.Limits.Memory(); !limit.IsZero() && guest.Cmp(*limit) > 0 {
		k.invalid(k.memoryPath(), brief(guest.String()), "must not exceed the memory limit of "+limit.String(), "increase the limit, or reduce the memory")
	}
}

// pageSize returns the size of huge pages, and its text; nil without huge pages and for sizes that [Values] reports.
func (k *checker) pageSize() (page *resource.Quantity, text string) {
	if k.domain.Memory == nil || k.domain.Memory.Hugepages == nil {
		return nil, ""
	}
	text = k.domain.Memory.Hugepages.PageSize
	size, err := resource.ParseQuantity(text)
	if err != nil || size.Sign() <= 0 || size.CmpInt64(MaxBytes) > 0 {
		return nil, ""
	}
	return &size, text
}

// checkHugepages rejects a page size that cannot be part of the name of a resource.
func checkHugepages(k *checker) {
	if page, text := k.pageSize(); page != nil {
		k.text(atMemory.child("hugepages.pageSize"), corev1.ResourceHugePagesPrefix+text, LabelKey, "use a page size of the nodes, such as 2Mi or 1Gi")
	}
}

func checkWholePages(k *checker) {
	page, text := k.pageSize()
	if page == nil {
		return
	}
	guest := vmidefaults.MemoryOf(k.domain)
	if guest != nil && guest.Value()%page.Value() != 0 {
		k.invalid(k.memoryPath(), brief(guest.String()), "must be a multiple of the page size "+text, "change it to a multiple")
	}
	if request := k.domain.Resources.Requests.Memory(); guest != nil && !request.IsZero() && request.Cmp(*guest) < 0 {
		k.invalid(atResources.child("requests.memory"), brief(request.String()), "must not be below the guest memory with huge pages",
			"set it to "+guest.String()+", or remove it")
	}
}

func checkMaxGuest(k *checker) {
	guest := vmidefaults.MemoryOf(k.domain)
	if k.domain.Memory == nil || k.domain.Memory.MaxGuest == nil || guest == nil {
		return
	}
	most, at := k.domain.Memory.MaxGuest, atMemory.child("maxGuest")
	k.size(at, most)
	if most.Cmp(*guest) < 0 {
		k.invalid(at, brief(most.String()), "must not be below the guest memory of "+guest.String(), "increase it, or remove it")
	}
}

func checkReservedOverhead(k *checker) {
	if k.domain.Memory == nil || k.domain.Memory.ReservedOverhead == nil {
		return
	}
	r, at := k.domain.Memory.ReservedOverhead, atMemory.child("reservedOverhead")
	if r.MemLock != nil {
		oneOf(k, at.child("memLock"), *r.MemLock, v1.MemLockRequired, v1.MemLockNotRequired)
	}
}

func atResource(list string, name corev1.ResourceName) *fieldPath {
	if standard(name) && name != corev1.ResourceEphemeralStorage {
		return atResources.child(list).child(string(name))
	}
	return atResources.child(list).key(string(name))
}

// standard reports whether a container's limit of the resource may exceed its request.
func standard(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage
}

func checkRequestsAndLimits(k *checker) {
	r := &k.domain.Resources
	for _, name := range sortedKeys(r.Requests) {
		request, limit := r.Requests[name], r.Limits[name]
		if standard(name) && !limit.IsZero() && request.Cmp(limit) > 0 {
			k.invalid(atResource("requests", name), brief(request.String()), "must not exceed the limit of "+limit.String(), "increase the limit, or reduce the request")
		}
	}
}

// devicePrefix is the prefix of devices that the launcher requests itself.
const devicePrefix = "devices.kubevirt.io/"

// checkExtendedResources rejects amounts of resources that cannot be overcommitted.
func checkExtendedResources(k *checker) {
	r := &k.domain.Resources
	for _, name := range sortedKeys(r.Requests, r.Limits) {
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
		k.text(at, string(name), LabelKey, "use a name such as example.com/card")
		switch {
		case strings.HasPrefix(string(name), devicePrefix):
			k.invalid(at, brief(q.String()), "is reserved for the launcher", "remove it")
		case !strings.Contains(string(name), "/") && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
			k.invalid(at, brief(q.String()), "is not a container resource", "use cpu, memory, ephemeral-storage, hugepages-SIZE or a device such as example.com/card")
		case requested && (!limited || request.Cmp(limit) != 0):
			k.invalid(at, brief(q.String()), "must be equal to the limit", "use the same amount")
		case resource.NewQuantity(q.Value(), q.Format).Cmp(q) != 0:
			k.invalid(at, brief(q.String()), "must be a whole number", "use a whole number")
		}
	}
}
