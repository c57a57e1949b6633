// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/cpupool"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// host returns a topology from cells of cores of threads.
func host(cells ...[][]uint) []domain.Cell {
	var out []domain.Cell
	core := uint(0)
	for i, cores := range cells {
		cell := domain.Cell{ID: uint(i), HugepagesKiB: []uint64{4, 2048}, Distances: map[uint]uint{}}
		for j := range cells {
			cell.Distances[uint(j)] = 10
			if i != j {
				cell.Distances[uint(j)] = 20 + uint(i+j)
			}
		}
		for _, threads := range cores {
			for _, id := range threads {
				cell.CPUs = append(cell.CPUs, domain.HostCPU{ID: id, Core: core, Socket: uint(i)})
			}
			core++
		}
		out = append(out, cell)
	}
	return out
}

// twoCells returns two cells with three cores of two threads each.
func twoCells() []domain.Cell {
	return host([][]uint{{0, 6}, {1, 7}, {2, 8}}, [][]uint{{3, 9}, {4, 10}, {5, 11}})
}

func TestCPUPool_Order(t *testing.T) {
	rows := map[string]struct {
		topology     []domain.Cell
		cpus         []uint
		cores, width int
		strict       bool
		want         []uint
		missing      int
	}{
		"placement: whole cores in the order of the topology": {twoCells(), []uint{0, 1, 6, 7}, 2, 2, true, []uint{0, 6, 1, 7}, 0},
		"placement: whole cores of both cells before fragments": {
			twoCells(), []uint{0, 1, 7, 3, 9, 2}, 3, 2, true, []uint{1, 7, 3, 9, 0, 2}, 0,
		},
		"placement: a wide core of the host takes two of the guest": {
			host([][]uint{{0, 1, 2, 3}}), []uint{0, 1, 2, 3}, 2, 2, true, []uint{0, 1, 2, 3}, 0,
		},
		"placement: what is left of a wide core is a fragment": {
			host([][]uint{{0, 1, 2}, {3, 4, 5}}), []uint{0, 1, 2, 3, 4, 5}, 3, 2, true, []uint{0, 1, 3, 4, 2, 5}, 0,
		},
		"placement: cores of one thread fill cores": {twoCells(), []uint{0, 1, 6, 7}, 4, 1, true, []uint{0, 6, 1, 7}, 0},
		"placement: a core may cross cells":         {twoCells(), []uint{0, 3}, 1, 2, false, []uint{0, 3}, 0},
		"placement: a core may not cross cells":     {twoCells(), []uint{0, 3}, 1, 2, true, nil, 1},
		"placement: too few threads":                {twoCells(), []uint{0, 6, 1}, 2, 2, false, []uint{0, 6, 1}, 1},
		"placement: half a core is none":            {twoCells(), []uint{0, 3, 4}, 2, 2, false, []uint{3, 4, 0}, 1},
		"placement: CPUs nobody knows do not count": {twoCells(), []uint{0, 77}, 2, 1, false, []uint{0}, 1},
		"placement: a CPU in two cells counts once": {host([][]uint{{0}}, [][]uint{{0}}), []uint{0}, 2, 1, false, []uint{0}, 1},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			got, missing := cpupool.NewPool(r.topology, r.cpus, r.width).Fit(r.cores, !r.strict)
			if !slices.Equal(got, r.want) || missing != r.missing {
				t.Errorf("threads %v and %d cores missing, want %v and %d", got, missing, r.want, r.missing)
			}
		})
	}
}

func TestCPUPool_FragmentsFirst(t *testing.T) {
	p := cpupool.NewPool(twoCells(), []uint{0, 6, 2, 3}, 2)
	var got []uint
	for {
		id, ok := p.Thread()
		if !ok {
			break
		}
		got = append(got, id)
	}
	if want := []uint{2, 0, 6, 3}; !slices.Equal(got, want) {
		t.Errorf("placement: threads one by one are %v, want %v", got, want)
	}
}

func TestCPUSet_Format(t *testing.T) {
	for want, ids := range map[string][]uint{
		"": nil, "7": {7}, "0-3,8": {8, 0, 1, 2, 3}, "0,2": {2, 0}, "0-1": {1, 0, 1},
	} {
		if got := cpuSet(ids); got != want {
			t.Errorf("placement: set of %v is %q, want %q", ids, got, want)
		}
	}
}

// giveHost sets the topology and the dedicated CPUs.
func giveHost(cells []domain.Cell, cpus ...uint) func(*v1.VirtualMachineInstance, *Facts) {
	return func(_ *v1.VirtualMachineInstance, f *Facts) { f.Cells, f.CPUs = cells, cpus }
}

func dedicated(c v1.CPU) func(*v1.VirtualMachineInstance, *Facts) {
	c.DedicatedCPUPlacement = true
	return giveCPU(c)
}

