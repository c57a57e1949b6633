// SPDX-License-Identifier: Apache-2.0

package template

import (
	"math"
	"math/bits"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	ephemeralStorageBytes   = 50 * 1000 * 1000
	memoryRatioLabel        = "alpha.kubevirt.io/auto-memory-limits-ratio"
	defaultMemoryLimitRatio = 2.0

	fieldGuest = "spec.domain.memory.guest"
	fieldPage  = "spec.domain.memory.hugepages.pageSize"
)

// memory sets request and limit of memory and hugepages.
func (s *sizing) memory() {
	request := s.guestMemory()
	request.Terms = slices.Grow(request.Terms, len(s.overhead.Terms)+1) // and the hugepages
	limit, limited := s.limits[corev1.ResourceMemory]
	if s.vmi.IsCPUDedicated() {
		limit, limited = request.clone(), true
	}
	hugepages := s.hugepages()
	if hugepages != nil {
		s.moveToHugepages(hugepages, &request, &limit, limited)
	}
	if hugepages != nil || !s.vmi.Spec.Domain.Resources.OvercommitGuestOverhead {
		request.add(s.overhead.Terms...)
	}
	s.requests[corev1.ResourceMemory] = request
	if limited {
		limit.add(s.overhead.Terms...)
		s.limits[corev1.ResourceMemory] = limit
	}
}

func (s *sizing) hugepages() *v1.Hugepages {
	if m := s.vmi.Spec.Domain.Memory; m != nil {
		return m.Hugepages
	}
	return nil
}

// guestMemory returns the request without overhead: that of the VMI, otherwise its limit, otherwise the guest memory,
// otherwise one page. Overcommit applies to the guest memory only, and not to hugepages, which must exist as a whole.
func (s *sizing) guestMemory() Calculation {
	if request, ok := s.requests[corev1.ResourceMemory]; ok {
		return request
	}
	if limit, ok := s.limits[corev1.ResourceMemory]; ok {
		return limit.clone()
	}
	var request Calculation
	m := s.vmi.Spec.Domain.Memory
	switch {
	case m == nil:
	case m.Guest != nil:
		request.add(render.Term{Name: "guest memory", Amount: m.Guest.DeepCopy(), From: fieldGuest})
		if m.Hugepages == nil {
			s.overcommit(&request)
		}
	case m.Hugepages != nil:
		request.add(render.Term{Name: "one page", Amount: pageSize(m.Hugepages), From: fieldPage})
	}
	return request
}

// overcommit reduces the guest memory by the cluster's percentage, rounded down to whole bytes.
func (s *sizing) overcommit(a *Calculation) {
	percent := s.config.MemoryOvercommit
	if percent == 100 {
		return
	}
	guest, scaled := a.Quantity.Value(), int64(math.MaxInt64)
	high, low := bits.Mul64(uint64(guest), 100)
	if high < uint64(percent) {
		if q, _ := bits.Div64(high, low, uint64(percent)); q < math.MaxInt64 {
			scaled = int64(q)
		}
	}
	want := resource.NewQuantity(scaled, a.Quantity.Format)
	a.add(difference("overcommit to "+strconv.Itoa(percent)+"%", want, &a.Quantity, "Config.MemoryOvercommit"))
}

// moveToHugepages transfers the guest memory from request and limit to hugepages. It requests pages for the whole guest, even
// if the VMI requests less: a missing page cannot be paged in.
func (s *sizing) moveToHugepages(h *v1.Hugepages, request, limit *Calculation, limited bool) {
	pages := request.clone()
	if guest := s.vmi.Spec.Domain.Memory.Guest; guest != nil {
		pages = Calculation{}
		pages.add(render.Term{Name: "guest memory", Amount: guest.DeepCopy(), From: fieldGuest})
	}
	name := corev1.ResourceName(corev1.ResourceHugePagesPrefix + h.PageSize)
	s.requests[name], s.limits[name] = pages, pages.clone()
	for _, a := range []*Calculation{request, limit} {
		if a == limit && !limited {
			continue
		}
		moved := a.Quantity.DeepCopy()
		if moved.Cmp(pages.Quantity) > 0 && s.vmi.Spec.Domain.Memory.Guest != nil {
			moved = pages.Quantity.DeepCopy()
		}
		moved.Neg()
		if !moved.IsZero() {
			a.add(render.Term{Name: "in hugepages", Amount: moved, From: fieldPage})
		}
	}
}

// pageSize returns the size of a hugepage, which checkHugepages has validated.
func pageSize(h *v1.Hugepages) resource.Quantity {
	q, err := resource.ParseQuantity(h.PageSize)
	if err != nil {
		return resource.Quantity{}
	}
	return q
}

// autoMemoryLimit limits memory if a quota requires it.
func (s *sizing) autoMemoryLimit() *render.Error {
	if _, limited := s.limits[corev1.ResourceMemory]; limited || !s.quotaLimits(corev1.ResourceLimitsMemory) {
		return nil
	}
	const label = "Facts.NamespaceLabels[" + memoryRatioLabel + "]"
	ratio, from := defaultMemoryLimitRatio, "Facts.Quotas"
	if f, err := strconv.ParseFloat(s.facts.NamespaceLabels[memoryRatioLabel], 64); err == nil && f >= 1 {
		ratio, from = f, label
	}
	request := s.requests[corev1.ResourceMemory]
	product := float64(request.Quantity.Value()) * ratio
	text := strconv.FormatFloat(ratio, 'g', -1, 64)
	if product > maxBytes {
		return render.Invalid(from, "a memory limit of "+text+" times the request exceeds the maximum of "+maxBytesText, "reduce the ratio")
	}
	limit := request.clone()
	want := resource.NewQuantity(int64(product), request.Quantity.Format)
	limit.add(difference("limit of "+text+" times the request", want, &request.Quantity, from))
	s.limits[corev1.ResourceMemory] = limit
	return nil
}
