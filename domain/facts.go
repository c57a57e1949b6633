// SPDX-License-Identifier: Apache-2.0

package domain

// Facts are the values of one node that a conversion depends on, and nothing
// else: everything not host-dependent comes from the VirtualMachineInstance.
// The zero value describes an amd64 node with KVM and without files.
//
// As JSON or YAML, fields have the names of their tags; see "refdaemon convert
// --facts".
type Facts struct {
	// Dir is the directory of the guest's own files on this node: sockets,
	// console log. It has the same path on every node and different content.
	// Empty: no device that needs a file of its own can be converted.
	Dir string `json:"dir"`

	// Arch is the node's architecture as libvirt spells it: x86_64, aarch64 or
	// s390x. Empty means x86_64.
	Arch string `json:"arch"`

	// Emulation asks for a domain of type qemu (software emulation) instead of
	// kvm. Whoever fills it has to know whether KVM works and whether the
	// cluster allows emulation; see [Host.KVM] and [EmulationFor].
	Emulation bool `json:"emulation"`

	// NoHostModel says that the hypervisor cannot tell which CPU the host has, so that
	// no other host can be found for a guest of the model host-model.
	NoHostModel bool `json:"noHostModel"`

	// Emulator is the path of the QEMU binary; empty lets libvirt choose.
	Emulator string `json:"emulator"`

	// Emulators holds the path of the QEMU binary for each other architecture, as
	// libvirt spells it, whose guests this node may emulate in software (KubeVirt:
	// /usr/bin/qemu-system-aarch64, if its feature gate for guests of other
	// architectures is on). A guest of an architecture that is missing here is
	// refused.
	Emulators map[string]string `json:"emulators"`

	// Bridges holds the host bridge for each network of the spec, by the name
	// of the network.
	Bridges map[string]string `json:"bridges"`

	// Disks holds where the data of each volume lies on this node, by the name
	// of the volume.
	Disks map[string]DiskSource `json:"disks"`

	// Kernel is a local file for direct kernel boot
	// (spec.domain.firmware.kernelBoot.container).
	Kernel string `json:"kernel"`
	// Initrd is the one that goes with Kernel; may be empty.
	Initrd string `json:"initrd"`

	// Epoch is the handoff epoch under which this domain may run; it is written
	// into the domain's metadata.
	Epoch uint64 `json:"epoch"`

	// SMBIOS is what the cluster tells guests about their make; nil means
	// KubeVirt's defaults.
	SMBIOS *SMBIOS `json:"smbios"`

	// Cluster is what the cluster's configuration says about all guests.
	Cluster Cluster `json:"cluster"`

	// Links holds what the node has for each interface of the spec, by the name
	// of the interface. One that has neither a link nor a bridge cannot be
	// converted.
	Links map[string]Link `json:"links"`

	// Firmware holds the UEFI images of this node.
	Firmware Firmware `json:"firmware"`

	// NVRAMDir is the directory of UEFI variables that outlive the guest's object
	// (spec.domain.firmware.bootloader.efi.persistent); all others are in Dir.
	NVRAMDir string `json:"nvramDir"`

	// CPUs are the host CPUs that belong to the guest alone, in ascending order
	// (spec.domain.cpu.dedicatedCpuPlacement): those of its Pod's cpuset.
	CPUs []uint `json:"cpus"`

	// Cells is the NUMA topology of the node.
	Cells []Cell `json:"cells"`

	// Devices holds the host devices that were handed to the guest, by the name
	// of the resource (nvidia.com/gpu) or of the claim's request, in the order in
	// which they were handed out.
	Devices map[string][]HostDevice `json:"devices"`

	// SRIOV holds the PCI address of the virtual function for each interface that
	// is one, by the name of the interface: 0000:65:01.2.
	SRIOV map[string]string `json:"sriov"`

	// Filesystems holds the socket of virtiofsd for each shared directory of the
	// spec, by its name.
	Filesystems map[string]string `json:"filesystems"`

	// ReservationSocket is where the node's helper for SCSI persistent
	// reservations (qemu-pr-helper) listens.
	ReservationSocket string `json:"reservationSocket"`

	// SecretDirs holds the directory with the content of each secret volume, by
	// the name of the volume, for spec.domain.firmware.acpi.
	SecretDirs map[string]string `json:"secretDirs"`

	// Ignition is the file with the data of the annotation
	// kubevirt.io/ignitiondata; empty if there is none.
	Ignition string `json:"ignition"`

	// LocalVSOCK says that context identifiers of vsock are private to a network
	// namespace, so that every guest gets the same one.
	LocalVSOCK bool `json:"localVSOCK"`

	// IOMMUFD says that an open file of /dev/iommu is handed to the guest.
	IOMMUFD bool `json:"iommufd"`

	// Incoming says that the domain will receive a guest by live migration:
	// devices that belong to a host do not travel.
	Incoming bool `json:"incoming"`

	// Services is what the node does for guests beside running them.
	Services Services `json:"services"`

	// Layout says where the guest's devices sit already, see [LayoutOf]; the zero
	// value for a guest that does not run yet.
	Layout Layout `json:"layout"`
}

