// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/cpupool"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

const specCPU = specDomain + "cpu."

// placement pins the guest's CPUs and memory to those of the host.
//
// KubeVirt starts a guest with an isolated emulator thread paused, so that its node agent can first
// move threads to other cgroups. Here libvirt pins every thread before the first instruction of the
// guest, so the domain starts as any other. The scheduling of a realtime guest's CPUs
// (realtime.mask) is not part of the domain, in KubeVirt neither: the node agent sets it.
func placement(c *Conversion) error {
	in := c.VMI.Spec.Domain.CPU
	if in == nil {
		return nil
	}
	numa := in.NUMA != nil && in.NUMA.GuestMappingPassthrough != nil
	if !in.DedicatedCPUPlacement {
		const remedy = "set " + specCPU + "dedicatedCpuPlacement, or remove it"
		switch {
		case in.IsolateEmulatorThread:
			return c.Invalid(specCPU+"isolateEmulatorThread", "Invalid value: requires dedicated CPUs", remedy)
		case numa:
			return c.Invalid(specCPU+"numa.guestMappingPassthrough", "Invalid value: requires dedicated CPUs", remedy)
		case in.Realtime != nil:
			return c.Invalid(specCPU+"realtime", "Invalid value: requires dedicated CPUs", remedy)
		}
		return nil
	}
	p := &pinning{Conversion: c, in: in}
	for _, step := range []func() error{p.vcpus, p.supplementalThreads, p.emulator, p.ioThreads} {
		if err := step(); err != nil {
			return err
		}
	}
	if numa {
		return p.passNUMA()
	}
	return nil
}

// pinning is a placement under construction.
type pinning struct {
	*Conversion
	in   *v1.CPU
	pool *cpupool.Pool
	// hosts are the host threads of the guest's present CPUs, in order.
	hosts []uint
	// extra counts the pinned threads beyond hosts.
	extra int
	// emulatorSet is the set to which the emulator thread is pinned, empty if it is not.
	emulatorSet string
}

// short returns the error for a node that has allocated too few CPUs.
func (p *pinning) short(field, reason string) error {
	return &Error{
		Object: p.object(), Field: field, Reason: reason,
		Remedy: "use a node with more dedicated CPUs, or request fewer", Err: domain.ErrUnsupported,
	}
}

// vcpus pins each present CPU to a host thread. A hotplugged CPU needs a migration, which allocates
// a thread for it; see [diff.Compare].
func (p *pinning) vcpus() error {
	const field = specCPU + "dedicatedCpuPlacement"
	switch {
	case len(p.Facts.CPUs) == 0:
		return p.short(field, "the node has no dedicated CPUs for this VMI")
	case len(p.Facts.Cells) == 0:
		return &Error{Object: p.object(), Field: field, Reason: "the node does not know its NUMA topology",
			Remedy: "check that libvirt reports it", Err: domain.ErrUnsupported}
	}
	t := xmlspec.TopologyOf(&p.VMI.Spec.Domain)
	cores, width := int(t.Sockets*t.Cores), int(t.Threads)
	p.pool = cpupool.NewPool(p.Facts.Cells, p.Facts.CPUs, width)
	strict := p.in.NUMA != nil && p.in.NUMA.GuestMappingPassthrough != nil
	hosts, missing := p.pool.Fit(cores, !strict)
	if missing > 0 {
		if strict && len(p.Facts.CPUs) >= cores*width {
			return p.short(field, fmt.Sprintf("could not fit %d core(s) without crossing numa cell boundaries for individual cores", missing))
		}
		return p.short(field, fmt.Sprintf("not enough exclusive threads provided, could not fit %d core(s)", missing))
	}
	p.hosts = hosts
	tune := &libvirtxml.DomainCPUTune{}
	for i, host := range hosts {
		tune.VCPUPin = append(tune.VCPUPin, libvirtxml.DomainCPUTuneVCPUPin{VCPU: uint(i), CPUSet: cpuSet([]uint{host})})
	}
	p.Domain.CPUTune = tune
	return nil
}

// pinIOThread pins an I/O thread to a set of host threads.
func (p *pinning) pinIOThread(id uint, set string) {
	t := p.Domain.CPUTune
	t.IOThreadPin = append(t.IOThreadPin, libvirtxml.DomainCPUTuneIOThreadPin{IOThread: id, CPUSet: set})
}

// supplementalThreads pins each I/O thread of a supplemental pool to an exclusive host thread. It
// runs before emulator, whose number of threads depends on it.
func (p *pinning) supplementalThreads() error {
	plan, err := ioThreadPass{p.Conversion}.ioThreadPlan()
	if err != nil || !plan.pool {
		return err
	}
	for id := uint(1); id <= plan.total; id++ {
		host, ok := p.pool.Thread()
		if !ok {
			return p.short(specDomain+"ioThreads.supplementalPoolThreadCount", fmt.Sprintf("no dedicated CPU is left for I/O thread %d", id))
		}
		p.pinIOThread(id, cpuSet([]uint{host}))
		p.extra++
	}
	return nil
}

// emulator pins QEMU's own threads to an exclusive host thread, or to two if that makes the total
// even, for nodes that allocate whole cores only.
func (p *pinning) emulator() error {
	if !p.in.IsolateEmulatorThread {
		return nil
	}
	count := 1
	if _, even := p.VMI.Annotations[v1.EmulatorThreadCompleteToEvenParity]; even && (len(p.hosts)+p.extra)%2 == 0 {
		count = 2
	}
	var hosts []uint
	for range count {
		host, ok := p.pool.Thread()
		if !ok {
			return p.short(specCPU+"isolateEmulatorThread", "no dedicated CPU is left for the emulator thread")
		}
		hosts = append(hosts, host)
	}
	p.emulatorSet = cpuSet(hosts)
	p.Domain.CPUTune.EmulatorPin = &libvirtxml.DomainCPUTuneEmulatorPin{CPUSet: p.emulatorSet}
	return nil
}

// ioThreads pins the I/O threads without exclusive host threads: to the emulator's if it has any,
// else to those of the guest's CPUs, one each or evenly distributed.
//
// With an isolated emulator thread, KubeVirt pins only the first I/O thread, and the others run
// anywhere, including on the CPUs dedicated to the guest; here all of them are pinned.
func (p *pinning) ioThreads() error {
	plan, err := ioThreadPass{p.Conversion}.ioThreadPlan()
	if err != nil || plan.pool {
		return err
	}
	vcpus := uint(len(p.hosts))
	from := uint(0)
	for id := uint(1); id <= plan.total; id++ {
		switch {
		case p.emulatorSet != "":
			p.pinIOThread(id, p.emulatorSet)
		case plan.total >= vcpus:
			p.pinIOThread(id, cpuSet([]uint{p.Facts.CPUs[id%vcpus]}))
		default:
			size := vcpus / plan.total
			if id <= vcpus%plan.total {
				size++
			}
			p.pinIOThread(id, cpuSet(p.Facts.CPUs[from:from+size]))
			from += size
		}
	}
	return nil
}
