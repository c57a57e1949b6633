// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"fmt"
	"path/filepath"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// Formats of disk images.
const (
	formatRaw   = "raw"
	formatQcow2 = "qcow2"
)

// source sets what is behind the disk: whatever the facts say about its volume.
func (p *diskPass) source(vol *v1.Volume) error {
	if vol == nil {
		if p.in.CDRom == nil {
			return p.Invalid(p.field+".name", fmt.Sprintf("no volume %q", p.in.Name), "add a volume of that name to spec.volumes")
		}
		return p.emptyDrive()
	}
	if kind := unsupportedVolume(vol); kind != "" {
		return p.Unsupported(fmt.Sprintf("spec.volumes[%s].%s", vol.Name, kind), "use a volume of another kind")
	}
	src, ok := p.Facts.Disks[p.in.Name]
	if !ok {
		return &Error{
			Object: p.object(), Field: fmt.Sprintf("spec.volumes[%s]", vol.Name),
			Reason: "the node has no file for this volume", Remedy: "wait until it is provisioned and mounted", Err: ErrNotFound,
		}
	}
	if p.out.Device == "lun" && !src.Block {
		return p.Invalid(p.field+".lun", "its volume is no block device", "make it a disk, or use a volume of mode Block")
	}
	return p.data(&src)
}

// data sets what the facts say: image, images below it, how to access them.
func (p *diskPass) data(src *DiskSource) error {
	format, xml, err := p.image(src)
	if err != nil {
		return err
	}
	p.out.Driver.Type, p.out.Source = format, xml
	p.ro = p.ro || src.ReadOnly
	if src.Backing != nil {
		if p.out.BackingStore, err = p.backing(src.Backing, 1); err != nil {
			return err
		}
	}
	if p.out.Device != "cdrom" && !src.Preallocated {
		p.out.Driver.Discard = "unmap"
	}
	if err := p.cache(src); err != nil {
		return err
	}
	return p.accessMode(src)
}

// emptyDrive is a CD-ROM drive without a disc.
func (p *diskPass) emptyDrive() error {
	p.out.Driver.Discard = "unmap"
	return nil
}

// unsupportedVolume names volumes that are no disk image.
func unsupportedVolume(v *v1.Volume) string {
	switch {
	case v.MemoryDump != nil:
		return "memoryDump"
	case v.DownwardMetrics != nil:
		return "downwardMetrics"
	case v.ContainerPath != nil:
		return "containerPath"
	}
	return ""
}

// image converts one file or block device.
func (p *diskPass) image(src *DiskSource) (string, *libvirtxml.DomainDiskSource, error) {
	format := cmp.Or(src.Format, formatRaw)
	if format != formatRaw && format != formatQcow2 {
		return "", nil, p.Unsupported(fmt.Sprintf("spec.volumes[%s]", p.in.Name), fmt.Sprintf("the image has format %s: use raw or qcow2", format))
	}
	if !filepath.IsAbs(src.Path) {
		return "", nil, &Error{
			Object: p.object(), Field: fmt.Sprintf("spec.volumes[%s]", p.in.Name),
			Reason: fmt.Sprintf("the node names no absolute path but %q", src.Path), Err: ErrInvalid,
		}
	}
	if src.Block {
		return format, &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: src.Path}}, nil
	}
	return format, &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: src.Path}}, nil
}

// maxBacking bounds the depth of a chain of images.
const maxBacking = 16

// backing converts the images below an overlay. The chain is always closed, so
// that QEMU follows no path that an image names itself.
func (p *diskPass) backing(src *DiskSource, depth int) (*libvirtxml.DomainDiskBackingStore, error) {
	if src == nil {
		return &libvirtxml.DomainDiskBackingStore{}, nil
	}
	if depth > maxBacking {
		return nil, p.Invalid(fmt.Sprintf("spec.volumes[%s]", p.in.Name), "too many images on top of each other", "flatten the image")
	}
	format, xml, err := p.image(src)
	if err != nil {
		return nil, err
	}
	below, err := p.backing(src.Backing, depth+1)
	if err != nil {
		return nil, err
	}
	return &libvirtxml.DomainDiskBackingStore{
		Format: &libvirtxml.DomainDiskFormat{Type: format}, Source: xml, BackingStore: below,
	}, nil
}

// cache sets the cache mode. A cache the spec leaves open is none where the
// file can bypass the page cache, else writethrough: both keep what the guest
// was told is written.
func (p *diskPass) cache(src *DiskSource) error {
	mode := string(p.in.Cache)
	direct := src.DirectIO && (src.Backing == nil || src.Backing.DirectIO)
	switch mode {
	case "":
		mode = "writethrough"
		if direct {
			mode = "none"
		}
	case "none":
		if !direct {
			return p.Invalid(p.field+".cache", "none needs a file that can be opened with O_DIRECT", "leave it out, or use writethrough")
		}
	case "writethrough", "writeback":
	default:
		return p.Invalid(p.field+".cache", fmt.Sprintf("%q is no cache mode", mode), "use none, writethrough or writeback")
	}
	if isTrue(p.in.Shareable) {
		if p.in.Cache != "" && mode != "none" {
			return p.Invalid(p.field+".cache", fmt.Sprintf("a shareable disk cannot have cache %s", mode), "leave it out, or use none")
		}
		mode = "none"
		p.out.Shareable = &libvirtxml.DomainDiskShareable{}
	}
	p.out.Driver.Cache = mode
	return nil
}

// accessMode sets the I/O mode, which depends on the cache.
func (p *diskPass) accessMode(src *DiskSource) error {
	mode := p.out.Driver.Cache
	switch io := string(p.in.IO); io {
	case "":
		if mode == "none" && (src.Block || src.Preallocated) {
			p.out.Driver.IO = "native"
		}
	case "native", "threads", "io_uring":
		p.out.Driver.IO = io
	default:
		return p.Invalid(p.field+".io", fmt.Sprintf("%q is no I/O mode", io), "use native or threads")
	}
	if p.out.Driver.IO == "native" && mode != "none" {
		return p.Invalid(p.field+".io", "native needs cache none", "leave it out, or use threads")
	}
	return nil
}

// policies sets what happens on an error of the storage.
func (p *diskPass) policies() error {
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
