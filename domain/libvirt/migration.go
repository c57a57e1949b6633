// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"fmt"
	"strings"
	"time"

	virt "libvirt.org/go/libvirt"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrate"
)

// zstd is libvirt's compression of memory on parallel connections.
const zstd = "zstd"

// Releases of libvirt, as its version numbers, that introduced a parameter.
const (
	hasZstd         = 9_004_000
	hasDetectZeroes = 10_009_000
)

// unlimited is the greatest bandwidth in MiB/s that libvirt accepts for QEMU.
const unlimited = 1<<43 - 1

func orUnlimited(mib uint64) uint64 {
	if mib == 0 || mib > unlimited {
		return unlimited
	}
	return mib
}

// milliseconds rounds up: a fraction must not become zero.
func milliseconds(d time.Duration) uint64 {
	return uint64((min(d, migrate.MaxDowntimeCeiling) + time.Millisecond - 1) / time.Millisecond)
}

// migration translates a request.
func migration(req domain.MigrationRequest) (*virt.DomainMigrateParameters, virt.DomainMigrateFlags, error) {
	if err := checkMigrationRequest(req); err != nil {
		return nil, 0, fmt.Errorf("migrate %q to %q: %w", req.Domain, req.DestinationURI, err)
	}
	p := &virt.DomainMigrateParameters{}
	flags := virt.MIGRATE_LIVE | virt.MIGRATE_PEER2PEER | virt.MIGRATE_PERSIST_DEST
	if req.MigrateURI != "" {
		p.URISet, p.URI = true, req.MigrateURI
	}
	if req.Resume { // the other settings are those of the migration
		return p, flags | virt.MIGRATE_POSTCOPY | virt.MIGRATE_POSTCOPY_RESUME, nil
	}
	if req.Definition != nil {
		xml, err := req.Definition.Marshal()
		if err != nil {
			return nil, 0, fmt.Errorf("migrate %s: %w", req.Domain, err)
		}
		p.DestXMLSet, p.DestXML = true, xml
		p.PersistXMLSet, p.PersistXML = true, xml
	}
	if len(req.CopyDisks) > 0 {
		flags |= virt.MIGRATE_NON_SHARED_DISK
		p.MigrateDisksSet, p.MigrateDisks = true, req.CopyDisks
		p.DisksURISet, p.DisksURI = req.DisksURI != "", req.DisksURI
	}
	// Also without a limit: libvirt keeps the limit of an earlier migration.
	p.BandwidthSet, p.Bandwidth = true, orUnlimited(req.BandwidthMiB)
	flags |= connections(req, p)
	for _, o := range []struct {
		on   bool
		flag virt.DomainMigrateFlags
	}{
		{req.Unsafe, virt.MIGRATE_UNSAFE},
		{req.AutoConverge, virt.MIGRATE_AUTO_CONVERGE},
		{req.PostCopy, virt.MIGRATE_POSTCOPY},
		{req.Paused, virt.MIGRATE_PAUSED},
	} {
		if o.on {
			flags |= o.flag
		}
	}
	return p, flags, nil
}

// connections sets the transport of memory.
func connections(req domain.MigrationRequest, p *virt.DomainMigrateParameters) (flags virt.DomainMigrateFlags) {
	if req.Parallel > 1 && !req.PostCopy {
		flags |= virt.MIGRATE_PARALLEL
		p.ParallelConnectionsSet, p.ParallelConnections = true, req.Parallel
	}
	if req.Compression != "" {
		flags |= virt.MIGRATE_COMPRESSED
		p.CompressionSet, p.Compression = true, req.Compression
	}
	return flags
}

// checkMigrationRequest validates a request, independently of the daemon.
func checkMigrationRequest(req domain.MigrationRequest) error {
	switch {
	case req.Domain == "" || req.DestinationURI == "":
		return fmt.Errorf("domain and destination: Required value: %w", domain.ErrInvalid)
	case req.Resume:
		return nil
	case len(req.CopyDisks) > 0 && req.DisksURI == "" && strings.HasPrefix(req.MigrateURI, "unix:"):
		return fmt.Errorf("DisksURI: Required value for disks %v, because memory uses a socket: %w", req.CopyDisks, domain.ErrInvalid)
	case req.Compression == "":
		return nil
	case req.Compression != zstd:
		return fmt.Errorf("compression: Unsupported value: %q (omit it, or use zstd): %w", req.Compression, domain.ErrUnsupported)
	case req.Parallel < 2 || req.PostCopy:
		return fmt.Errorf("compression needs parallel connections, and post-copy uses one connection (omit one of them): %w", domain.ErrUnsupported)
	}
	return nil
}

// fit adapts a request to the daemon: it refuses unavailable settings, and adds optimizations that
// are available.
func fit(c *virt.Connect, req domain.MigrationRequest, p *virt.DomainMigrateParameters) error {
	if !p.CompressionSet && !p.MigrateDisksSet {
		return nil
	}
	v, err := c.GetLibVersion()
	if err != nil {
		return err
	}
	if p.CompressionSet && v < hasZstd {
		return fmt.Errorf("migrate %s: compression %s needs libvirt %s, this is %s (omit it): %w",
			req.Domain, req.Compression, version(hasZstd), version(v), domain.ErrUnsupported)
	}
	if p.MigrateDisksSet && v >= hasDetectZeroes {
		p.MigrateDisksDetectZeroesSet, p.MigrateDisksDetectZeroesList = true, req.CopyDisks
	}
	return nil
}
