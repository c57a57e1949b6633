// SPDX-License-Identifier: Apache-2.0

// Package admit fills in and checks VirtualMachineInstances as they are created, where KubeVirt's webhooks do not: [Default],
// [Validate] and [ValidateUpdate]. They are pure. What they depend on besides the guest is a [Config], of which [ConfigFrom]
// reads the cluster's part from the KubeVirt object. Nothing depends on admission: what a cluster's feature gates do not let
// guests have, and more than a guest can have, the controller, the renderer and the node refuse as well, by the same rules.
// Admission tells a user at once what would otherwise be a condition on the guest later.
//
// # What is filled in
//
// In this order, each only where the guest says nothing:
//
//   - spec.architecture: the cluster's default architecture, else amd64 (KubeVirt's webhook)
//   - spec.domain.machine.type: the cluster's machineType, in general or of the architecture; else q35, virt on arm64,
//     s390-ccw-virtio on s390x (KubeVirt's webhook)
//   - CPU request: the CPU limit; else the cluster's cpuRequest, if that is not 100m and the guest has no dedicated CPUs
//     (KubeVirt's webhook). Requests of memory are added up by the renderer of the Pod, not filled in here
//   - CPU topology: one core and thread, as many sockets as the CPU limit, else the CPU request, rounded up, else one
//     (KubeVirt's webhook)
//   - CPU model: host-passthrough on arm64, else the cluster's cpuModel, else host-model (KubeVirt's webhook)
//   - spec.domain.memory.guest: the memory request, else the limit, else one huge page (KubeVirt's webhook)
//   - pull policies of container disks: Always for the tag latest or none, else IfNotPresent (KubeVirt's webhook)
//   - the network of the Pod with an interface, for guests without networks and interfaces unless autoattachPodInterface is
//     false: the cluster's defaultNetworkInterface, else bridge (KubeVirt's webhook)
//   - bindings of interfaces: bridge (documentation of the API)
//   - a disk for each volume that no disk or file system uses (KubeVirt's webhook); not for memory dumps and folders of the
//     launcher, which are no disks
//   - buses of disks: sata on amd64, virtio elsewhere (KubeVirt's webhook); scsi for LUNs and virtio for metrics of the host,
//     which are on no other. A CD-ROM keeps none where disks are virtio
//   - UEFI without secure boot on arm64, no ACPI on s390x (KubeVirt's webhook)
//   - the device and the action of a watchdog (documentation of the API, KubeVirt's webhook)
//   - timers, features, kinds of disks, drives, inputs and probes (SetObjectDefaults_VirtualMachineInstance of
//     kubevirt.io/api); and firmware.uuid, which is not drawn there but taken from the Config
//   - features of Hyper-V that others depend on, and the CPU feature vmx for evmcs (KubeVirt's webhook)
//   - room for CPUs and memory that are plugged while the guest runs, unless the cluster's vmRolloutStrategy is Stage: maxSockets
//     are the cluster's maxCpuSockets, else four times the sockets that are named, or the cluster's maxHotplugRatio, up to 512
//     CPUs; maxGuest
//     is the cluster's, else the memory times that ratio. Not on arm64; memory on amd64 alone, in whole blocks of 2Mi (of 1Gi
//     with huge pages of 1Gi), and not for guests that are encrypted, run in real time or have the NUMA topology of their host
//     (KubeVirt's webhook)
//   - annotations: kubevirt.io/latest-observed-api-version and kubevirt.io/storage-observed-api-version, which the controller
//     would write with a request of its own; kubevirt.io/pci-topology-version for q35 and virt machines; parity of emulator
//     threads as the cluster is configured, and the socket for quotes of TDX guests (KubeVirt's webhook)
//   - the finalizer kubevirt.io/foregroundDeleteVirtualMachine, phase Pending with its time, and status.runtimeUser 107
//     unless the feature gate Root is on (KubeVirt's webhook)
//
// The eviction strategy of the cluster is not filled in: it is looked up when a guest is to be evicted, and so follows the
// cluster. Nor are the CPUs and the memory in the status, which KubeVirt's webhook notes: a user may not write them, and the
// controllers do before the guest runs.
//
// # What is refused
//
// What KubeVirt's API server refuses, what no Pod can be rendered from, and what no domain can be converted from, as far as
// it can be told without a node. Each error has the field, the value, a reason, and in parentheses what to do. Facts of a
// cluster, such as whether a claim exists, are not asked for. A guest that is valid stays so when its defaults are filled in.
package admit
