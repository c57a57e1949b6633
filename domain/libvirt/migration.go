// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"fmt"
	"strings"
	"time"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
)

// zstd is the compression of memory that libvirt offers on parallel connections.
const zstd = "zstd"

// Releases of libvirt, as its version numbers, that brought a parameter.
const (
	hasZstd         = 9_004_000
	hasDetectZeroes = 10_009_000
)

// unlimited is the greatest bandwidth in MiB/s that libvirt takes for QEMU.
const unlimited = 1<<43 - 1

func orUnlimited(mib uint64) uint64 {
	if mib == 0 || mib > unlimited {
		return unlimited
	}
	return mib
}

// milliseconds rounds up: less than the least is still something.
func milliseconds(d time.Duration) uint64 {
	return uint64((min(d, domain.MaxDowntimeCeiling) + time.Millisecond - 1) / time.Millisecond)
}

// migration translates a request.
func migration(req domain.MigrationRequest) (*virt.DomainMigrateParameters, virt.DomainMigrateFlags, error) {
	if err := check(req); err != nil {
		return nil, 0, fmt.Errorf("migrate %q to %q: %w", req.Domain, req.DestinationURI, err)
	}
	p := &virt.DomainMigrateParameters{}
	flags := virt.MIGRATE_LIVE | virt.MIGRATE_PEER2PEER | virt.MIGRATE_PERSIST_DEST
	if req.MigrateURI != "" {
		p.URISet, p.URI = true, req.MigrateURI
	}
	if req.Resume { // all else is that of the migration
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
	// Also without a limit: libvirt keeps the one that an earlier migration was given.
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

// connections sets how memory travels.
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

// check tells what is wrong with a request, whatever the daemon.
func check(req domain.MigrationRequest) error {
	switch {
	case req.Domain == "" || req.DestinationURI == "":
		return fmt.Errorf("needs a domain and a destination: %w", domain.ErrInvalid)
	case req.Resume:
		return nil
	case len(req.CopyDisks) > 0 && req.DisksURI == "" && strings.HasPrefix(req.MigrateURI, "unix:"):
		return fmt.Errorf("memory goes to a socket, so disks %v need one of their own (DisksURI): %w", req.CopyDisks, domain.ErrInvalid)
	case req.Compression == "":
		return nil
	case req.Compression != zstd:
		return fmt.Errorf("compression %q (leave it out, or use zstd): %w", req.Compression, domain.ErrUnsupported)
	case req.Parallel < 2 || req.PostCopy:
		return fmt.Errorf("compression needs parallel connections, and post-copy has one (leave one of them out): %w", domain.ErrUnsupported)
	}
	return nil
}

// fit adapts a request to the daemon: it refuses what is asked for and not there, and
// adds what saves work where it is.
func fit(c *virt.Connect, req domain.MigrationRequest, p *virt.DomainMigrateParameters) error {
	if !p.CompressionSet && !p.MigrateDisksSet {
		return nil
	}
	v, err := c.GetLibVersion()
	if err != nil {
		return err
	}
	if p.CompressionSet && v < hasZstd {
		return fmt.Errorf("migrate %s: compression %s needs libvirt %s, this is %s (leave it out): %w",
			req.Domain, req.Compression, version(hasZstd), version(v), domain.ErrUnsupported)
	}
	if p.MigrateDisksSet && v >= hasDetectZeroes {
		p.MigrateDisksDetectZeroesSet, p.MigrateDisksDetectZeroesList = true, req.CopyDisks
	}
	return nil
}