// Cluster is what the cluster's configuration says about every guest (KubeVirt:
// spec.configuration and its feature gates). The zero value is KubeVirt's default.
type Cluster struct {
	// BalloonPeriod is how often, in seconds, a guest reports its memory use; nil
	// means 10, zero never (memBalloonStatsPeriod).
	BalloonPeriod *uint32 `json:"balloonPeriod"`
	// NoFreePageReporting keeps guests from giving free memory back
	// (virtualMachineOptions.disableFreePageReporting).
	NoFreePageReporting bool `json:"noFreePageReporting"`
	// NoSerialConsoleLog keeps what guests write to their serial console out of a
	// file (virtualMachineOptions.disableSerialConsoleLog).
	NoSerialConsoleLog bool `json:"noSerialConsoleLog"`
	// BochsForEFI gives guests with UEFI the display bochs instead of VGA.
	BochsForEFI bool `json:"bochsForEFI"`
	// FirmwareAutoSelection leaves the choice of the UEFI image to libvirt where
	// secure boot is asked for.
	FirmwareAutoSelection bool `json:"firmwareAutoSelection"`
	// FirmwareLog lets the firmware of amd64 guests write its debug output to a
	// file in Facts.Dir.
	FirmwareLog bool `json:"firmwareLog"`
	// MigratableVGPU lets a guest with one mediated GPU migrate.
	MigratableVGPU bool `json:"migratableVGPU"`
	// TapBindings are the network binding plugins whose cards the domain plugs into a
	// tap device (KubeVirt: spec.configuration.network.binding[].domainAttachmentType
	// tap or managedTap). The card of any other plugin is added by its sidecar.
	TapBindings []string `json:"tapBindings"`
	// MigratableBindings are the network binding plugins that let the guest migrate
	// (KubeVirt: spec.configuration.network.binding[].migration).
	MigratableBindings []string `json:"migratableBindings"`
	// RefreshedBindings are those whose links are taken down and up again after a
	// migration, so that the guest asks for its address anew (migration method
	// link-refresh).
	RefreshedBindings []string `json:"refreshedBindings"`
	// NUMAAlignedPCI puts host devices of guests with dedicated CPUs behind an
	// expander bus of their NUMA node.
	NUMAAlignedPCI bool `json:"numaAlignedPCI"`
	// FeatureGates and DisabledFeatureGates are those of the cluster
	// (developerConfiguration). A guest with a field whose gate is off is not converted.
	FeatureGates         []string `json:"featureGates"`
	DisabledFeatureGates []string `json:"disabledFeatureGates"`
}

// Services is what a node does for guests beside running them. None of it is in the
// domain; a guest that asks for what is false here is refused instead of going
// without.
type Services struct {
	// Hooks: whoever converts calls the guest's hook sidecars (annotation
	// hooks.kubevirt.io/hookSidecars) with the domain before it is defined.
	Hooks bool `json:"hooks"`
	// CloudInitKeys: SSH keys of spec.accessCredentials are written into the data
	// of cloud-init volumes.
	CloudInitKeys bool `json:"cloudInitKeys"`
	// AgentCredentials: keys and passwords of spec.accessCredentials are handed to
	// the guest agent.
	AgentCredentials bool `json:"agentCredentials"`
	// DownwardMetrics: metrics of the host are served on [MetricsSocket]
	// (spec.domain.devices.downwardMetrics).
	DownwardMetrics bool `json:"downwardMetrics"`
	// PersistentState: what a guest's devices remember is still there when the guest
	// is started again, on this node or another (spec.domain.devices.tpm.persistent).
	PersistentState bool `json:"persistentState"`
}

// Link is what the node has for one interface of a guest.
type Link struct {
	// Tap is the name of the tap device the guest's card is the other end of.
	// Empty: the interface is plugged into the bridge that Facts.Bridges names.
	Tap string `json:"tap"`
	// MAC is the address of the Pod's link, which the guest gets if its spec names
	// none; empty for a derived one, see [MAC].
	MAC string `json:"mac"`
	// MTU is that of the Pod's link; 0 leaves it to the hypervisor.
	MTU uint `json:"mtu"`
	// Passt is the name of the Pod's link that passt forwards from and to.
	Passt string `json:"passt"`
	// IPs are the addresses of the Pod's link, the primary one first; nil if they are
	// not known.
	IPs []string `json:"ips"`
}

