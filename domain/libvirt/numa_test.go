// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/virtloom/virtloom/domain"
	"libvirt.org/go/libvirtxml"
)

func TestCells(t *testing.T) {
	for name, tc := range map[string]struct {
		xml  string
		want []domain.Cell
	}{
		"no topology": {xml: `<capabilities><host/></capabilities>`},
		"two cells out of order": {
			xml: `<capabilities><host><topology><cells num='2'>
				<cell id='1'><memory unit='KiB'>2048</memory>
					<cpus num='1'><cpu id='3' socket_id='1' core_id='2' siblings='3'/></cpus></cell>
				<cell id='0'><memory unit='MiB'>4</memory>
					<pages unit='KiB' size='1048576'>0</pages><pages unit='KiB' size='4'>1</pages><pages unit='KiB' size='2048'>7</pages>
					<distances><sibling id='0' value='10'/><sibling id='1' value='21'/></distances>
					<cpus num='2'><cpu id='0' socket_id='0' core_id='0' siblings='0'/><cpu id='1'/></cpus></cell>
				</cells></topology></host></capabilities>`,
			want: []domain.Cell{
				{
					ID: 0, MemoryKiB: 4096, CPUs: []domain.HostCPU{{}, {ID: 1}},
					HugepagesKiB: []uint64{2048, 1048576}, Distances: map[uint]uint{0: 10, 1: 21},
				},
				{ID: 1, MemoryKiB: 2048, CPUs: []domain.HostCPU{{ID: 3, Core: 2, Socket: 1}}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var caps libvirtxml.Caps
			if err := caps.Unmarshal(tc.xml); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, cells(caps.Host.NUMA)); diff != "" {
				t.Errorf("cells (-want +got):\n%s", diff)
			}
		})
	}
}
