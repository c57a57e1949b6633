// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/virtloom/virtloom/domain/stats"
)

func TestRecordStats(t *testing.T) {
	for name, tc := range map[string]struct {
		numbers map[string]uint64
		texts   map[string]string
		want    stats.Domain
	}{
		"a guest that hangs has no counters": {},
		"what there is": {
			numbers: map[string]uint64{
				"cpu.time": 5e9, "vcpu.current": 1, "vcpu.maximum": 3,
				"vcpu.0.state": 1, "vcpu.0.time": 3e9, "vcpu.0.wait": 7, "vcpu.2.state": 1, "vcpu.2.time": 1,
				"balloon.current": 1024, "balloon.rss": 512, "balloon.unused": 3, "balloon.swap_in": 2,
				"block.count": 1, "block.0.rd.reqs": 1, "block.0.wr.bytes": 2, "block.0.fl.reqs": 3, "block.0.capacity": 4,
				"net.count": 2, "net.0.rx.bytes": 5, "net.1.tx.drop": 6,
			},
			texts: map[string]string{"block.0.name": "vda", "net.0.name": "tap0", "net.1.name": "tap1"},
			want: stats.Domain{
				CPUTime: 5 * time.Second, VCPUs: []stats.VCPU{{Time: 3 * time.Second, Wait: 7}, {Time: 1}},
				Memory:     stats.Memory{Current: 1 << 20, Resident: 512 << 10, Unused: 3 << 10, SwappedIn: 2 << 10},
				Disks:      []stats.Disk{{Target: "vda", ReadRequests: 1, WriteBytes: 2, FlushRequests: 3, Capacity: 4}},
				Interfaces: []stats.Interface{{Device: "tap0", ReceivedBytes: 5}, {Device: "tap1", SendDrops: 6}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := record{name: "g", uuid: "u", numbers: tc.numbers, texts: tc.texts}
			tc.want.Name, tc.want.UUID = "g", "u"
			if diff := cmp.Diff(tc.want, r.stats()); diff != "" {
				t.Errorf("statistics (-want +got):\n%s", diff)
			}
		})
	}
}
