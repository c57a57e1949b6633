// SPDX-License-Identifier: Apache-2.0

package template

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	v1 "kubevirt.io/api/core/v1"
)

const (
	ephemeralStorageBytes   = 50 * 1000 * 1000
	memoryRatioLabel        = "alpha.kubevirt.io/auto-memory-limits-ratio"
	defaultMemoryLimitRatio = 2.0
)

// sizing is the calculation of the compute container's CPU and memory. What the VMI asks for itself always wins over
// what is calculated.
type sizing struct {
	in       *Draft
	overhead Overhead

	asked, askedLimits           corev1.ResourceList
	calculated, calculatedLimits corev1.ResourceList
}

// resources sets the requests and limits of the compute container, except those of devices.
func resources(d *Draft, calculators []OverheadCalculator) error {
	domain := &d.vmi.Spec.Domain
	s := &sizing{
		in: d, overhead: MemoryOverhead(d.input, calculators...),
		asked: copyOf(domain.Resources.Requests), askedLimits: copyOf(domain.Resources.Limits),
		calculated: corev1.ResourceList{}, calculatedLimits: corev1.ResourceList{},
	}
	s.ephemeralStorage()
	s.memoryRequest()
	if d.vmi.IsCPUDedicated() {
		s.dedicatedCPU()
	} else {
		s.sharedCPU()
	}
	if m := domain.Memory; m != nil && m.Hugepages != nil {
		s.hugepagesMemory(m)
	} else {
		s.plainMemory()
	}
	s.autoMemoryLimit()
	s.write()
	d.Annotation(v1.MemoryOverheadAnnotationBytes, strconv.FormatInt(s.overhead.Bytes, 10))
	return nil
}

func copyOf(l corev1.ResourceList) corev1.ResourceList {
	if l == nil {
		return corev1.ResourceList{}
	}
	return l.DeepCopy()
}

func (s *sizing) write() {
	for _, set := range []struct {
		calculated, asked corev1.ResourceList
		write             func(string, corev1.ResourceName, resource.Quantity)
	}{
		{s.calculated, s.asked, s.in.Request}, {s.calculatedLimits, s.askedLimits, s.in.Limit},
	} {
		for name, q := range set.calculated {
			if _, asked := set.asked[name]; !asked {
				set.write(computeContainer, name, q)
			}
		}
		for name, q := range set.asked {
			set.write(computeContainer, name, q)
		}
	}
}

// ephemeralStorage is what the launcher writes to its emptyDirs besides the guest's own ephemeral disks.
func (s *sizing) ephemeralStorage() {
	own := resource.NewScaledQuantity(ephemeralStorageBytes, 0)
	addTo(s.asked, corev1.ResourceEphemeralStorage, *own)
	if _, limited := s.askedLimits[corev1.ResourceEphemeralStorage]; limited {
		addTo(s.askedLimits, corev1.ResourceEphemeralStorage, *own)
	}
}

func addTo(l corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	sum := l[name]
	sum.Add(q)
	l[name] = sum
}

// memoryRequest fills in a request where the VMI has none: its limit, else the guest's memory, else one page. Overcommit
// applies to the latter two.
func (s *sizing) memoryRequest() {
	if q := s.asked[corev1.ResourceMemory]; !q.IsZero() {
		return
	}
	if q := s.askedLimits[corev1.ResourceMemory]; !q.IsZero() {
		s.asked[corev1.ResourceMemory] = q.DeepCopy()
		return
	}
	m := s.in.vmi.Spec.Domain.Memory
	switch {
	case m == nil:
	case m.Guest != nil:
		s.asked[corev1.ResourceMemory] = s.overcommitted(*m.Guest)
	case m.Hugepages != nil:
		if page, err := resource.ParseQuantity(m.Hugepages.PageSize); err == nil {
			s.asked[corev1.ResourceMemory] = s.overcommitted(page)
		}
	}
}

func (s *sizing) overcommitted(q resource.Quantity) resource.Quantity {
	percent := int64(s.in.config.MemoryOvercommit)
	if percent == defaultMemoryOvercommit {
		return q.DeepCopy()
	}
	// Whole percents first would lose bytes, bytes first may overflow beyond 80 PiB.
	return *resource.NewQuantity(q.Value()*defaultMemoryOvercommit/percent, q.Format)
}

// dedicatedCPU asks for whole CPUs: one per virtual CPU and supplemental I/O thread, one or two for the emulator.
func (s *sizing) dedicatedCPU() {
	cpu := s.in.vmi.Spec.Domain.CPU
	pool := s.supplementalThreads()
	threads := resource.NewQuantity(pool, resource.BinarySI)
	if n := vCPUs(cpu); n != 0 {
		s.asked[corev1.ResourceCPU] = *resource.NewQuantity(n+pool, resource.BinarySI)
		s.askedLimits[corev1.ResourceCPU] = *resource.NewQuantity(n+pool, resource.BinarySI)
	} else {
		addTo(s.asked, corev1.ResourceCPU, *threads)
		addTo(s.askedLimits, corev1.ResourceCPU, *threads)
	}
	if cpu.IsolateEmulatorThread {
		limit := s.askedLimits[corev1.ResourceCPU]
		emulator := int64(1)
		_, even := s.in.vmi.Annotations[v1.EmulatorThreadCompleteToEvenParity]
		if even && (limit.Value()+pool)%2 == 0 {
			emulator = 2
		}
		addTo(s.asked, corev1.ResourceCPU, *resource.NewQuantity(emulator, resource.BinarySI))
		addTo(s.askedLimits, corev1.ResourceCPU, *resource.NewQuantity(emulator, resource.BinarySI))
	}
	if request, ok := s.asked[corev1.ResourceMemory]; ok {
		s.askedLimits[corev1.ResourceMemory] = request.DeepCopy()
	}
}

