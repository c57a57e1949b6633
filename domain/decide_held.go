// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"slices"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/handoff"
)

// A hypervisor that has not heard how the switch went lets the guest run on at the
// source: libvirt does when the answer to its Finish is lost with the link. Where both
// sides see the same image, QEMU's lock on it stops one of them. Where nothing does, the
// guest would run twice. It is therefore held: it arrives with its CPUs stopped, the
// source says Stall when it has stopped for good, and the target then takes it over and
// lets it go. Until then a source that runs on takes the guest back by Revert, or tells
// how it has ended; and what the target holds, which would be the guest of a while ago,
// ends without having run. So it does if the source's node dies before it has said
// Stall: nobody knows then whether the guest has run on there.
//
// That takes the word of the source, by way of the API server: while one of the two, or
// the target's agent, is away at that moment, the guest stands still.
//
// A guest that may be switched to post-copy is not held: it has to run at the target
// long before its source is done. Nor is one whose target does not know the lease, a
// stock virt-handler or another cluster.

// holds tells whether the guest is to be held.
func (d *decision) holds(r MigrationRequest) bool {
	ours := d.lease.Cause == handoff.CauseTargetReady && !d.VMI.IsMigrationSource()
	return ours && !r.Paused && !r.PostCopy && !ImageLocked(d.State.Domain, r.CopyDisks)
}

// ImageLocked tells whether a guest that moves, with copies of some of its disks (by their targets), has another
// disk that one QEMU only can write, so that it cannot run on both sides: QEMU locks image files, as far as the file
// system that both sides share does, but not block devices across nodes (qemu(1), -blockdev locking).
func ImageLocked(def *libvirtxml.Domain, copied []string) bool {
	if def == nil || def.Devices == nil {
		return false
	}
	return slices.ContainsFunc(def.Devices.Disks, func(disk libvirtxml.DomainDisk) bool {
		file := disk.Source != nil && disk.Source.File != nil && (disk.Device == "" || disk.Device == "disk")
		return file && disk.ReadOnly == nil && disk.Shareable == nil && disk.Transient == nil &&
			disk.Target != nil && !slices.Contains(copied, disk.Target.Dev)
	})
}

// held tells whether the guest has arrived and waits to be let go.
func (s *State) held() bool {
	return s.Status == StatusPaused && s.Reason == ReasonUser && s.Metadata.Held
}

// mayBeHeld tells the same of a guest whose metadata may be lost.
func (d *decision) mayBeHeld() bool {
	return d.State.held() || d.unmarked && d.State.Status == StatusPaused && d.State.Reason == ReasonUser
}

// letGo resumes a guest that was held, unless it shall stand still or is not wanted any
// more.
func (d *decision) letGo() bool {
	if !d.State.held() || d.meta.Paused || d.VMI.IsFinal() {
		return false
	}
	d.resume("it has arrived, and its source has left it")
	return true
}

// ranOn tells whether a guest that was to arrive held has ended here in another way than
// by its move: its hypervisor may have let it run on before.
func (d *decision) ranOn() bool {
	if d.State == nil || !d.meta.Held || d.lease.Stalled {
		return false
	}
	switch d.State.Reason {
	case ReasonMigrated, ReasonMigration, ReasonPostcopy, ReasonPostcopyFailed:
		return false
	}
	return true
}
