// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

const specCPU = specDomain + "cpu."

// placement pins the guest's CPUs and memory to those of the host.
//
// KubeVirt starts a guest with an isolated emulator thread paused, so that its node
// agent can move threads to other cgroups first. Here libvirt pins every thread
// before the guest's first instruction, so the domain starts as any other. Which
// CPUs of a realtime guest are scheduled first (realtime.mask) is no part of the
// domain in KubeVirt either: that is the node agent's to set.
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
			return c.Invalid(specCPU+"isolateEmulatorThread", "needs CPUs of the guest's own", remedy)
		case numa:
			return c.Invalid(specCPU+"numa.guestMappingPassthrough", "needs CPUs of the guest's own", remedy)
		case in.Realtime != nil:
			return c.Invalid(specCPU+"realtime", "needs CPUs of the guest's own", remedy)
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

// pinning is a placement under way.
type pinning struct {
	*Conversion
	in   *v1.CPU
	pool *cpuPool
	// hosts are the host threads of the guest's CPUs that are plugged, in order.
	hosts []uint
	// extra counts the pinned threads beyond them.
	extra int
	// emulatorSet is where the emulator thread is pinned; empty if it is not.
	emulatorSet string
}

// short is the error for a node that has not given the guest what it needs.
func (p *pinning) short(field, reason string) error {
	return &Error{
		Object: p.object(), Field: field, Reason: reason,
		Remedy: "use a node that gives the guest more CPUs of its own, or ask for fewer", Err: ErrUnsupported,
	}
}

// vcpus pins each CPU that is plugged to a thread of the host. One that comes later
// needs a migration, which brings it a thread; see Diff.
func (p *pinning) vcpus() error {
	const field = specCPU + "dedicatedCpuPlacement"
	switch {
	case len(p.Facts.CPUs) == 0:
		return p.short(field, "the node has no CPUs for this guest alone")
	case len(p.Facts.Cells) == 0:
		return &Error{Object: p.object(), Field: field, Reason: "the node does not know where its CPUs sit",
			Remedy: "check that libvirt tells its NUMA topology", Err: ErrUnsupported}
	}
	t := topologyOf(&p.VMI.Spec.Domain)
	cores, width := int(t.sockets*t.cores), int(t.threads)
	p.pool = newCPUPool(p.Facts.Cells, p.Facts.CPUs, width)
	strict := p.in.NUMA != nil && p.in.NUMA.GuestMappingPassthrough != nil
	hosts, missing := p.pool.fit(cores, !strict)
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

// supplementalThreads gives each I/O thread of a supplemental pool a host thread
// that no CPU of the guest has. It comes before the emulator's, whose number
// depends on it.
func (p *pinning) supplementalThreads() error {
	plan, err := p.ioThreadPlan()
	if err != nil || !plan.pool {
		return err
	}
	for id := uint(1); id <= plan.total; id++ {
		host, ok := p.pool.thread()
		if !ok {
			return p.short(specDomain+"ioThreads.supplementalPoolThreadCount", fmt.Sprintf("no CPU is left for I/O thread %d", id))
		}
		p.pinIOThread(id, cpuSet([]uint{host}))
		p.extra++
	}
	return nil
}

// emulator gives QEMU's own threads a host thread of their own, or two if that
// completes an even number, for nodes that hand out whole cores only.
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
		host, ok := p.pool.thread()
		if !ok {
			return p.short(specCPU+"isolateEmulatorThread", "no CPU is left for the emulator thread")
		}
		hosts = append(hosts, host)
	}
	p.emulatorSet = cpuSet(hosts)
	p.Domain.CPUTune.EmulatorPin = &libvirtxml.DomainCPUTuneEmulatorPin{CPUSet: p.emulatorSet}
	return nil
}

// ioThreads pins the I/O threads that have no host threads of their own: to the
// emulator's if that has some, else to those of the guest's CPUs, one each or
// evenly shared out.
//
// With an isolated emulator KubeVirt pins the first only, and all others run where
// they like, among them the CPUs the guest was promised for itself; here all are
// pinned.
func (p *pinning) ioThreads() error {
	plan, err := p.ioThreadPlan()
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
