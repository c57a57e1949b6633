// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"github.com/virtloom/virtloom/domain"
)

// Facts are the values of one node that a conversion depends on. Everything else comes from the
// VirtualMachineInstance. The zero value describes an amd64 node with KVM and without files.
//
// In JSON and YAML, fields are named by their tags; see "refdaemon convert --facts".
type Facts struct {
	// Dir is the directory of the VMI's own files on this node, such as sockets and the console
	// log, by the path that the hypervisor has for it. That is the same on every node, its content
	// is not. If it is empty, devices that need such a file cannot be converted.
	Dir string `json:"dir"`

	// Arch is the architecture of the node in libvirt's spelling: x86_64, aarch64 or s390x.
	// Defaults to x86_64.
	Arch string `json:"arch"`

	// Emulation requests a domain of type qemu (software emulation) instead of kvm. The caller
	// decides whether KVM works and whether the cluster allows emulation; see [domain.Host.KVM] and
	// [EmulationFor].
	Emulation bool `json:"emulation"`

	// NoHostModel says that the hypervisor cannot determine the CPU model of the host, so that no
	// other host can be matched for a VMI with CPU model host-model.
	NoHostModel bool `json:"noHostModel"`

	// Emulator is the path of the QEMU binary. If empty, libvirt chooses one.
	Emulator string `json:"emulator"`

	// Emulators maps each other architecture, in libvirt's spelling, that this node may emulate in
	// software to the path of its QEMU binary (KubeVirt: /usr/bin/qemu-system-aarch64, if the
	// feature gate for multiple architectures is on). VMIs of an architecture that is missing here
	// are rejected.
	Emulators map[string]string `json:"emulators"`

	// Bridges maps each network of the spec, by name, to its host bridge.
	Bridges map[string]string `json:"bridges"`

	// Disks maps each volume, by name, to the location of its data on this node.
	Disks map[string]DiskSource `json:"disks"`
	// Missing maps each volume that a Pod has carried to this node, but whose data was not found, by
	// name, to the reason. It is for the status of the VMI; such a volume is not converted.
	Missing map[string]string `json:"missing,omitempty"`

	// Kernel is the path of the kernel for direct kernel boot
	// (spec.domain.firmware.kernelBoot.container).
	Kernel string `json:"kernel"`
	// Initrd is the path of the initrd for Kernel. May be empty.
	Initrd string `json:"initrd"`

	// Epoch is the handoff epoch under which the domain may run. It is stored in the metadata of
	// the domain.
	Epoch uint64 `json:"epoch"`

	// SMBIOS holds the cluster-wide SMBIOS values of guests. Nil means KubeVirt's defaults.
	SMBIOS *SMBIOS `json:"smbios"`

	// Cluster holds the cluster configuration that applies to all VMIs.
	Cluster Cluster `json:"cluster"`

	// Links maps each interface of the spec, by name, to its link on the node. An interface with
	// neither a link nor a bridge cannot be converted.
	Links map[string]Link `json:"links"`

	// Firmware holds the UEFI images of this node.
	Firmware Firmware `json:"firmware"`

	// NVRAMDir is the directory of UEFI variables that outlive the VMI
	// (spec.domain.firmware.bootloader.efi.persistent). All others are in Dir.
	NVRAMDir string `json:"nvramDir"`

	// CPUs are the host CPUs dedicated to the VMI, in ascending order
	// (spec.domain.cpu.dedicatedCpuPlacement): the cpuset of its Pod.
	CPUs []uint `json:"cpus"`

	// Cells is the NUMA topology of the node.
	Cells []domain.Cell `json:"cells"`

	// Devices maps each resource (nvidia.com/gpu), or request of a claim, to the host devices
	// allocated to the VMI, in the order of allocation.
	Devices map[string][]HostDevice `json:"devices"`

	// SRIOV maps each SR-IOV interface, by name, to the PCI address of its virtual function:
	// 0000:65:01.2.
	SRIOV map[string]string `json:"sriov"`

	// Filesystems maps each shared directory of the spec, by name, to the socket of its virtiofsd.
	Filesystems map[string]string `json:"filesystems"`

	// ReservationSocket is the socket of the node's helper for SCSI persistent reservations
	// (qemu-pr-helper).
	ReservationSocket string `json:"reservationSocket"`

	// SecretDirs maps each secret volume, by name, to the directory with its content, for
	// spec.domain.firmware.acpi.
	SecretDirs map[string]string `json:"secretDirs"`

	// Ignition is the file with the data of the annotation kubevirt.io/ignitiondata. Empty if there
	// is none.
	Ignition string `json:"ignition"`

	// LocalVSOCK says that vsock context identifiers are private to a network namespace, so that
	// every guest has the same one.
	LocalVSOCK bool `json:"localVSOCK"`

	// IOMMUFD says that an open file of /dev/iommu is passed to the domain.
	IOMMUFD bool `json:"iommufd"`

	// Incoming says that the domain is the target of a live migration, which devices of the source
	// host do not take part in.
	Incoming bool `json:"incoming"`

	// Services says which services the node provides for guests besides running them.
	Services Services `json:"services"`

	// Layout holds the current addresses of the guest's devices, see [LayoutOf]. The zero value is
	// for a guest that does not run yet.
	Layout Layout `json:"layout"`
}

