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

	// Cluster is what the cluster's configuration says about all guests.
	Cluster Cluster

	// Links holds what the node has for each interface of the spec, by the name
	// of the interface. One that has neither a link nor a bridge cannot be
	// converted.
	Links map[string]Link

	// Firmware holds the UEFI images of this node.
	Firmware Firmware

	// CPUs are the host CPUs that belong to the guest alone, in ascending order
	// (spec.domain.cpu.dedicatedCpuPlacement): those of its Pod's cpuset.
	CPUs []uint

	// Cells is the NUMA topology of the node.
	Cells []Cell

	// Devices holds the host devices that were handed to the guest, by the name
	// of the resource (nvidia.com/gpu) or of the claim's request, in the order in
	// which they were handed out.
	Devices map[string][]HostDevice

	// SRIOV holds the PCI address of the virtual function for each interface that
	// is one, by the name of the interface: 0000:65:01.2.
	SRIOV map[string]string

	// Filesystems holds the socket of virtiofsd for each shared directory of the
	// spec, by its name.
	Filesystems map[string]string

	// ReservationSocket is where the node's helper for SCSI persistent
	// reservations (qemu-pr-helper) listens.
	ReservationSocket string

	// SecretDirs holds the directory with the content of each secret volume, by
	// the name of the volume, for spec.domain.firmware.acpi.
	SecretDirs map[string]string

	// Ignition is the file with the data of the annotation
	// kubevirt.io/ignitiondata; empty if there is none.
	Ignition string

	// LocalVSOCK says that context identifiers of vsock are private to a network
	// namespace, so that every guest gets the same one.
	LocalVSOCK bool

	// IOMMUFD says that an open file of /dev/iommu is handed to the guest.
	IOMMUFD bool

	// Incoming says that the domain will receive a guest by live migration:
	// devices that belong to a host do not travel.
	Incoming bool

	// Layout says where the guest's devices sit already, see [LayoutOf]; the zero
	// value for a guest that does not run yet.
	Layout Layout
}

// Cluster is what the cluster's configuration says about every guest (KubeVirt:
// spec.configuration and its feature gates). The zero value is KubeVirt's default.
type Cluster struct {
	// BalloonPeriod is how often, in seconds, a guest reports its memory use; nil
	// means 10, zero never (memBalloonStatsPeriod).
	BalloonPeriod *uint32
	// NoFreePageReporting keeps guests from giving free memory back
	// (virtualMachineOptions.disableFreePageReporting).
	NoFreePageReporting bool
	// NoSerialConsoleLog keeps what guests write to their serial console out of a
	// file (virtualMachineOptions.disableSerialConsoleLog).
	NoSerialConsoleLog bool
	// BochsForEFI gives guests with UEFI the display bochs instead of VGA.
	BochsForEFI bool
	// FirmwareAutoSelection leaves the choice of the UEFI image to libvirt where
	// secure boot is asked for.
	FirmwareAutoSelection bool
	// FirmwareLog lets the firmware of amd64 guests write its debug output to a
	// file in Facts.Dir.
	FirmwareLog bool
	// MigratableVGPU lets a guest with one mediated GPU migrate.
	MigratableVGPU bool
	// NUMAAlignedPCI puts host devices of guests with dedicated CPUs behind an
	// expander bus of their NUMA node.
	NUMAAlignedPCI bool
}

// Link is what the node has for one interface of a guest.
type Link struct {
	// Tap is the name of the tap device the guest's card is the other end of.
	// Empty: the interface is plugged into the bridge that Facts.Bridges names.
	Tap string
	// MAC is the address of the Pod's link, which the guest gets if its spec names
	// none; empty for a derived one, see [MAC].
	MAC string
	// MTU is that of the Pod's link; 0 leaves it to the hypervisor.
	MTU uint
	// Passt is the name of the Pod's link that passt forwards from and to.
	Passt string
}

// Firmware holds the UEFI images of a node, by what they are for. One without
// Code is not there.
type Firmware struct {
	// SecureBoot verifies what it boots; Plain does not.
	SecureBoot, Plain FirmwareImage
	// SEV is for guests with AMD SEV or SEV-ES, SNP for those with SEV-SNP.
	SEV, SNP FirmwareImage
	// TDX and TDXSecureBoot are for guests with Intel TDX.
	TDX, TDXSecureBoot FirmwareImage
}

// FirmwareImage is one UEFI image.
type FirmwareImage struct {
	// Code is the path of the program, Vars that of the template of its variables;
	// images for SNP and TDX have none.
	Code, Vars string
}

// Cell is one NUMA node of the host (libvirt: capabilities, topology, cell).
type Cell struct {
	// ID is the host's number of the node.
	ID uint
	// MemoryKiB is the memory of the node.
	MemoryKiB uint64
	// CPUs are the threads of the node.
	CPUs []HostCPU
	// HugepagesKiB lists the sizes of the huge pages the node has.
	HugepagesKiB []uint64
	// Distances holds the distance to each other node by its ID.
	Distances map[uint]uint
}

// HostCPU is one thread of the host.
type HostCPU struct {
	// ID is the host's number of the thread; Core and Socket are where it sits.
	ID, Core, Socket uint
}

// HostDevice is a device of the host that is handed to a guest. Exactly one of
// its addresses is set.
type HostDevice struct {
	// PCI is the address of a PCI device: 0000:65:00.0.
	PCI string
	// MDev is the UUID of a mediated device.
	MDev string
	// USB is bus and device number of a USB device: 3:7.
	USB string
	// Cell is the NUMA node the device is attached to; nil if that is not known.
	Cell *uint
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
	// Bytes is the size the disk shall have; 0 means that it is not known. A
	// running guest's disk grows with it.
	Bytes int64
	// Sector holds the block sizes of the device or file, for
	// blockSize.matchVolume; nil if they are not known.
	Sector *SectorSize
	// DataStore is where the data of a disk with changed block tracking lies; Path
	// is then the overlay that notes what has changed. Nil without tracking.
	DataStore *DiskSource
	// Backing is the image below an overlay; nil if there is none.
	Backing *DiskSource
}

// SectorSize are the block sizes of a device in bytes.
type SectorSize struct {
	// Logical is the smallest unit of access, Physical the unit of the medium;
	// zero means that only the other one is known.
	Logical, Physical uint
	// DiscardGranularity is the unit in which blocks are given back; 0 if unknown.
	DiscardGranularity uint
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
