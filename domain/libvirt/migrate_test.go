// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"errors"
	"testing"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
)

func TestMigration_Flags(t *testing.T) {
	const always = virt.MIGRATE_LIVE | virt.MIGRATE_PEER2PEER | virt.MIGRATE_PERSIST_DEST
	for name, tt := range map[string]struct {
		req       domain.MigrationRequest
		flags     virt.DomainMigrateFlags
		bandwidth uint64
		parallel  int
	}{
		"M1: nothing asked for":            {domain.MigrationRequest{}, always, unlimited, 0},
		"M1: disks that travel":            {domain.MigrationRequest{CopyDisks: []string{"vda"}}, always | virt.MIGRATE_NON_SHARED_DISK, unlimited, 0},
		"M1: disks that are vouched for":   {domain.MigrationRequest{Unsafe: true}, always | virt.MIGRATE_UNSAFE, unlimited, 0},
		"M1: auto-converge":                {domain.MigrationRequest{AutoConverge: true}, always | virt.MIGRATE_AUTO_CONVERGE, unlimited, 0},
		"M1: post-copy":                    {domain.MigrationRequest{PostCopy: true}, always | virt.MIGRATE_POSTCOPY, unlimited, 0},
		"M1: a paused guest":               {domain.MigrationRequest{Paused: true}, always | virt.MIGRATE_PAUSED, unlimited, 0},
		"M1: eight connections":            {domain.MigrationRequest{Parallel: 8}, always | virt.MIGRATE_PARALLEL, unlimited, 8},
		"M2: one connection is none extra": {domain.MigrationRequest{Parallel: 1}, always, unlimited, 0},
		"M1: post-copy goes over one connection": {
			domain.MigrationRequest{PostCopy: true, Parallel: 8}, always | virt.MIGRATE_POSTCOPY, unlimited, 0,
		},
		"zstd on parallel connections": {
			domain.MigrationRequest{Parallel: 2, Compression: "zstd"}, always | virt.MIGRATE_PARALLEL | virt.MIGRATE_COMPRESSED, unlimited, 2,
		},
		"post-copy is resumed, and all else is as it was": {
			domain.MigrationRequest{Resume: true, AutoConverge: true, BandwidthMiB: 3, CopyDisks: []string{"vda"}, Unsafe: true},
			always | virt.MIGRATE_POSTCOPY | virt.MIGRATE_POSTCOPY_RESUME, 0, 0,
		},
		"M4: a limit of the bandwidth": {domain.MigrationRequest{BandwidthMiB: 64}, always, 64, 0},
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
}

func TestMigration_InvalidRequest(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*domain.MigrationRequest)
		want   error
	}{
		"no domain":      {func(r *domain.MigrationRequest) { r.Domain = "" }, domain.ErrInvalid},
		"no destination": {func(r *domain.MigrationRequest) { r.DestinationURI = "" }, domain.ErrInvalid},
		"disks and memory for one socket": {func(r *domain.MigrationRequest) {
			r.MigrateURI, r.CopyDisks = "unix:///memory.sock", []string{"vda"}
		}, domain.ErrInvalid},
		"another compression":          {func(r *domain.MigrationRequest) { r.Compression, r.Parallel = "lz4", 2 }, domain.ErrUnsupported},
		"zstd on one connection":       {func(r *domain.MigrationRequest) { r.Compression = "zstd" }, domain.ErrUnsupported},
		"zstd, and post-copy over one": {func(r *domain.MigrationRequest) { r.Compression, r.Parallel, r.PostCopy = "zstd", 2, true }, domain.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			req := domain.MigrationRequest{Domain: "ns_guest", DestinationURI: "qemu+tcp://192.0.2.7/system"}
			tt.change(&req)
			if _, _, err := migration(req); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

func TestMigration_SocketURIs(t *testing.T) {
	req := domain.MigrationRequest{
		Domain: "ns_guest", DestinationURI: "qemu+unix:///system?socket=/c.sock", MigrateURI: "unix:///m.sock", DisksURI: "unix:///d.sock",
	}
	p, _, err := migration(req)
	if err != nil || !p.URISet || p.URI != req.MigrateURI || p.DisksURISet {
		t.Errorf("without disks: %+v, %v", p, err)
	}
	req.CopyDisks = []string{"vda"}
	if p, _, err = migration(req); err != nil || !p.DisksURISet || p.DisksURI != req.DisksURI {
		t.Errorf("with disks: %+v, %v", p, err)
	}
}

func TestMigrations_AbortByName(t *testing.T) {
	var m migrations
	if m.abort("a") {
		t.Error("there is nothing to abort")
	}
	first, release := m.begin("a")
	second, releaseSecond := m.begin("a")
	releaseSecond()
	if second != nil {
		t.Error("one that libvirt refuses can be aborted")
	}
	for range 2 { // repeating is harmless
		if !m.abort("a") {
			t.Error("it is not aborted")
		}
	}
	select {
	case <-first:
	default:
		t.Error("it was not aborted")
	}
	release()
	if m.abort("a") {
		t.Error("it has ended")
	}
}
