// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"fmt"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// cache sets the cache mode. A cache the spec leaves open is none where the
// file can bypass the page cache, else writethrough: both keep what the guest
// was told is written. A drive without a disc keeps it open.
func (p *diskPass) cache() error {
	mode := p.in.Cache
	switch mode {
	case "", v1.CacheNone, v1.CacheWriteThrough, v1.CacheWriteBack:
	default:
		return p.Invalid(p.field+".cache", fmt.Sprintf("%q is no cache mode", mode), "use none, writethrough or writeback")
	}
	if isTrue(p.in.Shareable) {
		if cmp.Or(mode, v1.CacheNone) != v1.CacheNone {
			return p.Invalid(p.field+".cache", fmt.Sprintf("a shareable disk cannot have cache %s", mode), "leave it out, or use none")
		}
		mode = v1.CacheNone
	}
	if p.src != nil {
		direct := p.src.direct()
		switch {
		case mode == v1.CacheNone && !direct:
			return p.Invalid(p.field+".cache", "none needs storage that can be opened with O_DIRECT, which a shareable disk needs as well",
				"use other storage, or writethrough for a disk of one guest")
		case mode == "" && direct:
			mode = v1.CacheNone
		case mode == "":
			mode = v1.CacheWriteThrough
		}
	}
	p.out.Driver.Cache = string(mode)
	return nil
}

// direct tells whether the image and all that it needs bypass the page cache.
func (s *DiskSource) direct() bool {
	for at := s; at != nil; at = at.Backing {
		if !at.DirectIO {
			return false
		}
	}
	return s.DataStore == nil || s.DataStore.direct()
}

// ioUring is an I/O mode of libvirt that KubeVirt has no name for.
const ioUring v1.DriverIO = "io_uring"

// accessMode sets the I/O mode: native where it can neither block the guest, as it
// would while a sparse file grows, nor miss the page cache.
func (p *diskPass) accessMode() error {
	mode := p.in.IO
	switch mode {
	case "":
		if p.src != nil && p.out.Driver.Cache == string(v1.CacheNone) && p.src.allocated() {
			mode = v1.IONative
		}
	case v1.IONative, v1.IOThreads, ioUring:
	case "default": // in KubeVirt's documentation; no value of libvirt
		mode = ""
	default:
		return p.Invalid(p.field+".io", fmt.Sprintf("%q is no I/O mode", mode), "use native or threads")
	}
	if c := p.out.Driver.Cache; mode == v1.IONative && c != "" && c != string(v1.CacheNone) {
		return p.Invalid(p.field+".io", "native needs cache none", "leave it out, or use threads")
	}
	p.out.Driver.IO = string(mode)
	return nil
}

// allocated tells whether writing needs no new blocks.
func (s *DiskSource) allocated() bool {
	if s.DataStore != nil {
		s = s.DataStore
	}
	return s.Block || s.Preallocated
}

// errorPolicy sets what happens on an error of the storage.
func (p *diskPass) errorPolicy() error {
	policy := v1.DiskErrorPolicyStop
	if p.in.ErrorPolicy != nil {
		policy = *p.in.ErrorPolicy
	}
	switch policy {
	case v1.DiskErrorPolicyStop, v1.DiskErrorPolicyIgnore, v1.DiskErrorPolicyReport, v1.DiskErrorPolicyEnospace:
		p.out.Driver.ErrorPolicy = string(policy)
	default:
		return p.Invalid(p.field+".errorPolicy", fmt.Sprintf("%q is no policy", policy), "use stop, ignore, report or enospace")
	}
	return nil
}

// Limits of block sizes, in bytes: what QEMU accepts, and what firmware of s390x can
// boot from.
const (
	minSector      = 512
	maxSector      = 2 << 20
	maxSectorS390X = 4096
)

// blockSize sets the block sizes that the guest sees: those of the spec, or those of
// the storage.
func (p *diskPass) blockSize() error {
	b := p.in.BlockSize
	if b == nil {
		return nil
	}
	match := b.MatchVolume != nil && !isFalse(b.MatchVolume.Enabled)
	switch {
	case b.Custom != nil && match:
		return p.Invalid(p.field+".blockSize", "is both custom and matchVolume", "leave one")
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
			return p.Invalid(field+".discardGranularity", fmt.Sprintf("%d is no multiple of the logical block size", *g), "make it one")
		}
		out.DiscardGranularity = ptr(*g)
	}
	return p.setBlockSize(field, out)
}

// matchVolume takes the block sizes of the device or file with the data.
func (p *diskPass) matchVolume() error {
	field := p.field + ".blockSize.matchVolume"
	s := p.src.Sector
	if p.src.DataStore != nil {
		s = p.src.DataStore.Sector
	}
	if s == nil || s.Logical == 0 && s.Physical == 0 {
		return &Error{
			Object: p.object(), Field: field, Reason: "the node cannot tell the block sizes of the volume",
			Remedy: "set blockSize.custom", Err: ErrUnsupported,
		}
	}
	out := &libvirtxml.DomainDiskBlockIO{
		LogicalBlockSize: cmp.Or(s.Logical, s.Physical), PhysicalBlockSize: cmp.Or(s.Physical, s.Logical),
	}
	if g := s.DiscardGranularity; g > 0 {
		if g%out.LogicalBlockSize != 0 {
			g = out.PhysicalBlockSize
		}
		out.DiscardGranularity = ptr(g)
	}
	return p.setBlockSize(field, out)
}

func (p *diskPass) setBlockSize(field string, b *libvirtxml.DomainDiskBlockIO) error {
	limit := uint(maxSector)
	if p.Facts.Arch == archS390X {
		limit = maxSectorS390X
	}
	for _, n := range []uint{b.LogicalBlockSize, b.PhysicalBlockSize} {
		if n < minSector || n&(n-1) != 0 || n > limit {
			return p.Invalid(field, fmt.Sprintf("%d is no block size of %s", n, p.Facts.Arch),
				fmt.Sprintf("use a power of two from %d to %d", minSector, limit))
		}
	}
	if b.PhysicalBlockSize < b.LogicalBlockSize {
		return p.Invalid(field, fmt.Sprintf("the physical block size %d is less than the logical one, %d",
			b.PhysicalBlockSize, b.LogicalBlockSize), "make it at least as large")
	}
	p.out.BlockIO = b
	return nil
}
