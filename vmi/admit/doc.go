// SPDX-License-Identifier: Apache-2.0

// Package admit defaults and validates VirtualMachineInstances on creation in clusters without KubeVirt's webhooks:
// [Default], [Validate] and [ValidateUpdate]. They are pure functions of the VMI and a [Config], whose cluster part
// [ConfigFrom] reads from the KubeVirt object. Admission is optional: the controller, the renderer and the node enforce
// feature gates and limits by the same rules. Admission reports an error at once instead of in a condition of the VMI
// later.
//
// # Defaults
//
// In this order, each only if the field is unset:
//
//   - spec.architecture: the cluster's default architecture, else amd64 (KubeVirt's webhook)
//   - spec.domain.machine.type: the cluster's machineType, in general or of the architecture; else q35, virt on arm64,
//     s390-ccw-virtio on s390x (KubeVirt's webhook)
//   - CPU request: the CPU limit; else the cluster's cpuRequest, unless that is 100m or the VMI has dedicated CPUs
//     (KubeVirt's webhook). Memory requests are calculated by the renderer of the Pod
//   - CPU topology: one core and thread, as many sockets as the CPU limit, else the CPU request, rounded up, else one
//     (KubeVirt's webhook)
//   - CPU model: host-passthrough on arm64, else the cluster's cpuModel, else host-model (KubeVirt's webhook)
//   - spec.domain.memory.guest: the memory request, else the limit, else one huge page (KubeVirt's webhook)
//   - pull policies of container disks: Always for the tag latest or none, else IfNotPresent (KubeVirt's webhook)
//   - the Pod network with an interface, for VMIs without networks and interfaces unless autoattachPodInterface is
//     false: the cluster's defaultNetworkInterface, else bridge (KubeVirt's webhook)
//   - bindings of interfaces: bridge (documentation of the API)
//   - a disk for each volume that no disk or file system uses (KubeVirt's webhook), except for memory dumps and folders of
//     the launcher, which are no disks
//   - disk buses: sata on amd64, virtio elsewhere (KubeVirt's webhook); scsi for LUNs and virtio for downward metrics,
//     which support no other bus. A CD-ROM has no bus where disks are virtio
//   - UEFI without secure boot on arm64, no ACPI on s390x (KubeVirt's webhook)
//   - the device and the action of a watchdog (documentation of the API, KubeVirt's webhook)
//   - timers, features, kinds of disks, drives, inputs and probes (SetObjectDefaults_VirtualMachineInstance of
//     kubevirt.io/api); and firmware.uuid, from the Config instead of at random
//   - Hyper-V features that others depend on, and the CPU feature vmx for evmcs (KubeVirt's webhook)
//   - headroom for hotplugged CPUs and memory, unless the cluster's vmRolloutStrategy is Stage: maxSockets is the cluster's
//     maxCpuSockets, else four times the sockets, or the cluster's maxHotplugRatio, up to 512 CPUs; maxGuest is the cluster's,
//     else the memory times that ratio. Not on arm64; memory on amd64 only, in whole blocks of 2Mi (of 1Gi with huge pages of
//     1Gi), and not for VMIs that are encrypted, run in real time or have the NUMA topology of their host (KubeVirt's webhook)
//   - annotations: kubevirt.io/latest-observed-api-version and kubevirt.io/storage-observed-api-version, which the controller
//     would write with another request; kubevirt.io/pci-topology-version for q35 and virt machines; parity of emulator threads
//     as the cluster is configured, and the quote socket of TDX VMIs (KubeVirt's webhook)
//   - the finalizer kubevirt.io/foregroundDeleteVirtualMachine, phase Pending with its time, and status.runtimeUser 107
//     unless the feature gate Root is on (KubeVirt's webhook)
//
// The cluster's eviction strategy is not a default here: it is looked up on eviction, so that it follows the cluster. The
// CPUs and the memory in the status, which KubeVirt's webhook sets, are set by the controllers before the domain starts.
//
// # Validation
//
// The rules for specs are those of vmi/validate, which all readers of a VMI share; this package adds those that depend on
// who creates or changes a VMI. They reject what KubeVirt's API server rejects, what cannot be rendered to a Pod, and what
// cannot be converted to a domain, as far as that is known without a node. Each error has the field, the value, a reason,
// and a remedy in parentheses. The checks do not read the cluster, such as whether a claim exists. Defaults never make a
// valid VMI invalid.
package admit
