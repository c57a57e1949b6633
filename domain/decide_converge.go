// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"slices"
)

// converge brings a running guest in line with its object, as far as that can
// be done while it runs. What needs a restart or a migration stays as it is;
// nothing about it is changed behind the guest's back.
func (d *decision) converge() error {
	if d.Desired == nil || d.State.Domain == nil {
		return nil
	}
	applied, err := LastApplied(d.meta)
	if err != nil {
		return err
	}
	if d.plan.Differences, err = Diff(d.Desired, applied, d.State.Domain); err != nil {
		return fmt.Errorf("domain: compare %s: %w", d.State.Name, err)
	}
	for _, diff := range d.plan.Differences {
		if diff.Class == Live && diff.Operation != nil {
			d.do(Task{Verb: TaskApply, Operation: *diff.Operation, Why: diff.String()})
		}
	}
	d.grow()
	return nil
}

// grow lets disks follow their volumes. How large each was is kept in the domain:
// the first time a disk is seen nothing is known to have changed. It comes last,
// since a size is only kept once the disk has it.
func (d *decision) grow() {
	sizes := d.sizes()
	var larger []string
	for i := range d.State.Domain.Devices.Disks {
		disk := &d.State.Domain.Devices.Disks[i]
		name := nameOf(disk.Alias)
		bytes, known := sizes[name]
		if !known || disk.Source == nil || disk.Device == "cdrom" {
			continue
		}
		switch had, seen := d.meta.DiskBytes[name]; {
		case !seen:
			d.remember("the size of disk "+name, func(m *Metadata) { m.setDiskBytes(name, bytes) })
		case bytes > had:
			larger = append(larger, name)
		}
	}
	slices.Sort(larger)
	for _, name := range larger {
		op := Operation{Verb: ResizeDisk, Domain: d.State.Name, Disk: AliasPrefix + name}
		if !d.Facts.Disks[name].Block { // a block device is as large as it is
			op.Bytes = uint64(sizes[name])
		}
		d.do(Task{Verb: TaskApply, Operation: op, Why: fmt.Sprintf("volume %s has grown", name)})
		d.remember("the size of disk "+name, func(m *Metadata) { m.setDiskBytes(name, sizes[name]) })
	}
}

// sizes are those of the claimed volumes, by name, as far as they are known.
func (d *decision) sizes() map[string]int64 {
	var out map[string]int64
	for i := range d.VMI.Spec.Volumes {
		v := &d.VMI.Spec.Volumes[i]
		src := d.Facts.Disks[v.Name]
		if v.PersistentVolumeClaim == nil && v.DataVolume == nil || src.Bytes <= 0 || src.ReadOnly {
			continue
		}
		if out == nil {
			out = map[string]int64{}
		}
		out[v.Name] = src.Bytes
	}
	return out
}

func (m *Metadata) setDiskBytes(name string, bytes int64) {
	if m.DiskBytes == nil {
		m.DiskBytes = map[string]int64{}
	}
	m.DiskBytes[name] = bytes
}
