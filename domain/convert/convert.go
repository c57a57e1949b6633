// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/vmi/validate"
)

// Pass is one step of a conversion.
type Pass struct {
	// Name identifies the pass in a list of passes.
	Name string
	// Apply adds its part to c.Domain, or returns a [*Error].
	Apply func(c *Conversion) error
}

// Conversion is the state that passes share: they read VMI and Facts and modify Domain.
type Conversion struct {
	// VMI is the object to convert; passes must not modify it.
	VMI *v1.VirtualMachineInstance
	// Facts are the facts of the node.
	Facts Facts
	// Domain is the result so far; its Devices are never nil.
	Domain *libvirtxml.Domain

	arch    traits
	foreign bool // the guest has another architecture than the node
	// volumes and networks index the spec by name; ownThreads holds the disks with a dedicated I/O
	// thread. See nameParts.
	volumes              map[string]*v1.Volume
	networks, ownThreads map[string]bool
}

// Passes returns the standard passes in order. The caller owns the slice and may insert, replace or
// remove entries before passing it to [ConvertWith]. Controllers follow the devices, since their
// number depends on them; strings come last.
func Passes() []Pass {
	return []Pass{
		{"services", services},             // reject services the node lacks
		{"identity", identity},             // name, uuid, type, metadata
		{"memory", memory},                 // guest, request, limit; room for more
		{"cpu", cpu},                       // count, topology, model
		{"placement", placement},           // pinned CPUs, NUMA
		{"os", operatingSystem},            // architecture, machine, reboot policy
		{"firmware", firmware},             // BIOS or UEFI, kernel, tables
		{"sysinfo", sysinfo},               // SMBIOS values
		{"features", features},             // ACPI, APIC, Hyper-V and so on
		{"clock", clock},                   // offset and timers
		{"launchSecurity", launchSecurity}, // SEV, SNP, TDX, secure execution
		{"disks", disks},                   // and their sources
		{"interfaces", interfaces},         // network cards
		{"hostDevices", hostDevices},       // SR-IOV, GPUs, PCI, mediated, USB
		{"filesystems", filesystems},       // virtiofs
		{"console", console},               // serial console, channels
		{"graphics", graphics},             // display and tablet
		{"misc", miscellaneous},            // random numbers, balloon, watchdog, panic
		{"peripherals", peripherals},       // TPM, vsock, sound, USB redirection
		{"ioThreads", ioThreads},           // threads for the disks above
		{"memoryBacking", memoryBacking},   // huge pages, shared memory
		{"commandLine", commandLine},       // QEMU arguments without a libvirt element
		{"controllers", controllers},       // buses for all of the above
		{"pci", pciAddresses},              // PCI addresses and free ports
		{"unique", unique},                 // duplicate names and boot orders
		{"strings", fitStrings},            // characters that XML cannot hold
	}
}

// Convert returns the libvirt domain of a VMI on a node with the given facts. It is deterministic
// and modifies neither argument. A field that cannot be converted, or is not supported yet and
// would change the guest, is a [*Error] with field and remedy.
func Convert(vmi *v1.VirtualMachineInstance, f Facts) (*libvirtxml.Domain, error) {
	return ConvertWith(vmi, f, Passes())
}

// ConvertWith is [Convert] with the given passes instead of the standard ones.
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

// Allowed returns a [*Error] for a VMI that a cluster does not allow, whatever the node: a
// field whose feature gate is off ([domain.ErrUnsupported]), too many devices, or an invalid
// quantity or path ([domain.ErrInvalid]). Convert calls it first. A node calls it before it touches
// any file for the VMI, since the object may have bypassed the webhooks.
func Allowed(vmi *v1.VirtualMachineInstance, c Cluster) error {
	faults := validate.Check(vmi, validate.Gates{On: c.FeatureGates, Off: c.DisabledFeatureGates})
	if len(faults) == 0 {
		return nil
	}
	f := faults[0]
	err := &Error{Object: objectOf(vmi), Field: f.Field, Reason: f.Text(), Remedy: f.Remedy, Err: domain.ErrInvalid}
	if f.Kind == validate.Gated {
		err.Err = domain.ErrUnsupported
	}
	return err
}

// Invalid returns the error for a field with an invalid value.
func (c *Conversion) Invalid(field, reason, remedy string) error {
	return &Error{Object: c.object(), Field: field, Reason: reason, Remedy: remedy, Err: domain.ErrInvalid}
}

// Unsupported returns the error for a field that would change the guest but cannot be converted
// yet.
func (c *Conversion) Unsupported(field, remedy string) error {
	return &Error{Object: c.object(), Field: field, Reason: "is not supported yet", Remedy: remedy, Err: domain.ErrUnsupported}
}

func (c *Conversion) object() string { return objectOf(c.VMI) }

func objectOf(vmi *v1.VirtualMachineInstance) string {
	return fmt.Sprintf("VirtualMachineInstance %s/%s", vmi.Namespace, vmi.Name)
}

// Prefixes of field paths that several passes use.
const (
	specDomain  = "spec.domain."
	specDevices = specDomain + "devices."
)

// checkName rejects names that libvirt would silently drop from an alias.
func (c *Conversion) checkName(field, name string) error {
	ok := name != "" && len(name) <= 63
	for _, r := range name {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}
	if ok {
		return nil
	}
	return c.Invalid(field, fmt.Sprintf("Invalid value: %q", name), "use 1 to 63 letters, digits, - and _")
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

// specIsTrue and specIsFalse report whether an optional boolean is set to that value.
func specIsTrue(b *bool) bool  { return b != nil && *b }
func specIsFalse(b *bool) bool { return b != nil && !*b }
