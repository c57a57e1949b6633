// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// hardware changes the devices of a domain, and presses its reset button.
type hardware struct{ *state }

// defaultDiskSize is the size of disks without one, 1 GiB.
const defaultDiskSize = 1 << 30

func (h *hardware) lockedReset(g *guest, _ domain.Operation) error {
	if !g.state.Alive() {
		return domain.ErrInvalidState
	}
	h.lockedBoot(g)
	return nil
}

func (h *hardware) lockedReboot(g *guest, op domain.Operation) error {
	switch {
	case !g.state.Alive() || g.state.Status == domain.StatusPaused:
		return domain.ErrInvalidState
	case op.Agent && g.agent == nil:
		return domain.ErrNoAgent
	case !g.deaf:
		h.lockedBoot(g)
	}
	return nil
}

// lockedBoot boots the guest again in the same process.
func (h *hardware) lockedBoot(g *guest) {
	g.frozen = false
	g.reboots++
	h.lockedEmit(g.state.Name, "Rebooted")
}

// Reboots returns how often a domain was reset or has rebooted since its start.
func (h *hardware) Reboots(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if g, ok := h.guests[name]; ok {
		return g.reboots
	}
	return 0
}

func (h *hardware) lockedVCPUs(g *guest, op domain.Operation) error {
	if g.def.VCPU == nil {
		g.def.VCPU = &libvirtxml.DomainVCPU{Value: 1}
	}
	v := g.def.VCPU
	if op.VCPUs > v.Value {
		return fmt.Errorf("maximum of %d CPUs, not %d: %w", v.Value, op.VCPUs, domain.ErrInvalid)
	}
	if op.VCPUs == vcpus(g.def) {
		return nil
	}
	v.Current = op.VCPUs
	h.lockedEmit(g.state.Name, string(op.Verb))
	return nil
}

// vcpus returns the number of CPUs of a domain.
func vcpus(d *libvirtxml.Domain) uint {
	switch {
	case d.VCPU == nil:
		return 1
	case d.VCPU.Current != 0:
		return d.VCPU.Current
	}
	return d.VCPU.Value
}

func (h *hardware) lockedResize(g *guest, op domain.Operation) error {
	disk := g.lockedDisk(op.Disk)
	switch {
	case !g.state.Alive():
		return domain.ErrInvalidState
	case disk == nil:
		return fmt.Errorf("disk %s: %w", op.Disk, domain.ErrNotFound)
	}
	has, want := g.lockedSize(op.Disk), op.Bytes
	if want == 0 {
		if disk.Source == nil || disk.Source.Block == nil {
			return fmt.Errorf("disk %s is not a block device: %w", op.Disk, domain.ErrInvalid)
		}
		want = max(g.sizes[behind+op.Disk], has)
	}
	switch {
	case want < has:
		return fmt.Errorf("disk %s has %d bytes and cannot shrink: %w", op.Disk, has, domain.ErrInvalid)
	case want > has:
		g.lockedGrow(op.Disk, want)
		h.lockedEmit(g.state.Name, string(op.Verb))
	}
	return nil
}

// behind marks the size of the device behind a disk.
const behind = "behind "

// lockedDisk finds a disk by its alias; nil if there is none.
func (g *guest) lockedDisk(alias string) *libvirtxml.DomainDisk {
	if g.def.Devices == nil {
		return nil
	}
	i := at(g.def.Devices.Disks, alias, func(d *libvirtxml.DomainDisk) *libvirtxml.DomainAlias { return d.Alias })
	if i < 0 {
		return nil
	}
	return &g.def.Devices.Disks[i]
}

func (g *guest) lockedSize(alias string) uint64 {
	if n, ok := g.sizes[alias]; ok {
		return n
	}
	return defaultDiskSize
}

func (g *guest) lockedGrow(key string, bytes uint64) {
	if g.sizes == nil {
		g.sizes = map[string]uint64{}
	}
	g.sizes[key] = bytes
}

// GrowDevice sets the size of the block device behind a disk, which the guest does not see until
// the disk is resized. Disks have 1 GiB at first. It returns false if there is no such disk.
func (h *hardware) GrowDevice(name, alias string, bytes uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, ok := h.guests[name]
	if !ok || g.lockedDisk(alias) == nil {
		return false
	}
	g.lockedGrow(behind+alias, bytes)
	return true
}
