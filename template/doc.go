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
//	Input ─▶ Draft ─▶ stage ─▶ stage ─▶ … ─▶ checks of owners and of what the API server would refuse ─▶ Pod, Explanation
//
// The stages of Default in their order; a stage may be for some Pods alone (Stage.Pods):
//
//	validate ▶ network-spec ▶ supported ▶ hooks ▶ metadata ▶ pod ▶ security ▶ compute ▶ console-log ▶ resources
//	▶ devices ▶ host-devices ▶ network-devices ▶ runtime-dirs ▶ config-volumes ▶ volumes ▶ cloud-init
//	▶ access-credentials ▶ backend-storage ▶ images ▶ container-disks ▶ hook-sockets ▶ hugepages ▶ hotplug-dir
//	▶ network-info ▶ virtiofs ▶ sidecars ▶ probes ▶ node-selector ▶ affinity ▶ reservations ▶ scheduling ▶ network
//	▶ service-mesh ▶ storage ▶ temporary ▶ hotplug-pod ▶ attachment ▶ trigger ▶ migration ▶ migration-cpu
//	▶ migration-selinux ▶ selinux-workaround ▶ exporter ▶ export-server
//
// Every field of a Pod has one owner, the stage that set it. A stage that sets a field of another stage is refused with an
// Error that names both, unless it declares the field in Stage.Overrides. Explain returns the Pod together with these
// owners, the field of the VMI or the fact that each value follows from, and the terms of amounts. Parts of stock stages are
// replaced without writing a stage: see AnnotationGenerator, NetworkSpecValidator, SidecarCreator, OverheadCalculator.
//
// Package template/offline makes an Input of manifests, package template/templatectrl of what a cluster has.
//
// # Names
//
// Pods are created under a name derived from the VMI's UID and the purpose (LauncherName, TemporaryName, TargetName,
// AttachmentName, TriggerName), not under a name chosen by the server: creating a Pod twice is then AlreadyExists, also for a controller
// that has lost its memory. Exporters have KubeVirt's name (ExporterName). Pods carry the namespace of the VMI or export.
//
// # KubeVirt's quirks
//
// What KubeVirt's renderer does oddly is matched where its node half depends on it, and done better elsewhere:
//
//	Q1  page tables follow requests.memory alone      matched: node agents compare memory-overhead-bytes byte for byte
//	Q2  rendering changes the VMI's probes            fixed: probes are copies, the Pod shares nothing with the input
//	Q3  temporary Pod with a launcher's flag          fixed: its shell gets no --allow-cross-arch-emulation
//	Q4  jitter and order are drawn                    fixed: jitter follows from the UID, everything has its order
//	Q5  hotplug Pods lack pull secret, policy, class  fixed: the launcher's secret and policy, the guest's priority class
//	Q6  a target's SELinux level replaces the type    fixed: the level is added to the configured type
//	Q7  a trigger joins its guest by all its labels   fixed: by kubevirt.io/created-by, as others may change meanwhile
//	Q8  parity counts supplemental I/O threads twice  fixed: once, as virt-launcher counts them when it pins
//	Q9  the KubeVirt object's skip-backup-hooks       fixed: Config.SkipBackupHooks counts while rendering
//	Q10 one Secret or claim used twice, two volumes   fixed: one volume
//	Q11 overcommit shrinks hugepages                  fixed: they hold the whole guest, as it would not start otherwise
//	Q12 host names end in a dash, verbosity wraps     fixed: trimmed; a verbosity is a number that is not negative
//	Q13 CPU features without a model, and a topology  matched: the model then follows from the node, and a guest that
//	    of no factors, ask for nothing                    has no CPUs of its own gets what its author requests
//	Q14 a network without an interface crashes        fixed: an error that names it
//	Q15 1 GiB for any number of VFIO devices          matched: node agents compare the overhead, see Q1
//	Q16 node agents recompute the overhead            matched: kubevirt.io/memory-overhead-bytes is exact to the byte
//
// # Decisions where KubeVirt leaves room
//
//   - What the API server would refuse on a Pod is an error that names the VMI's field.
//   - A calculated CPU request is cut to the VMI's limit, and a calculated limit raised to the VMI's request.
//   - With CrossArchitectureVirtualization, kubernetes.io/arch is in no selector of a VMI that has an architecture.
//   - Sidecars of network binding plugins are in the order of the interfaces that use them first.
//   - A ConfigMap or claim of hook sidecars whose name is no name of a volume, or is that of another volume, is a volume
//     whose name is derived from it.
//   - The annotation of hook sidecars is read strictly: an unknown field, and null in the place of the list, are errors.
//   - Resources of the VMI that are devices of the launcher, such as devices.kubevirt.io/kvm, are errors. Where they name the
//     resource of a GPU or host device, the number of those devices counts.
//   - A drive for CD-ROMs may be without a volume, whatever the gates: it is for admission to refuse.
//   - The bindings that KubeVirt has removed are errors: slirp, macvtap and the old passt.
//   - A containerPath volume is rendered by stage virtiofs, as there is no webhook: it is found among the mounts that stages
//     before have given to compute, not among those that the API server or other webhooks add.
//   - Of several claims with the state of one guest the newest counts. What a migration's target gets is never taken from the
//     VMI's status about an earlier migration.
//   - A target that has lost its image digest is an error, as a migration must not change the disk under the guest.
//   - Volumes with the secrets of cloud-init are behind those of all disks, whatever the order in the VMI.
//   - A migration's annotation kubevirt.io/func-test-migration-target-image-override, for KubeVirt's own tests, has no effect.
//   - A hotplug Pod needs all its claims to be known, and refuses names that hide its own files or that two volumes share.
//   - A target received from another cluster is kept off the source's node in all required node terms, and takes the
//     source's SELinux context and CPU labels from status.migrationState.sourceState.
//   - Exporters have the launcher's pull secret. An export's labels and annotations cannot replace those by which its
//     Service and its controller find the Pod. Claims whose names differ only in dots are refused in one exporter.
//
// # What is refused
//
// A VMI that uses what no stage renders gets an Error that wraps ErrUnsupported and names the field, never a Pod without
// it. Of the stock stages that are only the removed bindings, and a containerPath volume while the gate ContainerPathVolumes
// is off. The exception is KubeVirt's own: while the gate of its kind is off, a device by claim is left out, unless the
// cluster lists permitted devices.
package template
