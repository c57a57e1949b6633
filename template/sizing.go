// SPDX-License-Identifier: Apache-2.0

package template

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmirules"
)

// Calculation is an amount that a container requests or is limited to, and how it comes about.
type Calculation struct {
	// Quantity is the amount: CPUs for cpu, bytes for the others.
	Quantity resource.Quantity
	// Terms are the lines whose Sum is Quantity, exactly.
	Terms []Term
}

func (a *Calculation) add(terms ...Term) {
	for i := range terms {
		a.Quantity.Add(terms[i].Amount)
	}
	a.Terms = append(a.Terms, terms...)
}

// clone returns an amount that can be added to without changing a.
func (a *Calculation) clone() Calculation {
	return Calculation{Quantity: a.Quantity.DeepCopy(), Terms: slices.Clone(a.Terms)}
}

// Resources are the requests and limits of the compute container that follow from the guest's size. The devices that it
// asks for besides are written by the stages devices, host-devices and network-devices.
type Resources struct {
	// Requests and Limits have cpu, memory, hugepages-<size> and ephemeral-storage as far as they are requested or
	// limited, and whatever else spec.domain.resources names.
	Requests, Limits map[corev1.ResourceName]Calculation
	// Overhead is the memory beyond the guest's own; its terms are among those of the memory limit, and of the memory request
	// unless overcommitGuestOverhead leaves them out.
	Overhead Overhead
}

// ComputeResources calculates CPU, memory and storage of the compute container with KubeVirt's numbers and says how. Of the
// Input it reads VMI, Config and Facts, which may be empty.
//
// Shared CPUs: the request is (virtual CPUs + supplemental I/O threads) / Config.CPUAllocationRatio, unless the VMI requests
// CPUs itself. A VMI without a CPU struct has one virtual CPU; one with a CPU struct but no topology has none and, as in
// KubeVirt, no request: there it never comes from its API server, which fills in the topology. If the namespace wants a
// limit, it is one CPU per virtual CPU and thread.
//
// Dedicated CPUs: request and limit are one CPU for each virtual CPU and supplemental I/O thread, and with
// isolateEmulatorThread one for the emulator. With annotation alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity it is two
// if that makes the sum even. The threads count once: that is how virt-launcher counts when it pins, and it does not start a
// guest that lacks a CPU. (KubeVirt's controller counts them twice, which leaves an odd number of threads one CPU short.)
//
// Memory: the request is what the VMI requests, else its limit, else the guest's memory divided by Config.MemoryOvercommit;
// plus the overhead (see MemoryOverhead), unless overcommitGuestOverhead is set. The limit, where there is one, always has
// the overhead. Dedicated CPUs make the limit equal to the request before the overhead is added. With hugepages, the
// guest's memory is moved to the resource hugepages-<size>, and always as a whole: neither overcommit nor a smaller request
// shrinks it, as the guest would die from the first page that is missing. A quota on memory gives a VMI without limit one
// of twice the request, or of another multiple by namespace label alpha.kubevirt.io/auto-memory-limits-ratio.
//
// Storage: 50 MB for the launcher's own files are added to request and limit.
//
// An error wraps ErrInvalid: a size that is negative, contradicts another, or is too large to be a size (1Ei of memory or
// storage, 1048576 CPUs).
func ComputeResources(in Input, more ...OverheadCalculator) (Resources, error) {
	if in.VMI == nil {
		return Resources{}, &Error{
			Stage: StageResources, Object: vmiName(nil), Field: "Input.VMI", Reason: "must be set", Remedy: "name a guest", Err: ErrInvalid,
		}
	}
	in.Config = in.Config.withDefaults()
	s := &sizing{
		vmi: in.VMI, config: &in.Config, facts: &in.Facts,
		requests: map[corev1.ResourceName]Calculation{}, limits: map[corev1.ResourceName]Calculation{},
	}
	err := firstError(refused(vmirules.Values(in.VMI)), checkMemory(&in.VMI.Spec.Domain), checkCPU(&in.VMI.Spec.Domain))
	if err == nil {
		s.overhead = MemoryOverhead(in, more...)
		err = s.calculate()
	}
	if err != nil {
		located := *err
		located.Stage, located.Object = StageResources, vmiName(in.VMI)
		return Resources{}, &located
	}
	return Resources{Requests: s.requests, Limits: s.limits, Overhead: s.overhead}, nil
}

