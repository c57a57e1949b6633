// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// cache sets the cache mode. The default is none if the file supports O_DIRECT, else writethrough:
// both keep writes that were acknowledged to the guest. An empty drive has no default.
func (p *diskPass) cache() error {
	mode := p.in.Cache
	switch mode {
	case "", v1.CacheNone, v1.CacheWriteThrough, v1.CacheWriteBack:
	default:
		return p.Invalid(p.field+".cache", fmt.Sprintf("Unsupported value: %q", mode), "use none, writethrough or writeback")
	}
	if specIsTrue(p.in.Shareable) {
		if cmp.Or(mode, v1.CacheNone) != v1.CacheNone {
			return p.Invalid(p.field+".cache", fmt.Sprintf("Invalid value: a shareable disk does not support cache %s", mode), "remove it, or use none")
		}
		mode = v1.CacheNone
	}
	if p.src != nil {
		direct := p.src.direct()
		switch {
		case mode == v1.CacheNone && !direct:
			return p.Invalid(p.field+".cache", "Invalid value: cache none, which shareable disks have, requires storage that supports O_DIRECT",
				"use other storage, or writethrough for a disk that is not shared")
		case mode == "" && direct:
			mode = v1.CacheNone
		case mode == "":
			mode = v1.CacheWriteThrough
		}
	}
	p.out.Driver.Cache = string(mode)
	return nil
}

// direct reports whether the image and all images below it bypass the page cache.
func (s *DiskSource) direct() bool {
	for at := s; at != nil; at = at.Backing {
		if !at.DirectIO {
			return false
		}
	}
	return s.DataStore == nil || s.DataStore.direct()
}

// ioUring is an I/O mode of libvirt without a constant in KubeVirt.
const ioUring v1.DriverIO = "io_uring"

// accessMode sets the I/O mode. The default is native if it neither blocks the guest, as the growth
// of a sparse file would, nor involves the page cache.
func (p *diskPass) accessMode() error {
	mode := p.in.IO
	switch mode {
	case "":
		if p.src != nil && p.out.Driver.Cache == string(v1.CacheNone) && p.src.allocated() {
			mode = v1.IONative
		}
	case v1.IONative, v1.IOThreads, ioUring:
	case "default": // documented by KubeVirt, unknown to libvirt
		mode = ""
	default:
		return p.Invalid(p.field+".io", fmt.Sprintf("Unsupported value: %q", mode), "use native or threads")
	}
	if c := p.out.Driver.Cache; mode == v1.IONative && c != "" && c != string(v1.CacheNone) {
		return p.Invalid(p.field+".io", "Invalid value: native requires cache none", "remove it, or use threads")
	}
	p.out.Driver.IO = string(mode)
	return nil
}

// allocated reports whether all blocks are allocated already.
func (s *DiskSource) allocated() bool {
	if s.DataStore != nil {
		s = s.DataStore
	}
	return s.Block || s.Preallocated
}

// errorPolicy sets the reaction to storage errors.
func (p *diskPass) errorPolicy() error {
	policy := v1.DiskErrorPolicyStop
	if p.in.ErrorPolicy != nil {
		policy = *p.in.ErrorPolicy
	}
	switch policy {
	case v1.DiskErrorPolicyStop, v1.DiskErrorPolicyIgnore, v1.DiskErrorPolicyReport, v1.DiskErrorPolicyEnospace:
		p.out.Driver.ErrorPolicy = string(policy)
	default:
		return p.Invalid(p.field+".errorPolicy", fmt.Sprintf("Unsupported value: %q", policy), "use stop, ignore, report or enospace")
	}
	return nil
}

// Limits of block sizes in bytes: those of QEMU, and of firmware on s390x for booting.
const (
	minSector      = 512
	maxSector      = 2 << 20
	maxSectorS390X = 4096
)

// blockSize sets the block sizes that the guest sees: those of the spec, or those of the volume.
func (p *diskPass) blockSize() error {
	b := p.in.BlockSize
	if b == nil {
		return nil
	}
	match := b.MatchVolume != nil && !specIsFalse(b.MatchVolume.Enabled)
	switch {
	case b.Custom != nil && match:
		return p.Invalid(p.field+".blockSize", "Forbidden: custom and matchVolume are mutually exclusive", "set one of them")
	case b.Custom != nil:
		return p.customBlockSize(b.Custom)
	case match && p.src != nil:
		return p.matchVolume()
	}
	return nil
}

func (p *diskPass) customBlockSize(c *v1.CustomBlockSize) error {
	field := p.field + ".blockSize.custom"
	out := &libvirtxml.DomainDiskBlockIO{LogicalBlockSize: c.Logical, PhysicalBlockSize: c.Physical}
	if g := c.DiscardGranularity; g != nil {
		if c.Logical > 0 && *g%c.Logical != 0 {
			return p.Invalid(field+".discardGranularity", fmt.Sprintf("Invalid value: %d is not a multiple of the logical block size", *g), "use a multiple")
		}
		out.DiscardGranularity = new(*g)
	}
	return p.setBlockSize(field, out)
}

// matchVolume uses the block sizes of the device or file with the data.
func (p *diskPass) matchVolume() error {
	field := p.field + ".blockSize.matchVolume"
	s := p.src.Sector
	if p.src.DataStore != nil {
		s = p.src.DataStore.Sector
	}
	if s == nil || s.Logical == 0 && s.Physical == 0 {
		return &Error{
			Object: p.object(), Field: field, Reason: "the node cannot determine the block sizes of the volume",
			Remedy: "set blockSize.custom", Err: domain.ErrUnsupported,
		}
	}
	out := &libvirtxml.DomainDiskBlockIO{
		LogicalBlockSize: cmp.Or(s.Logical, s.Physical), PhysicalBlockSize: cmp.Or(s.Physical, s.Logical),
	}
	if g := s.DiscardGranularity; g > 0 {
		if g%out.LogicalBlockSize != 0 {
			g = out.PhysicalBlockSize
		}
		out.DiscardGranularity = new(g)
	}
	return p.setBlockSize(field, out)
}

func (p *diskPass) setBlockSize(field string, b *libvirtxml.DomainDiskBlockIO) error {
	limit := uint(maxSector)
	if p.Facts.Arch == xmlspec.ArchS390X {
		limit = maxSectorS390X
	}
	for _, n := range []uint{b.LogicalBlockSize, b.PhysicalBlockSize} {
		if n < minSector || n&(n-1) != 0 || n > limit {
			return p.Invalid(field, fmt.Sprintf("Invalid value: %d is not a block size of %s", n, p.Facts.Arch),
				fmt.Sprintf("use a power of two from %d to %d", minSector, limit))
		}
	}
	if b.PhysicalBlockSize < b.LogicalBlockSize {
		return p.Invalid(field, fmt.Sprintf("Invalid value: the physical block size %d is less than the logical block size %d",
			b.PhysicalBlockSize, b.LogicalBlockSize), "increase the physical block size")
	}
	p.out.BlockIO = b
	return nil
}