// Cluster is the cluster configuration that applies to all VMIs (KubeVirt: spec.configuration and
// its feature gates). The zero value has KubeVirt's defaults.
type Cluster struct {
	// BalloonPeriod is the interval, in seconds, at which guests report their memory use. Nil means
	// 10, zero means never (memBalloonStatsPeriod).
	BalloonPeriod *uint32 `json:"balloonPeriod"`
	// NoFreePageReporting stops guests from returning free memory to the host
	// (virtualMachineOptions.disableFreePageReporting).
	NoFreePageReporting bool `json:"noFreePageReporting"`
	// NoSerialConsoleLog disables the log file of the serial console
	// (virtualMachineOptions.disableSerialConsoleLog).
	NoSerialConsoleLog bool `json:"noSerialConsoleLog"`
	// BochsForEFI selects video model bochs instead of VGA for guests with UEFI.
	BochsForEFI bool `json:"bochsForEFI"`
	// FirmwareAutoSelection lets libvirt choose the UEFI image for secure boot.
	FirmwareAutoSelection bool `json:"firmwareAutoSelection"`
	// FirmwareLog writes the debug output of the firmware of amd64 guests to a file in Facts.Dir.
	FirmwareLog bool `json:"firmwareLog"`
	// MigratableVGPU allows live migration of VMIs with one mediated GPU.
	MigratableVGPU bool `json:"migratableVGPU"`
	// TapBindings are the network binding plugins whose interfaces are attached to a tap device
	// (KubeVirt: spec.configuration.network.binding[].domainAttachmentType tap or managedTap).
	// Interfaces of other plugins are added by their sidecars.
	TapBindings []string `json:"tapBindings"`
	// MigratableBindings are the network binding plugins that allow live migration (KubeVirt:
	// spec.configuration.network.binding[].migration).
	MigratableBindings []string `json:"migratableBindings"`
	// RefreshedBindings are the plugins whose links are set down and up again after a migration, so
	// that the guest renews its address (migration method link-refresh).
	RefreshedBindings []string `json:"refreshedBindings"`
	// NUMAAlignedPCI places host devices of guests with dedicated CPUs behind a PCI expander bus of
	// their NUMA node.
	NUMAAlignedPCI bool `json:"numaAlignedPCI"`
	// FeatureGates and DisabledFeatureGates are those of the cluster (developerConfiguration). A
	// VMI with a field whose gate is off is rejected.
	FeatureGates         []string `json:"featureGates"`
	DisabledFeatureGates []string `json:"disabledFeatureGates"`
}

// Services are what a node does for guests besides running them. None of it is part of the domain:
// a VMI that needs a service that is false here is rejected, so that it does not run without it.
type Services struct {
	// Hooks says that the caller runs the hook sidecars of the VMI (annotation
	// hooks.kubevirt.io/hookSidecars) on the domain before it is defined.
	Hooks bool `json:"hooks"`
	// CloudInitKeys says that SSH keys of spec.accessCredentials are written into the data of
	// cloud-init volumes.
	CloudInitKeys bool `json:"cloudInitKeys"`
	// AgentCredentials says that keys and passwords of spec.accessCredentials are propagated by the
	// guest agent.
	AgentCredentials bool `json:"agentCredentials"`
	// DownwardMetrics says that metrics of the host are served on [MetricsSocket]
	// (spec.domain.devices.downwardMetrics).
	DownwardMetrics bool `json:"downwardMetrics"`
	// PersistentState says that the persistent state of devices is kept for the next start of the
	// VMI, on this node or another (spec.domain.devices.tpm.persistent).
	PersistentState bool `json:"persistentState"`
}

// Link is the link that a node provides for one interface of a VMI.
type Link struct {
	// Tap is the name of the tap device of the interface. If empty, the interface is attached to
	// the bridge in Facts.Bridges.
	Tap string `json:"tap"`
	// MAC is the address of the Pod's link, which the guest gets if the spec has none. If empty,
	// the address is derived, see [MAC].
	MAC string `json:"mac"`
	// MTU is that of the Pod's link. Zero leaves it to the hypervisor.
	MTU uint `json:"mtu"`
	// Passt is the name of the Pod's link that passt forwards.
	Passt string `json:"passt"`
	// IPs are the addresses of the Pod's link, the primary one first. Nil if unknown.
	IPs []string `json:"ips"`
}