func policyOfThreads(p v1.IOThreadsPolicy, count uint32) func(*v1.VirtualMachineInstance, *Facts) {
	return func(v *v1.VirtualMachineInstance, _ *Facts) {
		v.Spec.Domain.IOThreadsPolicy = &p
		if count > 0 {
			v.Spec.Domain.IOThreads = &v1.DiskIOThreads{SupplementalPoolThreadCount: &count}
		}
	}
}

func even(v *v1.VirtualMachineInstance, _ *Facts) {
	annotate(v, v1.EmulatorThreadCompleteToEvenParity, "")
}

// pins lists the pins of a domain: vcpu0=2, io1=3, emulator=4.
func pins(d *libvirtxml.Domain) string {
	var out []string
	for _, p := range d.CPUTune.VCPUPin {
		out = append(out, fmt.Sprintf("vcpu%d=%s", p.VCPU, p.CPUSet))
	}
	for _, p := range d.CPUTune.IOThreadPin {
		out = append(out, fmt.Sprintf("io%d=%s", p.IOThread, p.CPUSet))
	}
	if e := d.CPUTune.EmulatorPin; e != nil {
		out = append(out, "emulator="+e.CPUSet)
	}
	return strings.Join(out, " ")
}

func TestSpecPins(t *testing.T) {
	isolated := v1.CPU{Cores: 2, IsolateEmulatorThread: true}
	pool := policyOfThreads(v1.IOThreadsPolicySupplementalPool, 2)
	auto := policyOfThreads(v1.IOThreadsPolicyAuto, 0)
	disks := func(n int) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, f *Facts) { withDisks(v, f, n) }
	}
	rows := map[string]struct {
		change func(*v1.VirtualMachineInstance, *Facts)
		want   string
	}{
		"placement: each CPU has its own": {changes(dedicated(v1.CPU{Cores: 2, Threads: 2}), giveHost(twoCells(), 0, 1, 6, 7)), "vcpu0=0 vcpu1=6 vcpu2=1 vcpu3=7"},
		"placement: only CPUs that are plugged": {
			changes(dedicated(v1.CPU{Sockets: 2, MaxSockets: 4}), giveHost(twoCells(), 0, 1)), "vcpu0=0 vcpu1=1",
		},
		"placement: the emulator's thread":            {changes(dedicated(isolated), giveHost(twoCells(), 0, 1, 2)), "vcpu0=0 vcpu1=1 emulator=2"},
		"placement: two of them make the number even": {changes(dedicated(isolated), giveHost(twoCells(), 0, 1, 2, 8), even), "vcpu0=0 vcpu1=1 emulator=2,8"},
		"placement: one makes it even":                {changes(dedicated(v1.CPU{Cores: 3, IsolateEmulatorThread: true}), giveHost(twoCells(), 0, 1, 2, 8), even), "vcpu0=0 vcpu1=1 vcpu2=2 emulator=8"},
		"placement: threads of a pool have CPUs too":  {changes(dedicated(v1.CPU{Cores: 2}), pool, giveHost(twoCells(), 0, 1, 2, 3)), "vcpu0=0 vcpu1=1 io1=2 io2=3"},
		"placement: threads of a pool count for evenness": {
			changes(dedicated(v1.CPU{Cores: 3, IsolateEmulatorThread: true}), policyOfThreads(v1.IOThreadsPolicySupplementalPool, 1), even, giveHost(twoCells(), 0, 1, 2, 3, 4, 5)),
			"vcpu0=0 vcpu1=1 vcpu2=2 io1=3 emulator=4-5",
		},
		"placement: I/O threads join an isolated emulator": {
			changes(dedicated(isolated), auto, disks(1), giveHost(twoCells(), 0, 1, 2)), "vcpu0=0 vcpu1=1 io1=2 emulator=2",
		},
		"placement: as many I/O threads as CPUs have one each": {
			changes(dedicated(v1.CPU{Cores: 2}), resourcesOf(cpuAmount("2"), nil), auto, disks(3), giveHost(twoCells(), 3, 4)), "vcpu0=3 vcpu1=4 io1=4 io2=3 io3=4",
		},
		"placement: fewer I/O threads share CPUs evenly": {
			changes(dedicated(v1.CPU{Cores: 8}), resourcesOf(cpuAmount("2"), nil), auto, disks(3), giveHost(twoCells(), 0, 1, 2, 3, 4, 5, 6, 7)),
			"vcpu0=0 vcpu1=6 vcpu2=1 vcpu3=7 vcpu4=2 vcpu5=3 vcpu6=4 vcpu7=5 io1=0-2 io2=3-5 io3=6-7",
		},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
			r.change(vmi, &f)
			d, err := Convert(vmi, f)
			if err != nil {
				t.Fatal(err)
			}
			if got := pins(d); got != r.want {
				t.Errorf("pins are %s\nwant %s", got, r.want)
			}
		})
	}
	runMachineRows(t, map[string]machineRow{
		"placement: the guest knows that its CPUs are its own": {
			change: changes(dedicated(v1.CPU{}), giveHost(twoCells(), 0)), element: "kvm", want: `<kvm><hint-dedicated state="on"/></kvm>`,
		},
		"placement: and still hides KVM": {
			change:  changes(dedicated(v1.CPU{}), giveHost(twoCells(), 0), giveFeatures(v1.Features{KVM: &v1.FeatureKVM{Hidden: true}})),
			element: "kvm", want: `<kvm><hidden state="on"/><hint-dedicated state="on"/></kvm>`,
		},
		"placement: arm64 has no such hint": {change: onArch(xmlspec.ArchARM, dedicated(v1.CPU{}), giveHost(twoCells(), 0)), element: "kvm"},
		"placement: a realtime guest has no performance counters": {
			change: changes(dedicated(v1.CPU{Realtime: &v1.Realtime{}}), giveHost(twoCells(), 0)), element: "pmu", want: `<pmu state="off"/>`,
		},
		"placement: nothing is pinned by default": {element: "cputune"},
	})
}

