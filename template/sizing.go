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

	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vmi/validate"
)

// Calculation is a request or limit of a container with its terms.
type Calculation struct {
	// Quantity is the amount: CPUs for cpu, bytes for the others.
	Quantity resource.Quantity
	// Terms are the lines whose exact sum is Quantity.
	Terms []render.Term
}

func (a *Calculation) add(terms ...render.Term) {
	for i := range terms {
		a.Quantity.Add(terms[i].Amount)
	}
	a.Terms = append(a.Terms, terms...)
}

// clone returns a copy that can be added to without changing a.
func (a *Calculation) clone() Calculation {
	return Calculation{Quantity: a.Quantity.DeepCopy(), Terms: slices.Clone(a.Terms)}
}

// Resources are the requests and limits of the compute container that follow from the VMI's size. The stages devices,
// host-devices and network-devices add the devices.
type Resources struct {
	// Requests and Limits have cpu, memory, hugepages-<size> and ephemeral-storage, as far as they are requested or limited,
	// and the other resources in spec.domain.resources.
	Requests, Limits map[corev1.ResourceName]Calculation
	// Overhead is the memory in addition to the guest memory; its terms are part of the memory limit and, unless
	// overcommitGuestOverhead is set, of the memory request.
	Overhead Overhead
}

// ComputeResources calculates CPU, memory and storage of the compute container with KubeVirt's numbers, with their terms.
// It reads VMI, Config and Facts of the Input; Facts may be empty.
//
// Shared CPUs: the request is (virtual CPUs + supplemental I/O threads) / Config.CPUAllocationRatio, unless the VMI
// requests CPUs. A VMI without a CPU struct has one virtual CPU; one with a CPU struct but no topology has none and, as in
// KubeVirt, no request: KubeVirt's API server always fills in the topology. If the namespace requires a limit, it is one
// CPU per virtual CPU and thread.
//
// Dedicated CPUs: request and limit are one CPU for each virtual CPU and supplemental I/O thread, plus one for the emulator
// with isolateEmulatorThread, or two if the annotation alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity is set and
// makes the sum even. The threads count once, as in virt-launcher, which does not start a domain that lacks a CPU for
// pinning. (KubeVirt's controller counts them twice, which leaves an odd number of threads one CPU short.)
//
// Memory: the request is the VMI's request, otherwise its limit, otherwise the guest memory divided by
// Config.MemoryOvercommit; plus the overhead (see MemoryOverhead), unless overcommitGuestOverhead is set. The limit, if
// any, always includes the overhead. Dedicated CPUs make the limit equal to the request before the overhead is added. With
// hugepages, the whole guest memory is moved to the resource hugepages-<size>: neither overcommit nor a smaller request
// reduces it, since the guest would crash at the first missing page. A quota on memory sets the limit of a VMI without one
// to twice the request, or to the multiple in the namespace label alpha.kubevirt.io/auto-memory-limits-ratio.
//
// Storage: 50 MB for the launcher's own files are added to request and limit.
//
// Errors wrap render.ErrInvalid: a size is negative, contradicts another, or exceeds the maximum (1Ei of memory or storage,
// 1048576 CPUs).
func ComputeResources(in Input, more ...OverheadCalculator) (Resources, error) {
	if in.VMI == nil {
		return Resources{}, &render.Error{
			Stage: StageResources, Object: in.Object(render.LauncherPod), Field: "Input.VMI", Reason: "must be set", Remedy: "set the VMI", Err: render.ErrInvalid,
		}
	}
	in.Config = in.Config.WithDefaults()
	s := &sizing{
		vmi: in.VMI, config: &in.Config, facts: &in.Facts,
		requests: map[corev1.ResourceName]Calculation{}, limits: map[corev1.ResourceName]Calculation{},
	}
	err := firstError(render.Refused(validate.Resources(in.VMI)))
	if err == nil {
		s.overhead = MemoryOverhead(in, more...)
		err = s.calculate()
	}
	if err != nil {
		located := *err
		located.Stage, located.Object = StageResources, in.Object(render.LauncherPod)
		return Resources{}, &located
	}
	return Resources{Requests: s.requests, Limits: s.limits, Overhead: s.overhead}, nil
}

// sizing is the calculation of Resources.
type sizing struct {
	vmi              *v1.VirtualMachineInstance
	config           *Config
	facts            *render.Facts
	overhead         Overhead
	requests, limits map[corev1.ResourceName]Calculation
}

func (s *sizing) calculate() *render.Error {
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
		return render.Invalid(culprit(&total), "results in a memory overhead of "+total.Quantity.String(), "use a ratio of at least 1")
	}
	return cmp.Or(tooLarge("request", s.requests), tooLarge("limit", s.limits))
}

// asked starts with the VMI's own requests and limits. Zero means unset.
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
	return Calculation{Quantity: q.DeepCopy(), Terms: []render.Term{{Name: name, Amount: q.DeepCopy(), From: from}}}
}

// storage adds the launcher's writes to its emptyDirs, in addition to the VMI's ephemeral disks.
func (s *sizing) storage() {
	own := render.Term{Name: "files of the launcher", Amount: *resource.NewQuantity(ephemeralStorageBytes, resource.DecimalSI)}
	request := s.requests[corev1.ResourceEphemeralStorage]
	request.add(own)
	s.requests[corev1.ResourceEphemeralStorage] = request
	if limit, limited := s.limits[corev1.ResourceEphemeralStorage]; limited {
		limit.add(own)
		s.limits[corev1.ResourceEphemeralStorage] = limit
	}
}

// quotaLimits reports whether a quota of the namespace requires a limit on a resource.
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

// limitsCPU reports whether the namespace requires CPU limits, and which setting does.
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
