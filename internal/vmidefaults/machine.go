// SPDX-License-Identifier: Apache-2.0

package vmidefaults

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
)

// MemoryOf returns the memory of a VMI that does not set it: the memory request, otherwise the limit, otherwise one huge
// page, otherwise nil.
func MemoryOf(domain *v1.DomainSpec) *resource.Quantity {
	if domain.Memory != nil && domain.Memory.Guest != nil {
		return domain.Memory.Guest
	}
	for _, list := range []corev1.ResourceList{domain.Resources.Requests, domain.Resources.Limits} {
		if q, there := list[corev1.ResourceMemory]; there && !q.IsZero() {
			return &q
		}
	}
	if domain.Memory != nil && domain.Memory.Hugepages != nil {
		if q, err := resource.ParseQuantity(domain.Memory.Hugepages.PageSize); err == nil && !q.IsZero() {
			return &q
		}
	}
	return nil
}

// Dependency is a Hyper-V feature that requires another one.
type Dependency struct {
	Name, On string
	Enabled  func(*v1.FeatureHyperv) bool
	Needs    func(*v1.FeatureHyperv) **v1.FeatureState
}

// Enabled reports whether a feature of a VMI is on, which it is by default if it is present.
func Enabled(s *v1.FeatureState) bool { return s != nil && (s.Enabled == nil || *s.Enabled) }

// Dependencies of Hyper-V features in QEMU; a feature that enables another one comes before it.
var Dependencies = []Dependency{
	{"synictimer", "synic", func(h *v1.FeatureHyperv) bool { return h.SyNICTimer != nil && Enabled(&h.SyNICTimer.FeatureState) },
		func(h *v1.FeatureHyperv) **v1.FeatureState { return &h.SyNIC }},
	{"synic", "vpindex", func(h *v1.FeatureHyperv) bool { return Enabled(h.SyNIC) }, func(h *v1.FeatureHyperv) **v1.FeatureState { return &h.VPIndex }},
	{"tlbflush", "vpindex", func(h *v1.FeatureHyperv) bool { return h.TLBFlush != nil && Enabled(&h.TLBFlush.FeatureState) },
		func(h *v1.FeatureHyperv) **v1.FeatureState { return &h.VPIndex }},
	{"ipi", "vpindex", func(h *v1.FeatureHyperv) bool { return Enabled(h.IPI) }, func(h *v1.FeatureHyperv) **v1.FeatureState { return &h.VPIndex }},
	{"evmcs", "vapic", func(h *v1.FeatureHyperv) bool { return Enabled(h.EVMCS) }, func(h *v1.FeatureHyperv) **v1.FeatureState { return &h.VAPIC }},
}

// VMX is the CPU feature that Hyper-V's evmcs requires.
const VMX = "vmx"
