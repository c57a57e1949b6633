// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/diff"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// convergence brings a running domain to its desired definition.
type convergence struct{ *decision }

// converge applies the differences between the wanted and the running domain that can be
// applied while it runs. Those that need a restart or a migration stay as they are, in the
// running domain and in its definition. So do the number of CPUs and the size of memory: the Pod is as
// large as it was made, and a guest that outgrows its limits is killed. Those are changed at the end of a
// migration, which has made a Pod of the new size.
//
// It works on the state that the pass has read, and applies everything in one go: an operation that
// fails is a difference again in the next pass, with fresh input. Nothing is retried here.
func (d convergence) converge() error {
	if d.Desired == nil || d.State.Domain == nil {
		return nil
	}
	applied, err := diff.LastApplied(d.meta)
	if err != nil {
		return err
	}
	if d.plan.Differences, err = diff.Compare(d.Desired, applied, d.State.Domain); err != nil {
		return fmt.Errorf("plan: compare %s: %w", d.State.Name, err)
	}
	for i := range d.plan.Differences {
		found := &d.plan.Differences[i]
		if outgrowsPod(*found) {
			found.Class, found.Reason, found.Operation = diff.NeedsMigration, "the Pod has to be of that size first", nil
		}
		if found.Class == diff.Live && found.Operation != nil {
			d.do(action.Action{Verb: action.Apply, Operation: *found.Operation, Why: found.String()})
		}
	}
	d.grow()
	return nil
}

// outgrowsPod reports whether a difference is one of the number of CPUs or the size of memory that a running domain can take.
func outgrowsPod(found diff.Difference) bool { return pluggedCPUs(found) || pluggedMemory(found) }

func pluggedCPUs(found diff.Difference) bool {
	return found.Operation != nil && found.Operation.Verb == domain.SetVCPUs
}

func pluggedMemory(found diff.Difference) bool {
	if found.Operation == nil {
		return false
	}
	_, is := found.Operation.Device.(*libvirtxml.DomainMemorydev)
	return is
}

// grow resizes disks whose volumes have grown. The known sizes are stored in the domain's
// metadata; the first pass only records them. It comes last, since a size is recorded only
// once the disk has it.
func (d convergence) grow() {
	sizes := d.sizes()
	var larger []string
	for i := range d.State.Domain.Devices.Disks {
		disk := &d.State.Domain.Devices.Disks[i]
		name := xmlspec.NameOf(disk.Alias)
		bytes, known := sizes[name]
		if !known || disk.Source == nil || disk.Device == "cdrom" {
			continue
		}
		// The size that counts is the one that the disk had when it was last looked at, not the one in the
		// spec: a claim may be larger than was asked for, and grow by itself. After a crash between
		// resizing and recording, the disk is resized to the size that it has, which changes nothing.
		switch had, seen := d.meta.DiskBytes[name]; {
		case !seen:
			d.remember("the size of disk "+name, func(m *domain.Metadata) { setDiskBytes(m, name, bytes) })
		case bytes > had:
			larger = append(larger, name)
		}
	}
	// In a fixed order, so that the same input gives the same plan.
	slices.Sort(larger)
	for _, name := range larger {
		op := domain.Operation{Verb: domain.ResizeDisk, Domain: d.State.Name, Disk: xmlspec.AliasPrefix + name}
		if !d.Facts.Disks[name].Block { // the size of a block device is its own
			op.Bytes = uint64(sizes[name])
		}
		d.do(action.Action{Verb: action.Apply, Operation: op, Why: fmt.Sprintf("volume %s has grown", name)})
		d.remember("the size of disk "+name, func(m *domain.Metadata) { setDiskBytes(m, name, sizes[name]) })
	}
}

// sizes returns the sizes of the volumes with claims, by name, as far as they are known.
func (d convergence) sizes() map[string]int64 {
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

func setDiskBytes(m *domain.Metadata, name string, bytes int64) {
	if m.DiskBytes == nil {
		m.DiskBytes = map[string]int64{}
	}
	m.DiskBytes[name] = bytes
}
