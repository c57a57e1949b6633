// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// memoryProbe is a domain with a memory device of that model. It is only translated to a command
// line, which fails if the emulator lacks the device.
func memoryProbe(arch string, model domain.MemoryModel) *libvirtxml.Domain {
	zero := uint(0)
	dev := libvirtxml.DomainMemorydev{
		Model:  string(model),
		Target: &libvirtxml.DomainMemorydevTarget{Size: &libvirtxml.DomainMemorydevTargetSize{Value: 128, Unit: "MiB"}, Node: &libvirtxml.DomainMemorydevTargetNode{Value: zero}},
	}
	if model == domain.VirtioMem {
		dev.Target.Block = &libvirtxml.DomainMemorydevTargetBlock{Value: 2, Unit: "MiB"}
		dev.Target.Requested = &libvirtxml.DomainMemorydevTargetRequested{Value: 0, Unit: "MiB"}
	}
	return &libvirtxml.Domain{
		Type: "qemu", Name: "memory-model",
		MaximumMemory: &libvirtxml.DomainMaxMemory{Value: 1, Unit: "GiB", Slots: 1},
		Memory:        &libvirtxml.DomainMemory{Value: 256, Unit: "MiB"},
		VCPU:          &libvirtxml.DomainVCPU{Value: 1},
		OS:            &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Arch: arch, Type: "hvm"}},
		Features:      &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}},
		CPU: &libvirtxml.DomainCPU{Numa: &libvirtxml.DomainNuma{Cell: []libvirtxml.DomainCell{
			{ID: &zero, CPUs: "0", Memory: 128, Unit: "MiB"},
		}}},
		Devices: &libvirtxml.DomainDeviceList{Memorydevs: []libvirtxml.DomainMemorydev{dev}},
	}
}

// MemoryModel implements domain.MemoryHotplugger: it returns the first model the emulator has.
func (d *node) MemoryModel(ctx context.Context, arch string) (domain.MemoryModel, error) {
	return read(ctx, d.connection, "find memory model", "", func(c *virt.Connect) (domain.MemoryModel, error) {
		kind, err := c.GetType()
		if err != nil {
			return "", err
		}
		if kind != "QEMU" {
			return "", virt.Error{Code: virt.ERR_NO_SUPPORT, Message: "hypervisor " + kind + " has no memory devices"}
		}
		for _, model := range []domain.MemoryModel{domain.VirtioMem, domain.DIMM} {
			xml, err := memoryProbe(arch, model).Marshal()
			if err != nil {
				return "", fmt.Errorf("probe memory model: %w", err)
			}
			_, err = c.DomainXMLToNative("qemu-argv", xml, 0)
			switch {
			case err == nil:
				return model, nil
			case !code(err, virt.ERR_CONFIG_UNSUPPORTED) && !code(err, virt.ERR_NO_SUPPORT) && !code(err, virt.ERR_INVALID_ARG):
				return "", err
			}
		}
		return "", virt.Error{Code: virt.ERR_NO_SUPPORT, Message: "no memory devices for domains of " + arch}
	})
}

// size is a size of memory in the XML of a domain.
type size struct {
	Unit  string `xml:"unit,attr"`
	Value uint64 `xml:",chardata"`
}

func (s size) kibibytes() uint64 { return s.Value * kibibytes[s.Unit] }

// heldMemory is the content of the memory devices of a domain; libvirtxml leaves it out.
type heldMemory struct {
	Devices []struct {
		Size    size  `xml:"target>size"`
		Current *size `xml:"target>current"`
	} `xml:"devices>memory"`
}

// countHeld corrects the current memory of a domain whose devices hold more than it says: memory
// that a guest uses before the call returns that hotplugs a device, libvirt 9.0 counts in the
// device only, and never corrects it. A balloon that another client has inflated in a guest with
// such devices is not reported then.
func countHeld(d *libvirtxml.Domain, text string) error {
	if !strings.Contains(text, "<current ") || d.Memory == nil || d.CurrentMemory == nil {
		return nil
	}
	var held heldMemory
	if err := xml.Unmarshal([]byte(text), &held); err != nil {
		return fmt.Errorf("parse memory devices: %w", err)
	}
	least := size{d.Memory.Unit, uint64(d.Memory.Value)}.kibibytes()
	for _, dev := range held.Devices {
		if dev.Current != nil {
			least -= min(least, dev.Size.kibibytes()-min(dev.Size.kibibytes(), dev.Current.kibibytes()))
		}
	}
	if reported := (size{d.CurrentMemory.Unit, uint64(d.CurrentMemory.Value)}); reported.kibibytes() < least {
		d.CurrentMemory.Value, d.CurrentMemory.Unit = uint(least), "KiB"
	}
	return nil
}
