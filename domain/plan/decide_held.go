// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

// A hypervisor that misses the outcome of the switch resumes the domain at the source: libvirt
// does when the answer to its Finish is lost with the link. If both sides use the same image,
// QEMU's lock on it stops one of them. Without such a lock the domain would run twice. It is
// therefore held: it arrives with its CPUs stopped, the source sends Stall once it has stopped
// for good, and the target then takes the VMI over and resumes the domain. Until then a source
// that still runs takes the VMI back by Revert, or stores how it has ended; the domain at the
// target, an older state of it, ends without having run. The same happens if the source's node
// dies before Stall: the domain may have continued there.
//
// This requires a write of the source to the API server: while either of them, or the target's
// agent, is unavailable at that moment, the domain stays paused.
//
// A domain that may switch to post-copy is not held, since it has to run at the target long
// before its source is done. Nor is one whose target does not know the lease: a stock
// virt-handler, or another cluster.

// holds reports whether the domain is to be held.
func (d source) holds(r domain.MigrationRequest) bool {
	ours := d.lease.Cause == handoff.CauseTargetReady && !d.VMI.IsMigrationSource()
	return ours && !r.Paused && !r.PostCopy && !ImageLocked(d.State.Domain, r.CopyDisks)
}

// ImageLocked reports whether a domain has a disk, other than the copied ones (by their targets), that only one QEMU
// can write, so that the domain cannot run on both sides of a migration: QEMU locks image files, as far as the shared
// file system supports it, but not block devices across nodes (qemu(1), -blockdev locking). def may be nil.
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

// mayBeHeld reports whether the domain is held, or may be because its metadata is lost.
func (d target) mayBeHeld() bool {
	return d.State.Held() || d.unmarked && d.State.Status == domain.StatusPaused && d.State.Reason == domain.ReasonUser
}

// letGo resumes a held domain, unless a user has paused the VMI or it is final. It reports
// whether it does.
func (d pause) letGo() bool {
	if !d.State.Held() || d.meta.Paused || d.VMI.IsFinal() {
		return false
	}
	d.resume("the source has stored that the domain has left")
	return true
}

// ranOn reports whether a domain that was to arrive held has ended here other than by its
// migration: the hypervisor may have resumed it before.
func (d holder) ranOn() bool {
	if d.State == nil || !d.meta.Held || d.lease.Stalled {
		return false
	}
	switch d.State.Reason {
	case domain.ReasonMigrated, domain.ReasonMigration, domain.ReasonPostcopy, domain.ReasonPostcopyFailed:
		return false
	}
	return true
}