// Firmware holds the UEFI images of a node by purpose. An image without Code is not available.
type Firmware struct {
	// SecureBoot is the image with secure boot.
	SecureBoot FirmwareImage `json:"secureBoot"`
	// Plain is the image without secure boot.
	Plain FirmwareImage `json:"plain"`
	// SEV is for guests with AMD SEV or SEV-ES.
	SEV FirmwareImage `json:"sev"`
	// SNP is for guests with AMD SEV-SNP.
	SNP FirmwareImage `json:"snp"`
	// TDX is for guests with Intel TDX.
	TDX FirmwareImage `json:"tdx"`
	// TDXSecureBoot is for guests with Intel TDX and secure boot.
	TDXSecureBoot FirmwareImage `json:"tdxSecureBoot"`
}

// FirmwareImage is one UEFI image.
type FirmwareImage struct {
	// Code is the path of the firmware.
	Code string `json:"code"`
	// Vars is the path of the template of its variables. Empty for SNP and TDX.
	Vars string `json:"vars"`
}

// HostDevice is a device of the host that is assigned to a VMI. Exactly one of PCI, MDev and USB is
// set.
type HostDevice struct {
	// PCI is the address of a PCI device: 0000:65:00.0.
	PCI string `json:"pci"`
	// MDev is the UUID of a mediated device.
	MDev string `json:"mdev"`
	// USB is bus and device number of a USB device: 3:7.
	USB string `json:"usb"`
	// Cell is the NUMA node of the device. Nil if unknown.
	Cell *uint `json:"cell"`
}

// SMBIOS is the cluster-wide part of a guest's system information (KubeVirt: configuration.smbios).
// Empty fields stay empty.
type SMBIOS struct {
	// Manufacturer is the manufacturer of the machine.
	Manufacturer string `json:"manufacturer"`
	// Family is its product family.
	Family string `json:"family"`
	// Product is its product name.
	Product string `json:"product"`
	// SKU is its stock keeping unit.
	SKU string `json:"sku"`
	// Version is its product version.
	Version string `json:"version"`
}

// DiskSource is the location of a volume's data on one node.
type DiskSource struct {
	// Path is the absolute path of the file or block device; of one that only the hypervisor's
	// mount namespace has, as that of a launcher Pod, the path there.
	Path string `json:"path"`
	// Inside is the path in the hypervisor's mount namespace, if that is another one. Defaults to
	// Path.
	Inside string `json:"inside"`
	// Format is raw (default) or qcow2.
	Format string `json:"format"`
	// Block says that Path is a block device.
	Block bool `json:"block"`
	// ReadOnly says that the data must not be written. The guest gets a read-only disk.
	ReadOnly bool `json:"readOnly"`
	// Shared says that every node has the same data at Path. Writable disks that are not shared are
	// copied by a live migration.
	Shared bool `json:"shared"`
	// DirectIO says that the file can be opened with O_DIRECT. It determines the cache mode if the
	// spec does not set one.
	DirectIO bool `json:"directIO"`
	// Preallocated says that all blocks of the image are allocated.
	Preallocated bool `json:"preallocated"`
	// Bytes is the requested size of the disk, 0 if unknown. The disk of a running guest is resized
	// to it.
	Bytes int64 `json:"bytes"`
	// Sector holds the block sizes of the device or file, for blockSize.matchVolume. Nil if
	// unknown.
	Sector *SectorSize `json:"sector"`
	// DataStore is the location of the data of a disk with changed block tracking; Path is then the
	// overlay that records the changed blocks. Nil without tracking.
	DataStore *DiskSource `json:"dataStore"`
	// Backing is the image below an overlay. Nil if there is none.
	Backing *DiskSource `json:"backing"`
}

// SectorSize are the block sizes of a device in bytes.
type SectorSize struct {
	// Logical is the smallest unit of access. Zero means that only Physical is known.
	Logical uint `json:"logical"`
	// Physical is the unit of the medium. Zero means that only Logical is known.
	Physical uint `json:"physical"`
	// DiscardGranularity is the unit in which blocks are discarded. Zero if unknown.
	DiscardGranularity uint `json:"discardGranularity"`
}

// EmulationFor returns the value for [Facts.Emulation]: whether the host needs software emulation
// because KVM is not usable. It returns an error if it does and the cluster (KubeVirt:
// configuration.developerConfiguration.useEmulation) does not allow emulation.
func EmulationFor(h domain.Host, allowEmulation bool) (bool, error) {
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
		Err:    domain.ErrUnsupported,
	}
}
