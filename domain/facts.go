// SPDX-License-Identifier: Apache-2.0

package domain

// Facts are the values of one node that a conversion depends on, and nothing
// else: everything not host-dependent comes from the VirtualMachineInstance.
// The zero value describes an amd64 node with KVM and without files.
type Facts struct {
	// Dir is the directory of the guest's own files on this node: sockets,
	// console log. It has the same path on every node and different content.
	// Empty: no device that needs a file of its own can be converted.
	Dir string

	// Arch is the node's architecture as libvirt spells it: x86_64, aarch64 or
	// s390x. Empty means x86_64.
	Arch string

	// Emulation asks for a domain of type qemu (software emulation) instead of
	// kvm. Whoever fills it has to know whether KVM works and whether the
	// cluster allows emulation; see [Host.KVM] and [EmulationFor].
	Emulation bool

	// Emulator is the path of the QEMU binary; empty lets libvirt choose.
	Emulator string

	// Bridges holds the host bridge for each network of the spec, by the name
	// of the network.
	Bridges map[string]string

	// Disks holds where the data of each volume lies on this node, by the name
	// of the volume.
	Disks map[string]DiskSource

	// Kernel and Initrd are local files for direct kernel boot
	// (spec.domain.firmware.kernelBoot.container). Initrd may be empty.
	Kernel, Initrd string

	// Epoch is the handoff epoch under which this domain may run; it is written
	// into the domain's metadata.
	Epoch uint64

	// SMBIOS is what the cluster tells guests about their make; nil means
	// KubeVirt's defaults.
	SMBIOS *SMBIOS
}

// SMBIOS is the cluster-wide part of the guest's system information
// (KubeVirt: configuration.smbios). Empty fields are passed on as empty.
type SMBIOS struct {
	Manufacturer, Family, Product, SKU, Version string
}

// DiskSource is where a volume's data lies on one node.
type DiskSource struct {
	// Path is the absolute path of the file or block device.
	Path string
	// Format is raw (default) or qcow2.
	Format string
	// Block says that Path is a block device.
	Block bool
	// ReadOnly says that nothing may be written: the guest gets a read-only disk.
	ReadOnly bool
	// Shared says that the same data is visible under Path on every node. What
	// is writable and not shared has to be copied at live migration.
	Shared bool
	// DirectIO says that the file can be opened with O_DIRECT; it decides the
	// cache mode where the spec leaves it open.
	DirectIO bool
	// Preallocated says that all blocks of the image are allocated.
	Preallocated bool
	// Backing is the image below an overlay; nil if there is none.
	Backing *DiskSource
}

// EmulationFor decides between KVM and software emulation: it answers the value
// for [Facts.Emulation], and an error if the guest could only run emulated and
// the cluster (KubeVirt: configuration.developerConfiguration.useEmulation)
// does not allow that.
func EmulationFor(h Host, allowEmulation bool) (bool, error) {
	switch {
	case h.KVM:
		return false, nil
	case allowEmulation:
		return true, nil
	}
	return false, &Error{
		Object: "node " + h.Name,
		Reason: "KVM is not usable (" + h.KVMReason + ") and software emulation is not allowed",
		Remedy: "use a node with KVM, or set spec.configuration.developerConfiguration.useEmulation of the KubeVirt object",
		Err:    ErrUnsupported,
	}
}
