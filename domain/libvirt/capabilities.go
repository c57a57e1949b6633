// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"encoding/xml"
	"fmt"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
)

// Capabilities implements domain.CapabilitiesReader.
func (d *node) Capabilities(ctx context.Context) (domain.Capabilities, error) {
	host, err := d.Host(ctx)
	if err != nil {
		return domain.Capabilities{}, err
	}
	kind := "qemu"
	if host.KVM {
		kind = "kvm"
	}
	machine := "" // libvirt's default
	if host.Arch == "x86_64" {
		machine = "q35"
	}
	return read(ctx, d.connection, "read capabilities", "", func(c *virt.Connect) (domain.Capabilities, error) {
		var out domain.Capabilities
		var err error
		if out.Host, err = c.GetCapabilities(); err != nil {
			return out, err
		}
		if out.Domain, err = c.GetDomainCapabilities("", host.Arch, machine, kind, 0); err != nil {
			return out, err
		}
		cpu, err := hostModel(out.Domain)
		if err != nil || cpu == "" {
			return out, err
		}
		out.CPU, err = c.BaselineHypervisorCPU("", host.Arch, machine, kind, []string{cpu}, virt.CONNECT_BASELINE_CPU_EXPAND_FEATURES)
		return out, err
	})
}

// hostModel returns the CPU of mode host-model, as input of the baseline of CPUs; empty where there
// is no such mode.
func hostModel(capabilities string) (string, error) {
	var parsed struct {
		Modes []struct {
			Name      string `xml:"name,attr"`
			Supported string `xml:"supported,attr"`
			Inner     string `xml:",innerxml"`
		} `xml:"cpu>mode"`
	}
	if err := xml.Unmarshal([]byte(capabilities), &parsed); err != nil {
		return "", fmt.Errorf("parse domain capabilities: %w", err)
	}
	for _, m := range parsed.Modes {
		if m.Name == "host-model" && m.Supported == "yes" {
			return "<cpu>" + m.Inner + "</cpu>", nil
		}
	}
	return "", nil
}