// sharedCPU asks for a fraction of a CPU per virtual CPU.
func (s *sizing) sharedCPU() {
	total := int64(1)
	if cpu := s.in.vmi.Spec.Domain.CPU; cpu != nil {
		total = vCPUs(cpu)
	}
	total += s.supplementalThreads()
	if total == 0 {
		return
	}
	ratio := int64(s.in.config.CPUAllocationRatio)
	nanos := (total*1e9 + ratio - 1) / ratio
	s.calculated[corev1.ResourceCPU] = *resource.NewScaledQuantity(nanos, resource.Nano)
	if s.limitsCPU() {
		s.calculatedLimits[corev1.ResourceCPU] = *resource.NewQuantity(total, resource.BinarySI)
	}
}

func (s *sizing) supplementalThreads() int64 {
	domain := &s.in.vmi.Spec.Domain
	if domain.IOThreadsPolicy == nil || *domain.IOThreadsPolicy != v1.IOThreadsPolicySupplementalPool ||
		domain.IOThreads == nil || domain.IOThreads.SupplementalPoolThreadCount == nil {
		return 0
	}
	return int64(*domain.IOThreads.SupplementalPoolThreadCount)
}

// limitsCPU tells whether the namespace wants a CPU limit that the VMI does not have.
func (s *sizing) limitsCPU() bool {
	if _, ok := s.askedLimits[corev1.ResourceCPU]; ok {
		return false
	}
	if s.quotaLimits(corev1.ResourceLimitsCPU) {
		return true
	}
	wanted := s.in.config.AutoCPULimitNamespaceLabelSelector
	if wanted == nil {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(wanted)
	return err == nil && s.in.facts.NamespaceLabels != nil && selector.Matches(labels.Set(s.in.facts.NamespaceLabels))
}

func (s *sizing) quotaLimits(name corev1.ResourceName) bool {
	for _, quota := range s.in.facts.Quotas {
		if quota.Namespace != "" && quota.Namespace != s.in.vmi.Namespace {
			continue
		}
		if _, ok := quota.Spec.Hard[name]; ok {
			return true
		}
	}
	return false
}

// plainMemory adds the overhead to ordinary memory.
func (s *sizing) plainMemory() {
	if !s.in.vmi.Spec.Domain.Resources.OvercommitGuestOverhead {
		addTo(s.asked, corev1.ResourceMemory, *s.overhead.Quantity())
	}
	if limit, ok := s.askedLimits[corev1.ResourceMemory]; ok {
		limit.Add(*s.overhead.Quantity())
		s.askedLimits[corev1.ResourceMemory] = limit
	}
}

// hugepagesMemory moves the guest's memory to hugepages; what is left of the request is ordinary memory.
func (s *sizing) hugepagesMemory(m *v1.Memory) {
	request := s.asked[corev1.ResourceMemory]
	pages := request.DeepCopy()
	if m.Guest != nil && m.Guest.Cmp(pages) < 0 {
		pages = m.Guest.DeepCopy()
	}
	name := corev1.ResourceName(corev1.ResourceHugePagesPrefix + m.Hugepages.PageSize)
	s.asked[name], s.askedLimits[name] = pages, pages.DeepCopy()
	s.asked[corev1.ResourceMemory] = s.besideGuest(request, m)
	if limit, ok := s.askedLimits[corev1.ResourceMemory]; ok {
		s.askedLimits[corev1.ResourceMemory] = s.besideGuest(limit, m)
	}
}

func (s *sizing) besideGuest(q resource.Quantity, m *v1.Memory) resource.Quantity {
	rest := resource.NewQuantity(0, q.Format)
	if m.Guest != nil && q.Cmp(*m.Guest) > 0 {
		*rest = q.DeepCopy()
		rest.Sub(*m.Guest)
	}
	rest.Add(*s.overhead.Quantity())
	return *rest
}

// autoMemoryLimit gives the Pod a memory limit where a quota demands one.
func (s *sizing) autoMemoryLimit() {
	if s.in.vmi.Spec.Domain.Resources.Limits.Memory().Sign() > 0 || !s.quotaLimits(corev1.ResourceLimitsMemory) {
		return
	}
	ratio := defaultMemoryLimitRatio
	if f, err := strconv.ParseFloat(s.in.facts.NamespaceLabels[memoryRatioLabel], 64); err == nil && f >= 1 {
		ratio = f
	}
	request := s.asked[corev1.ResourceMemory]
	limit := int64(float64(request.Value()) * ratio)
	s.calculatedLimits[corev1.ResourceMemory] = *resource.NewQuantity(limit, request.Format)
}