// sizing is the calculation of Resources.
type sizing struct {
	vmi              *v1.VirtualMachineInstance
	config           *Config
	facts            *Facts
	overhead         Overhead
	requests, limits map[corev1.ResourceName]Calculation
}

func (s *sizing) calculate() *Error {
	s.asked()
	s.storage()
	if s.vmi.IsCPUDedicated() {
		s.dedicatedCPU()
	} else {
		s.sharedCPU()
	}
	s.memory()
	if err := s.autoMemoryLimit(); err != nil {
		return err
	}
	if s.overhead.Bytes < 0 {
		total := Calculation{Quantity: *s.overhead.Quantity(), Terms: s.overhead.Terms}
		return invalid(culprit(&total), "makes the memory overhead "+total.Quantity.String(), "use a ratio of at least 1")
	}
	return cmp.Or(tooLarge("request", s.requests), tooLarge("limit", s.limits))
}

// asked starts with what the VMI asks for itself. Zero means not asked for: a limit of nothing could hold nothing.
func (s *sizing) asked() {
	sized := func(name corev1.ResourceName) bool {
		return name == corev1.ResourceMemory || name == corev1.ResourceCPU
	}
	for name, q := range s.vmi.Spec.Domain.Resources.Requests {
		if !q.IsZero() || name != corev1.ResourceMemory {
			s.requests[name] = askedAmount("requested by the VMI", requestField(name), q)
		}
	}
	for name, q := range s.vmi.Spec.Domain.Resources.Limits {
		if !q.IsZero() || !sized(name) {
			s.limits[name] = askedAmount("limit of the VMI", limitField(name), q)
		}
	}
}

func askedAmount(name, from string, q resource.Quantity) Calculation {
	return Calculation{Quantity: q.DeepCopy(), Terms: []Term{{Name: name, Amount: q.DeepCopy(), From: from}}}
}

// storage adds what the launcher writes to its emptyDirs besides the guest's own ephemeral disks.
func (s *sizing) storage() {
	own := Term{Name: "files of the launcher", Amount: *resource.NewQuantity(ephemeralStorageBytes, resource.DecimalSI)}
	request := s.requests[corev1.ResourceEphemeralStorage]
	request.add(own)
	s.requests[corev1.ResourceEphemeralStorage] = request
	if limit, limited := s.limits[corev1.ResourceEphemeralStorage]; limited {
		limit.add(own)
		s.limits[corev1.ResourceEphemeralStorage] = limit
	}
}

// quotaLimits tells whether a quota of the namespace demands a limit on a resource from every Pod.
func (s *sizing) quotaLimits(name corev1.ResourceName) bool {
	for _, quota := range s.facts.Quotas {
		if quota == nil || quota.Namespace != "" && quota.Namespace != s.vmi.Namespace {
			continue
		}
		if _, ok := quota.Spec.Hard[name]; ok {
			return true
		}
	}
	return false
}

// limitsCPU tells whether the namespace wants CPU limits, and what says so.
func (s *sizing) limitsCPU() (from string, wanted bool) {
	if s.quotaLimits(corev1.ResourceLimitsCPU) {
		return "Facts.Quotas", true
	}
	if s.config.AutoCPULimitNamespaceLabelSelector == nil || s.facts.NamespaceLabels == nil {
		return "", false
	}
	selector, err := metav1.LabelSelectorAsSelector(s.config.AutoCPULimitNamespaceLabelSelector)
	matches := err == nil && selector.Matches(labels.Set(s.facts.NamespaceLabels))
	return "Config.AutoCPULimitNamespaceLabelSelector, Facts.NamespaceLabels", matches
}
