// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/internal/vmirules"
)

// Name returns the name of the domain of a VirtualMachineInstance.
func Name(namespace, name string) string { return namespace + "_" + name }

// UUID returns the UUID of the domain: the one in the spec's firmware section if
// there is one, else the UID of the object. libvirt insists that the guest's
// system information names the same UUID as the domain.
func UUID(vmi *v1.VirtualMachineInstance) string {
	if fw := vmi.Spec.Domain.Firmware; fw != nil && fw.UUID != "" {
		return string(fw.UUID)
	}
	return string(vmi.UID)
}

// Pass is one step of a conversion.
type Pass struct {
	// Name identifies the pass in a list.
	Name string
	// Apply adds its part to c.Domain, or returns an *Error.
	Apply func(c *Conversion) error
}

// Conversion is what passes work on: they read VMI and Facts and change Domain.
type Conversion struct {
	// VMI is the object; passes must not change it.
	VMI *v1.VirtualMachineInstance
	// Facts are those of the node.
	Facts Facts
	// Domain is what has been converted so far; Devices is never nil.
	Domain *libvirtxml.Domain

	arch    traits
	foreign bool // of another architecture than the node
	// volumes and networks are those of the spec by name, ownThreads the disks that have an
	// I/O thread of their own; see nameParts.
	volumes              map[string]*v1.Volume
	networks, ownThreads map[string]bool
}

// Passes returns the stock passes in order. The slice is the caller's: insert,
// replace or drop what you like and hand it to [ConvertWith]. Controllers come
// after the devices, since they are counted; strings last.
func Passes() []Pass {
	return []Pass{
		{"services", services},             // refuse what nobody on the node does
		{"identity", identity},             // name, uuid, type, metadata
		{"memory", memory},                 // guest, request, limit; room for more
		{"cpu", cpu},                       // count, topology, model
		{"placement", placement},           // pinned CPUs, NUMA
		{"os", operatingSystem},            // architecture, machine, reboot policy
		{"firmware", firmware},             // BIOS or UEFI, kernel, tables
		{"sysinfo", sysinfo},               // SMBIOS tables
		{"features", features},             // ACPI, APIC, Hyper-V and so on
		{"clock", clock},                   // offset and timers
		{"launchSecurity", launchSecurity}, // SEV, SNP, TDX, secure execution
		{"disks", disks},                   // and what is behind them
		{"interfaces", interfaces},         // network cards
		{"hostDevices", hostDevices},       // SR-IOV, GPUs, PCI, mediated, USB
		{"filesystems", filesystems},       // virtiofs
		{"console", console},               // serial console, guest agent channel
		{"graphics", graphics},             // display and tablet
		{"misc", miscellaneous},            // random numbers, balloon, watchdog, panic
		{"peripherals", peripherals},       // TPM, vsock, sound, USB redirection
		{"ioThreads", ioThreads},           // threads for the disks above
		{"memoryBacking", memoryBacking},   // huge pages, shared memory
		{"commandLine", commandLine},       // what libvirt has no element for
		{"controllers", controllers},       // buses for all of the above, with reserve
		{"pci", pciAddresses},              // where each device sits
		{"unique", unique},                 // no two devices of one name
		{"strings", fitStrings},            // nothing XML could not hold
	}
}

// Convert returns the domain of a VirtualMachineInstance on a node with those
// facts. It is deterministic and changes neither argument. What cannot be
// converted, or is not supported yet and would change what the guest is, is an
// [*Error] that names field and remedy.
func Convert(vmi *v1.VirtualMachineInstance, f Facts) (*libvirtxml.Domain, error) {
	return ConvertWith(vmi, f, Passes())
}

// ConvertWith is [Convert] with a list of passes of the caller's own.
func ConvertWith(vmi *v1.VirtualMachineInstance, f Facts, passes []Pass) (*libvirtxml.Domain, error) {
	c := &Conversion{
		VMI:    vmi,
		Facts:  f,
		Domain: &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{}},
	}
	if err := Allowed(vmi, f.Cluster); err != nil {
		return nil, err
	}
	if err := c.chooseArchitecture(); err != nil {
		return nil, err
	}
	for _, p := range passes {
		if err := p.Apply(c); err != nil {
			return nil, err
		}
	}
	return c.Domain, nil
}

// Allowed returns an [*Error] for what no guest may ask for in a cluster, whatever the
// node could do: a field whose feature gate is off ([ErrUnsupported]), more than a guest
// can have, an amount or a path that is none ([ErrInvalid]). Convert asks it first. A
// node asks before it touches a file for the guest: an object may have been written
// where no webhook looked at it.
func Allowed(vmi *v1.VirtualMachineInstance, c Cluster) error {
	faults := vmirules.Check(vmi, vmirules.Gates{On: c.FeatureGates, Off: c.DisabledFeatureGates})
	if len(faults) == 0 {
		return nil
	}
	f := faults[0]
	err := &Error{Object: objectOf(vmi), Field: f.Field, Reason: f.Text(), Remedy: f.Remedy, Err: ErrInvalid}
	if f.Kind == vmirules.Gated {
		err.Err = ErrUnsupported
	}
	return err
}

// Invalid returns the error for a field with an impossible value.
func (c *Conversion) Invalid(field, reason, remedy string) error {
	return &Error{Object: c.object(), Field: field, Reason: reason, Remedy: remedy, Err: ErrInvalid}
}

// Unsupported returns the error for a field that has a meaning for the guest but
// cannot be converted yet.
func (c *Conversion) Unsupported(field, remedy string) error {
	return &Error{Object: c.object(), Field: field, Reason: "not supported yet", Remedy: remedy, Err: ErrUnsupported}
}

func (c *Conversion) object() string { return objectOf(c.VMI) }

func objectOf(vmi *v1.VirtualMachineInstance) string {
	return fmt.Sprintf("VirtualMachineInstance %s/%s", vmi.Namespace, vmi.Name)
}

// Spec paths that several passes and errors use.
const (
	specDomain  = "spec.domain."
	specDevices = specDomain + "devices."
)

// AliasPrefix marks names that come from the spec, not from libvirt: the disk
// "root" has the alias ua-root.
const AliasPrefix = "ua-"

func alias(name string) *libvirtxml.DomainAlias {
	return &libvirtxml.DomainAlias{Name: AliasPrefix + name}
}

// nameOf returns the name in the spec of a device with that alias; empty if it
// does not come from the spec.
func nameOf(a *libvirtxml.DomainAlias) string {
	if a == nil || len(a.Name) <= len(AliasPrefix) || a.Name[:len(AliasPrefix)] != AliasPrefix {
		return ""
	}
	return a.Name[len(AliasPrefix):]
}

// checkName refuses names that libvirt would drop from an alias without a word.
func (c *Conversion) checkName(field, name string) error {
	ok := name != "" && len(name) <= 63
	for _, r := range name {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}
	if ok {
		return nil
	}
	return c.Invalid(field, fmt.Sprintf("%q is no device name", name), "use 1 to 63 letters, digits, - and _")
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func ptr[T any](v T) *T { return &v }

// isTrue and isFalse read optional booleans that were set on purpose.
func isTrue(b *bool) bool  { return b != nil && *b }
func isFalse(b *bool) bool { return b != nil && !*b }
