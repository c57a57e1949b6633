// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"path/filepath"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// Formats of disk images.
const (
	formatRaw   = "raw"
	formatQcow2 = "qcow2"
)

// source sets the source of the disk from the facts about its volume.
func (p *diskPass) source() error {
	if p.vol == nil {
		if p.in.CDRom == nil {
			return p.Invalid(p.field+".name", fmt.Sprintf("no matching volume %q", p.in.Name), "add a volume with that name to spec.volumes")
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
			Reason: "the node has no file for this volume", Remedy: "wait until it is provisioned and mounted", Err: domain.ErrNotFound,
		}
	}
	p.src = &src
	if p.out.Device == deviceLUN && !src.Block {
		return p.Invalid(p.field+".lun", "Invalid value: the volume is not a block device", "use a disk, or a volume with mode Block")
	}
	return p.data()
}

func (p *diskPass) volumeField() string { return fmt.Sprintf("spec.volumes[%s]", p.vol.Name) }

// isDisk rejects volumes that cannot be a disk.
func (p *diskPass) isDisk() error {
	switch {
	case p.vol.MemoryDump != nil:
		return p.Invalid(p.volumeField()+".memoryDump", "Invalid value: a memory dump is not a disk", "remove the disk")
	case p.vol.ContainerPath != nil:
		return p.Invalid(p.volumeField()+".containerPath", "Invalid value: a container path is a directory, not a disk",
			"use it in spec.domain.devices.filesystems")
	}
	return nil
}

// data sets the image, the images below it, and the location of its data.
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
	} else if specIsTrue(p.in.ChangedBlockTracking) {
		return &Error{
			Object: p.object(), Field: p.field + ".changedBlockTracking",
			Reason: "the node has no changed block tracking overlay for the volume",
			Remedy: "remove it, or use a node with changed block tracking", Err: domain.ErrUnsupported,
		}
	}
	if p.src.Backing != nil || format == formatQcow2 {
		p.out.BackingStore, err = p.backing(p.src.Backing, 1)
	}
	return err
}

// dataStore sets the location of the data if the image only records changed blocks.
func (p *diskPass) dataStore() error {
	below := p.src.DataStore
	if below.DataStore != nil || below.Backing != nil || cmp.Or(below.Format, formatRaw) != formatRaw || p.src.Format != formatQcow2 {
		return p.Invalid(p.volumeField(), "the node's overlay does not support changed block tracking",
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

// reservation enables SCSI persistent reservations for a LUN through a helper of the node: QEMU
// itself is not permitted to make them.
func (p *diskPass) reservation() error {
	if p.in.LUN == nil || !p.in.LUN.Reservation {
		return nil
	}
	field := p.field + ".lun.reservation"
	if !filepath.IsAbs(p.Facts.ReservationSocket) {
		return &Error{
			Object: p.object(), Field: field,
			Reason: "the node has no helper for SCSI persistent reservations",
			Remedy: "run qemu-pr-helper on the node, or remove it", Err: domain.ErrUnsupported,
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

// image converts a single file or block device.
func (p *diskPass) image(src *DiskSource) (string, *libvirtxml.DomainDiskSource, error) {
	format := cmp.Or(src.Format, formatRaw)
	if format != formatRaw && format != formatQcow2 {
		return "", nil, p.Unsupported(p.volumeField(), fmt.Sprintf("image format %s: use raw or qcow2", format))
	}
	path := cmp.Or(src.Inside, src.Path)
	if !filepath.IsAbs(path) {
		return "", nil, &Error{
			Object: p.object(), Field: p.volumeField(),
			Reason: fmt.Sprintf("the node's path of the volume is not absolute: %q", path),
			Remedy: "correct the volume directory of the node", Err: domain.ErrInvalid,
		}
	}
	if src.Block {
		return format, &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: path}}, nil
	}
	return format, &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: path}}, nil
}

// maxBacking limits the depth of a backing chain.
const maxBacking = 16

// backing converts the images below an overlay. The chain is always terminated explicitly, so that
// QEMU never follows a path from within an image.
func (p *diskPass) backing(src *DiskSource, depth int) (*libvirtxml.DomainDiskBackingStore, error) {
	if src == nil {
		return &libvirtxml.DomainDiskBackingStore{Source: &libvirtxml.DomainDiskSource{}}, nil
	}
	if depth > maxBacking {
		return nil, p.Invalid(p.volumeField(), "the backing chain is too long", "flatten the image")
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

// discards reports whether discards of the guest are passed on to the storage: not for CD-ROMs, and
// not for a claim that must stay preallocated. Ephemeral data always is discarded.
func (p *diskPass) discards() bool {
	if p.vol == nil || p.vol.Ephemeral != nil || p.vol.EmptyDisk != nil || p.vol.ContainerDisk != nil {
		return true
	}
	return p.out.Device != deviceCDROM && !p.reports.preallocated[p.vol.Name]
}
