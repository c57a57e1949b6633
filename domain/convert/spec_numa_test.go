// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

var passNUMA = &v1.NUMA{GuestMappingPassthrough: &v1.NUMAGuestMappingPassthrough{}}

// threeCells sets a host with three cells of two dedicated threads each.
func threeCells(v *v1.VirtualMachineInstance, f *Facts) {
	giveHost(host([][]uint{{0, 10}}, [][]uint{{1, 11}}, [][]uint{{2, 12}}), 0, 1, 2, 10, 11, 12)(v, f)
}

func hugeMemory(amount, page string) func(*v1.VirtualMachineInstance, *Facts) {
	return changes(giveMemory(amount, ""), func(v *v1.VirtualMachineInstance, _ *Facts) {
		v.Spec.Domain.Memory.Hugepages = &v1.Hugepages{PageSize: page}
	})
}

func TestSpecNUMA(t *testing.T) {
	guest := changes(dedicated(v1.CPU{Cores: 6, NUMA: passNUMA}), threeCells, hugeMemory("64Mi", "2Mi"))
	const distances = `<distances><sibling id="0" value="10"/><sibling id="1" value="21"/><sibling id="2" value="22"/></distances>`
	sparse := func(v *v1.VirtualMachineInstance, f *Facts) {
		cells := host([][]uint{{0}}, [][]uint{{1}}, [][]uint{{2}})
		cells[1].ID, cells[2].ID = 4, 7
		cells[0].Distances = map[uint]uint{0: 10, 7: 31}
		cells[2].Distances, cells[2].HugepagesKiB = map[uint]uint{0: 30, 7: 10}, nil
		giveHost(cells, 0, 2)(v, f)
		changes(dedicated(v1.CPU{Cores: 2, NUMA: passNUMA}), hugeMemory("64Mi", "2Mi"))(v, f)
	}
	runMachineRows(t, map[string]machineRow{
		"C70: memory is split by huge pages, the first nodes get what is left": {change: guest, element: "numa", want: `<numa>` +
			`<cell id="0" cpus="0-1" memory="23068672" unit="b">` + distances + `</cell>` +
			`<cell id="1" cpus="2-3" memory="23068672" unit="b"><distances><sibling id="0" value="21"/><sibling id="1" value="10"/><sibling id="2" value="23"/></distances></cell>` +
			`<cell id="2" cpus="4-5" memory="20971520" unit="b"><distances><sibling id="0" value="22"/><sibling id="1" value="23"/><sibling id="2" value="10"/></distances></cell></numa>`},
		"C70: memory is bound to the host's nodes": {change: guest, element: "numatune", want: `<numatune><memory mode="strict" nodeset="0-2"/>` +
			`<memnode cellid="0" mode="strict" nodeset="0"/><memnode cellid="1" mode="strict" nodeset="1"/><memnode cellid="2" mode="strict" nodeset="2"/></numatune>`},
		"C70: each node has huge pages in bytes, there from the start": {change: guest, element: "memoryBacking", want: `<memoryBacking><hugepages>` +
			`<page size="2097152" unit="b" nodeset="0"/><page size="2097152" unit="b" nodeset="1"/><page size="2097152" unit="b" nodeset="2"/></hugepages>` +
			`<source type="memfd"/><allocation mode="immediate"/></memoryBacking>`},
		"numa: nodes are numbered from 0 whatever the host's are": {change: sparse, element: "numa", want: `<numa>` +
			`<cell id="0" cpus="0" memory="33554432" unit="b"><distances><sibling id="0" value="10"/><sibling id="1" value="31"/></distances></cell>` +
			`<cell id="1" cpus="1" memory="33554432" unit="b"><distances><sibling id="0" value="30"/><sibling id="1" value="10"/></distances></cell></numa>`},
		"numa: only the host's nodes with the guest's CPUs": {change: sparse, element: "numatune", want: `<numatune><memory mode="strict" nodeset="0,7"/>` +
			`<memnode cellid="0" mode="strict" nodeset="0"/><memnode cellid="1" mode="strict" nodeset="7"/></numatune>`},
		"numa: a host without distances": {
			change: changes(guest, func(_ *v1.VirtualMachineInstance, f *Facts) {
				for i := range f.Cells {
					f.Cells[i].Distances = nil
				}
			}), element: "distances",
		},
		"numa: CPUs that come later belong to the first node": {
			change: changes(dedicated(v1.CPU{Sockets: 2, MaxSockets: 4, NUMA: passNUMA}), giveHost(host([][]uint{{0}}), 0), hugeMemory("64Mi", "2Mi"),
				giveHost(host([][]uint{{0, 1}}), 0, 1)), element: "numa",
			want: `<numa><cell id="0" cpus="0-3" memory="67108864" unit="b"><distances><sibling id="0" value="10"/></distances></cell></numa>`,
		},
		"numa: a realtime guest shares no pages": {
			change: changes(dedicated(v1.CPU{Cores: 6, NUMA: passNUMA, Realtime: &v1.Realtime{}}), threeCells, hugeMemory("66Mi", "2Mi")), element: "nosharepages",
			want: `<nosharepages/>`,
		},
		"numa: others may share them": {change: guest, element: "nosharepages"},
	})
	const field = "spec.domain.cpu.numa.guestMappingPassthrough"
	runMachineErrors(t, map[string]machineError{
		"C71: no huge pages": {changes(dedicated(v1.CPU{Cores: 6, NUMA: passNUMA}), threeCells), field, domain.ErrInvalid},
		"numa: less than a page for each node": {
			changes(dedicated(v1.CPU{Cores: 6, NUMA: passNUMA}), threeCells, hugeMemory("4Mi", "2Mi")), field, domain.ErrInvalid,
		},
		"numa: memory that is no whole number of pages": {
			changes(dedicated(v1.CPU{Cores: 6, NUMA: passNUMA}), threeCells, hugeMemory("7Mi", "2Mi")), "spec.domain.memory.hugepages.pageSize", domain.ErrInvalid,
		},
		"numa: pages the host has not": {
			changes(dedicated(v1.CPU{Cores: 6, NUMA: passNUMA}), threeCells, hugeMemory("3Gi", "1Gi")), "spec.domain.memory.hugepages.pageSize", domain.ErrUnsupported,
		},
		"numa: on s390x": {onArch(xmlspec.ArchS390X, dedicated(v1.CPU{Cores: 6, NUMA: passNUMA}), threeCells, hugeMemory("64Mi", "2Mi")), field, domain.ErrInvalid},
	})
}
