// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"errors"
	"testing"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
)

func TestMigrationRequestsBecomeFlags(t *testing.T) {
	const always = virt.MIGRATE_LIVE | virt.MIGRATE_PEER2PEER | virt.MIGRATE_PERSIST_DEST
	for name, tt := range map[string]struct {
		req       domain.MigrationRequest
		flags     virt.DomainMigrateFlags
		bandwidth uint64
		parallel  int
	}{
		"M1: nothing asked for":            {domain.MigrationRequest{}, always, 0, 0},
		"M1: disks that travel":            {domain.MigrationRequest{CopyDisks: []string{"vda"}}, always | virt.MIGRATE_NON_SHARED_DISK, 0, 0},
		"M1: disks that are vouched for":   {domain.MigrationRequest{Unsafe: true}, always | virt.MIGRATE_UNSAFE, 0, 0},
		"M1: auto-converge":                {domain.MigrationRequest{AutoConverge: true}, always | virt.MIGRATE_AUTO_CONVERGE, 0, 0},
		"M1: post-copy":                    {domain.MigrationRequest{PostCopy: true}, always | virt.MIGRATE_POSTCOPY, 0, 0},
		"M1: a paused guest":               {domain.MigrationRequest{Paused: true}, always | virt.MIGRATE_PAUSED, 0, 0},
		"M1: eight connections":            {domain.MigrationRequest{Parallel: 8}, always | virt.MIGRATE_PARALLEL, 0, 8},
		"M2: one connection is none extra": {domain.MigrationRequest{Parallel: 1}, always, 0, 0},
		"M4: a limit of the bandwidth":     {domain.MigrationRequest{BandwidthMiB: 64}, always, 64, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tt.req.Domain, tt.req.DestinationURI = "ns_guest", "qemu+tcp://192.0.2.7/system"
			p, flags, err := migration(tt.req)
			if err != nil {
				t.Fatal(err)
			}
			if flags != tt.flags {
				t.Errorf("flags are %b, want %b", flags, tt.flags)
			}
			if p.Bandwidth != tt.bandwidth || p.BandwidthSet != (tt.bandwidth > 0) {
				t.Errorf("the bandwidth is %d (%t), want %d", p.Bandwidth, p.BandwidthSet, tt.bandwidth)
			}
			if p.ParallelConnections != tt.parallel || p.ParallelConnectionsSet != (tt.parallel > 0) {
				t.Errorf("%d connections (%t), want %d", p.ParallelConnections, p.ParallelConnectionsSet, tt.parallel)
			}
		})
	}
	for name, req := range map[string]domain.MigrationRequest{
		"no domain":      {DestinationURI: "qemu+tcp://192.0.2.7/system"},
		"no destination": {Domain: "ns_guest"},
	} {
		if _, _, err := migration(req); !errors.Is(err, domain.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}