// Firmware holds the UEFI images of a node, by what they are for. One without
// Code is not there.
type Firmware struct {
	// SecureBoot verifies what it boots.
	SecureBoot FirmwareImage `json:"secureBoot"`
	// Plain does not.
	Plain FirmwareImage `json:"plain"`
	// SEV is for guests with AMD SEV or SEV-ES.
	SEV FirmwareImage `json:"sev"`
	// SNP is for guests with AMD SEV-SNP.
	SNP FirmwareImage `json:"snp"`
	// TDX is for guests with Intel TDX.
	TDX FirmwareImage `json:"tdx"`
	// TDXSecureBoot is for guests with Intel TDX that verify what they boot.
	TDXSecureBoot FirmwareImage `json:"tdxSecureBoot"`
}

// FirmwareImage is one UEFI image.
type FirmwareImage struct {
	// Code is the path of the program.
	Code string `json:"code"`
	// Vars is the path of the template of its variables; images for SNP and TDX
	// have none.
	Vars string `json:"vars"`
}

// Cell is one NUMA node of the host (libvirt: capabilities, topology, cell).
type Cell struct {
	// ID is the host's number of the node.
	ID uint `json:"id"`
	// MemoryKiB is the memory of the node.
	MemoryKiB uint64 `json:"memoryKiB"`
	// CPUs are the threads of the node.
	CPUs []HostCPU `json:"cpus"`
	// HugepagesKiB lists the sizes of the huge pages the node has.
	HugepagesKiB []uint64 `json:"hugepagesKiB"`
	// Distances holds the distance to each other node by its ID.
	Distances map[uint]uint `json:"distances"`
}

// HostCPU is one thread of the host.
type HostCPU struct {
	// ID is the host's number of the thread.
	ID uint `json:"id"`
	// Core is the number of its core.
	Core uint `json:"core"`
	// Socket is the number of its socket.
	Socket uint `json:"socket"`
}

// HostDevice is a device of the host that is handed to a guest. Exactly one of
// its addresses is set.
type HostDevice struct {
	// PCI is the address of a PCI device: 0000:65:00.0.
	PCI string `json:"pci"`
	// MDev is the UUID of a mediated device.
	MDev string `json:"mdev"`
	// USB is bus and device number of a USB device: 3:7.
	USB string `json:"usb"`
	// Cell is the NUMA node the device is attached to; nil if that is not known.
	Cell *uint `json:"cell"`
}

// SMBIOS is the cluster-wide part of the guest's system information
// (KubeVirt: configuration.smbios). Empty fields are passed on as empty.
type SMBIOS struct {
	// Manufacturer is who made the machine.
	Manufacturer string `json:"manufacturer"`
	// Family is the family of products it belongs to.
	Family string `json:"family"`
	// Product is its name.
	Product string `json:"product"`
	// SKU is its number in a catalogue.
	SKU string `json:"sku"`
	// Version is that of the product.
	Version string `json:"version"`
}

// DiskSource is where a volume's data lies on one node.
type DiskSource struct {
	// Path is the absolute path of the file or block device.
	Path string `json:"path"`
	// Inside is where the hypervisor finds it, if that is another path: in a launcher's
	// Pod. Empty: the same.
	Inside string `json:"inside"`
	// Format is raw (default) or qcow2.
	Format string `json:"format"`
	// Block says that Path is a block device.
	Block bool `json:"block"`
	// ReadOnly says that nothing may be written: the guest gets a read-only disk.
	ReadOnly bool `json:"readOnly"`
	// Shared says that the same data is visible under Path on every node. What
	// is writable and not shared has to be copied at live migration.
	Shared bool `json:"shared"`
	// DirectIO says that the file can be opened with O_DIRECT; it decides the
	// cache mode where the spec leaves it open.
	DirectIO bool `json:"directIO"`
	// Preallocated says that all blocks of the image are allocated.
	Preallocated bool `json:"preallocated"`
	// Bytes is the size the disk shall have; 0 means that it is not known. A
	// running guest's disk grows with it.
	Bytes int64 `json:"bytes"`
	// Sector holds the block sizes of the device or file, for
	// blockSize.matchVolume; nil if they are not known.
	Sector *SectorSize `json:"sector"`
	// DataStore is where the data of a disk with changed block tracking lies; Path
	// is then the overlay that notes what has changed. Nil without tracking.
	DataStore *DiskSource `json:"dataStore"`
	// Backing is the image below an overlay; nil if there is none.
	Backing *DiskSource `json:"backing"`
}

// SectorSize are the block sizes of a device in bytes.
type SectorSize struct {
	// Logical is the smallest unit of access; zero means that only Physical is
	// known.
	Logical uint `json:"logical"`
	// Physical is the unit of the medium; zero means that only Logical is known.
	Physical uint `json:"physical"`
	// DiscardGranularity is the unit in which blocks are given back; 0 if unknown.
	DiscardGranularity uint `json:"discardGranularity"`
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