func TestSpecPins_Errors(t *testing.T) {
	const field = "spec.domain.cpu.dedicatedCpuPlacement"
	isolated := v1.CPU{Cores: 2, IsolateEmulatorThread: true}
	rows := map[string]struct {
		machineError
		text string
	}{
		"placement: no CPUs":     {machineError{dedicated(v1.CPU{}), field, domain.ErrUnsupported}, "no dedicated CPUs"},
		"placement: no topology": {machineError{changes(dedicated(v1.CPU{}), giveHost(nil, 0)), field, domain.ErrUnsupported}, "NUMA topology"},
		"placement: too few CPUs": {
			machineError{changes(dedicated(v1.CPU{Cores: 3}), giveHost(twoCells(), 0, 1)), field, domain.ErrUnsupported},
			"not enough exclusive threads provided, could not fit 1 core(s)",
		},
		"placement: too few CPUs for NUMA nodes": {
			machineError{changes(dedicated(v1.CPU{Cores: 3, NUMA: passNUMA}), giveHost(twoCells(), 0, 1)), field, domain.ErrUnsupported},
			"not enough exclusive threads provided, could not fit 1 core(s)",
		},
		"placement: a core across NUMA nodes": {
			machineError{changes(dedicated(v1.CPU{Threads: 2, NUMA: passNUMA}), giveHost(twoCells(), 0, 3)), field, domain.ErrUnsupported},
			"could not fit 1 core(s) without crossing numa cell boundaries",
		},
		"placement: none for the emulator": {
			machineError{changes(dedicated(isolated), giveHost(twoCells(), 0, 1)), "spec.domain.cpu.isolateEmulatorThread", domain.ErrUnsupported}, "emulator",
		},
		"placement: no second for the emulator": {
			machineError{changes(dedicated(isolated), even, giveHost(twoCells(), 0, 1, 2)), "spec.domain.cpu.isolateEmulatorThread", domain.ErrUnsupported}, "emulator",
		},
		"placement: none for a pool": {
			machineError{changes(dedicated(v1.CPU{Cores: 2}), policyOfThreads(v1.IOThreadsPolicySupplementalPool, 1), giveHost(twoCells(), 0, 1)),
				"spec.domain.ioThreads.supplementalPoolThreadCount", domain.ErrUnsupported}, "I/O thread 1",
		},
		"placement: an emulator alone": {machineError{giveCPU(isolated), "spec.domain.cpu.isolateEmulatorThread", domain.ErrInvalid}, "dedicated CPUs"},
		"placement: NUMA nodes alone":  {machineError{giveCPU(v1.CPU{NUMA: passNUMA}), "spec.domain.cpu.numa.guestMappingPassthrough", domain.ErrInvalid}, "dedicated CPUs"},
		"placement: realtime alone":    {machineError{giveCPU(v1.CPU{Realtime: &v1.Realtime{}}), "spec.domain.cpu.realtime", domain.ErrInvalid}, "dedicated CPUs"},
	}
	errors := map[string]machineError{}
	for name, r := range rows {
		errors[name] = r.machineError
		t.Run(name+", in words", func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
			r.change(vmi, &f)
			if _, err := Convert(vmi, f); err == nil || !strings.Contains(err.Error(), r.text) {
				t.Errorf("error is %v, want one with %q", err, r.text)
			}
		})
	}
	runMachineErrors(t, errors)
}
