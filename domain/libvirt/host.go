// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"encoding/xml"
	"fmt"
	"slices"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// node says what the node of the daemon is and supports.
type node struct{ *connection }

// Host implements domain.Hypervisor. The answer is kept as long as the connection, but not that
// libvirt offers no KVM: its device may be given to the daemon's user later.
func (d *node) Host(ctx context.Context) (domain.Host, error) {
	const op = "describe host"
	if ctx.Err() != nil {
		return domain.Host{}, ended(ctx, op, "")
	}
	d.mu.Lock()
	s, known, why := d.current, d.host, d.why
	d.mu.Unlock()
	switch {
	case s == nil:
		return domain.Host{}, disconnected(op, "", why)
	case known != nil && known.KVMReason != notOffered:
		return known.Clone(), nil
	}
	h, err := read(ctx, d.connection, op, "", func(c *virt.Connect) (h domain.Host, err error) {
		if known != nil {
			h = known.Clone()
		} else if h, err = describe(c); err != nil {
			return h, err
		}
		h.KVM, h.KVMReason = d.kvm(c, &h)
		return h, nil
	})
	if err != nil {
		return domain.Host{}, err
	}
	kept := h.Clone() // read without the lock
	d.mu.Lock()
	if d.current == s { // the next daemon may be another one
		d.host = &kept
	}
	d.mu.Unlock()
	return h, nil
}

// describe reads everything but KVM.
func describe(c *virt.Connect) (domain.Host, error) {
	var h domain.Host
	var err error
	if h.Name, err = c.GetHostname(); err != nil {
		return h, err
	}
	if h.Hypervisor, err = c.GetType(); err != nil {
		return h, err
	}
	v, err := c.GetVersion()
	if err != nil {
		return h, err
	}
	lib, err := c.GetLibVersion()
	if err != nil {
		return h, err
	}
	h.Version, h.LibraryVersion = version(v), version(lib)
	info, err := c.GetNodeInfo()
	if err != nil {
		return h, err
	}
	h.CPUs, h.MemoryBytes = int(info.Cpus), info.Memory<<10
	caps, err := c.GetCapabilities()
	if err != nil {
		return h, err
	}
	var parsed libvirtxml.Caps
	if err := parsed.Unmarshal(caps); err != nil {
		return h, fmt.Errorf("parse capabilities: %w", err)
	}
	if parsed.Host.CPU != nil {
		h.Arch = parsed.Host.CPU.Arch
	}
	for _, g := range parsed.Guests {
		if g.Arch.Name == h.Arch {
			h.Emulator = g.Arch.Emulator
		}
	}
	h.Cells = cells(parsed.Host.NUMA)
	return h, nil
}

// version formats libvirt's encoding: major * 1,000,000 + minor * 1,000 + release.
func version(v uint32) string {
	return fmt.Sprintf("%d.%d.%d", v/1000000, v/1000%1000, v%1000)
}

// notOffered is the reason that can change.
const notOffered = "libvirt offers no domains of type kvm"

// kvm decides whether KVM can run a real guest, and returns the reason.
func (d *node) kvm(c *virt.Connect, h *domain.Host) (bool, string) {
	switch d.opts.KVM {
	case KVMOn:
		return true, "switched on by configuration"
	case KVMOff:
		return false, "switched off by configuration"
	}
	if h.Hypervisor != "QEMU" {
		return false, "the hypervisor is " + h.Hypervisor
	}
	if _, err := c.GetDomainCapabilities("", h.Arch, "", "kvm", 0); err != nil {
		return false, notOffered
	}
	if h.Arch != "x86_64" && h.Arch != "i686" {
		return true, "libvirt offers it"
	}
	flags, err := hostCPUFlags(c)
	switch {
	case err != nil:
		return false, "the features of the host's CPU are unknown: " + err.Error()
	case slices.Contains(flags, "vmx"):
		return true, "libvirt offers it and the CPU has vmx"
	case slices.Contains(flags, "svm"):
		return true, "libvirt offers it and the CPU has svm"
	}
	return false, "libvirt offers it, but the CPU has neither vmx nor svm"
}

// hostCPUFlags lists the features of the host's CPU, those of its model included.
func hostCPUFlags(c *virt.Connect) ([]string, error) {
	caps, err := c.GetCapabilities()
	if err != nil {
		return nil, translate("get capabilities", "", err)
	}
	var host struct {
		CPU struct {
			Inner string `xml:",innerxml"`
		} `xml:"host>cpu"`
	}
	if err := xml.Unmarshal([]byte(caps), &host); err != nil {
		return nil, fmt.Errorf("parse capabilities: %w", err)
	}
	full, err := c.BaselineCPU([]string{"<cpu>" + host.CPU.Inner + "</cpu>"}, virt.CONNECT_BASELINE_CPU_EXPAND_FEATURES)
	if err != nil {
		return nil, translate("expand the host's CPU", "", err)
	}
	var cpu libvirtxml.DomainCPU
	if err := cpu.Unmarshal(full); err != nil {
		return nil, fmt.Errorf("parse the host's CPU: %w", err)
	}
	var flags []string
	for _, f := range cpu.Features {
		if f.Policy != "disable" && f.Policy != "forbid" {
			flags = append(flags, f.Name)
		}
	}
	return flags, nil
}
