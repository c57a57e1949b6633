// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"fmt"
	"path/filepath"

	"libvirt.org/go/libvirtxml"
)

// Formats of disk images.
const (
	formatRaw   = "raw"
	formatQcow2 = "qcow2"
)

// source sets what is behind the disk: whatever the facts say about its volume.
func (p *diskPass) source() error {
	if p.vol == nil {
		if p.in.CDRom == nil {
			return p.Invalid(p.field+".name", fmt.Sprintf("no matching volume %q", p.in.Name), "add a volume of that name to spec.volumes")
		}
		p.out.Source = &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{}}
		return nil
	}
	if err := p.isDisk(); err != nil {
		return err
	}
	src, ok := p.Facts.Disks[p.in.Name]
	if !ok {
		return &Error{
			Object: p.object(), Field: p.volumeField(),
			Reason: "the node has no file for this volume", Remedy: "wait until it is provisioned and mounted", Err: ErrNotFound,
		}
	}
	p.src = &src
	if p.out.Device == deviceLUN && !src.Block {
		return p.Invalid(p.field+".lun", "its volume is no block device", "make it a disk, or use a volume of mode Block")
	}
	return p.data()
}

func (p *diskPass) volumeField() string { return fmt.Sprintf("spec.volumes[%s]", p.vol.Name) }

// isDisk refuses volumes that are no disk of a guest.
func (p *diskPass) isDisk() error {
	switch {
	case p.vol.MemoryDump != nil:
		return p.Invalid(p.volumeField()+".memoryDump", "holds the guest's memory, not a disk", "remove the disk")
	case p.vol.ContainerPath != nil:
		return p.Invalid(p.volumeField()+".containerPath", "is a directory, not a disk",
			"use it in spec.domain.devices.filesystems")
	}
	return nil
}

// data sets what the facts say: image, images below it, where its data lies.
func (p *diskPass) data() error {
	format, xml, err := p.image(p.src)
	if err != nil {
		return err
	}
	p.out.Driver.Type, p.out.Source = format, xml
	p.ro = p.ro || p.src.ReadOnly || p.vol.DownwardMetrics != nil
	if p.src.DataStore != nil {
		if err := p.dataStore(); err != nil {
			return err
		}
	} else if isTrue(p.in.ChangedBlockTracking) {
		return &Error{
			Object: p.object(), Field: p.field + ".changedBlockTracking",
			Reason: "the node has no overlay that notes which blocks of the volume change",
			Remedy: "leave it out, or use a node that tracks changed blocks", Err: ErrUnsupported,
		}
	}
	if p.src.Backing != nil || format == formatQcow2 {
		p.out.BackingStore, err = p.backing(p.src.Backing, 1)
	}
	return err
}

// dataStore is where the data lies if the image only notes what has changed.
func (p *diskPass) dataStore() error {
	below := p.src.DataStore
	if below.DataStore != nil || below.Backing != nil || cmp.Or(below.Format, formatRaw) != formatRaw || p.src.Format != formatQcow2 {
		return p.Invalid(p.volumeField(), "the node tracks its changed blocks in an image that cannot do so",
			"use a qcow2 overlay over raw data")
	}
	format, xml, err := p.image(below)
	if err != nil {
		return err
	}
	p.out.Source.DataStore = &libvirtxml.DomainDiskDataStore{Format: &libvirtxml.DomainDiskFormat{Type: format}, Source: xml}
	p.ro = p.ro || below.ReadOnly
	return nil
}

// reservation lets a LUN take and release SCSI persistent reservations through a
// helper of the node: QEMU itself may not.
func (p *diskPass) reservation() error {
	if p.in.LUN == nil || !p.in.LUN.Reservation {
		return nil
	}
	field := p.field + ".lun.reservation"
	if !filepath.IsAbs(p.Facts.ReservationSocket) {
		return &Error{
			Object: p.object(), Field: field,
			Reason: "the node has no helper for SCSI persistent reservations",
			Remedy: "run qemu-pr-helper on the node, or leave it out", Err: ErrUnsupported,
		}
	}
	p.out.Source.Reservations = &libvirtxml.DomainDiskReservations{
		Managed: yesNo(false), Migration: yesNo(true),
		Source: &libvirtxml.DomainDiskReservationsSource{
			UNIX: &libvirtxml.DomainChardevSourceUNIX{Mode: "client", Path: p.Facts.ReservationSocket},
		},
	}
	return nil
}

// image converts one file or block device.
func (p *diskPass) image(src *DiskSource) (string, *libvirtxml.DomainDiskSource, error) {
	format := cmp.Or(src.Format, formatRaw)
	if format != formatRaw && format != formatQcow2 {
		return "", nil, p.Unsupported(p.volumeField(), fmt.Sprintf("the image has format %s: use raw or qcow2", format))
	}
	path := cmp.Or(src.Inside, src.Path)
	if !filepath.IsAbs(path) {
		return "", nil, &Error{
			Object: p.object(), Field: p.volumeField(),
			Reason: fmt.Sprintf("the node names no absolute path but %q", path),
			Remedy: "correct where the node keeps its volumes", Err: ErrInvalid,
		}
	}
	if src.Block {
		return format, &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: path}}, nil
	}
	return format, &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: path}}, nil
}

// maxBacking bounds the depth of a chain of images.
const maxBacking = 16

// backing converts the images below an overlay. The chain is always closed, so
// that QEMU follows no path that an image names itself.
func (p *diskPass) backing(src *DiskSource, depth int) (*libvirtxml.DomainDiskBackingStore, error) {
	if src == nil {
		return &libvirtxml.DomainDiskBackingStore{Source: &libvirtxml.DomainDiskSource{}}, nil
	}
	if depth > maxBacking {
		return nil, p.Invalid(p.volumeField(), "too many images on top of each other", "flatten the image")
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

// discards tells whether what the guest gives back is given back to the storage: not
// for discs, and not for a claim that is to keep all of its space. Data that ends
// with the guest is always given back.
func (p *diskPass) discards() bool {
	if p.vol == nil || p.vol.Ephemeral != nil || p.vol.EmptyDisk != nil || p.vol.ContainerDisk != nil {
		return true
	}
	return p.out.Device != deviceCDROM && !p.reports.preallocated[p.vol.Name]
}
