// SPDX-License-Identifier: Apache-2.0

// Package template renders the Pods that a VirtualMachineInstance needs.
//
// A Renderer is an ordered list of named stages over one Draft of a Pod. Default returns the stock list, which produces
// the Pod that KubeVirt's virt-handler and virt-launcher expect; Before, After, Replace and Remove derive another
// Renderer from it. Everything a Pod depends on comes in as one Input value: rendering reads no API, clock, environment
// or random source, never changes its input, and gives equal Pods for equal inputs.
//
//	pod, err := template.Default().Launcher(template.Input{VMI: vmi, Config: config, Facts: facts})
//
// Every field of a Pod has one owner, the stage that set it. A stage that sets a field of another stage is refused with an
// Error that names both, unless it declares the field in Stage.Overrides. Explain returns the Pod together with these
// owners and the terms of its memory request.
//
// # Names
//
// Pods are created under a name derived from the VMI's UID and the purpose (LauncherName, TargetName, AttachmentName,
// TriggerName), not under a name chosen by the server: creating a Pod twice is then AlreadyExists, also for a controller
// that has lost its memory. Exporters have KubeVirt's name (ExporterName). Pods carry the namespace of the VMI or export.
//
// # Decisions where KubeVirt leaves room
//
//   - The jitter of --qemu-timeout is derived from the UID instead of drawn.
//   - The memory overhead's page tables are counted from spec.domain.resources.requests.memory and are zero without it,
//     because node agents compare the annotation kubevirt.io/memory-overhead-bytes byte for byte.
//   - Supplemental I/O threads count once when the emulator's CPUs are completed to an even number, as virt-launcher counts
//     them when it pins.
//   - Hugepages hold the whole guest, whatever overcommit or request say.
//   - A calculated CPU request is cut to the VMI's limit, and a calculated limit raised to the VMI's request.
//   - A hostname cut to 63 characters loses a trailing dash, so that the API server accepts it.
//   - The KubeVirt object's skip-backup-hooks annotation counts at rendering (Config.SkipBackupHooks), not only later.
//   - What the API server would refuse on a Pod is an error that names the VMI's field.
//   - With CrossArchitectureVirtualization, kubernetes.io/arch is in no selector of a VMI that has an architecture.
//   - A logVerbosity label must be a number that is not negative.
//   - The SELinux level of a migration target is added to the configured type instead of replacing it.
//   - Probes are rendered from copies, so that rendering twice gives the same timeouts.
//   - Sidecars of network binding plugins are in the order of the interfaces that use them first.
//   - A ConfigMap or claim of several hook sidecars is one volume. Where its name is no name of a volume, or is that of
//     another volume, the volume gets a name derived from it.
//   - A network without an interface is an error, and so are the bindings that KubeVirt has removed: slirp, macvtap and the
//     old passt.
//   - A containerPath volume is rendered by stage virtiofs, as there is no webhook: it is found among the mounts that stages
//     before have given to compute, not among those that the API server or other webhooks add.
//   - Of several claims with the state of one guest the newest counts. What a migration's target gets is never taken from the
//     VMI's status about an earlier migration.
//   - The shell of a temporary Pod gets no --allow-cross-arch-emulation.
//   - Two access credentials of one secret share one volume.
//   - A target that has lost its image digest is an error, as a migration must not change the disk under the guest.
//   - Hotplug Pods have the pull policy and pull secret of the launcher and the priority class of the guest. A trigger
//     finds its guest's Pod by the label kubevirt.io/created-by alone, as others may change while the Pod runs.
//   - A hotplug Pod needs all its claims to be known, and refuses names that hide its own files or that two volumes share.
//   - A target received from another cluster is kept off the source's node in all required node terms, and takes the
//     source's SELinux context and CPU labels from status.migrationState.sourceState.
//   - Exporters have the launcher's pull secret. An export's labels and annotations cannot replace those by which its
//     Service and its controller find the Pod. Claims whose names differ only in dots are refused in one exporter.
//
// # What is refused
//
// A VMI that uses what no stage renders gets an Error that wraps ErrUnsupported and names the field, never a Pod without
// it. Of the stock stages that is only a containerPath volume while the gate ContainerPathVolumes is off.
package template
