// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
)

// advice is the part of a finding that a wait does not have.
type advice struct {
	kind        FindingKind
	why, remedy string
}

const (
	makeAnew  = "correct the spec and recreate the VirtualMachineInstance: the field is immutable"
	askAgent  = "check the node agent on the node: its log, its probe /readyz; refdaemon explain node reports the state of the node"
	askOthers = "none; if it persists, check that the responsible controller runs, and its log"
)

// byCheck is the advice for waits whose check is more specific than their reason.
var byCheck = map[string]advice{
	"name": {LauncherMissing, "the launcher Pod's name is derived from the VirtualMachineInstance, so that there is never a second Pod",
		"delete the conflicting Pod, or rename it in its controller"},
	"elsewhere": {Disagreement, "the object has lost its status, and a Pod created by a migration may run the domain: a second Pod could run it twice",
		"check on that Pod's node whether the domain runs; delete the Pod if it does not"},
	"migration": {WaitingForMigration, "a migrating VirtualMachineInstance gets its Pod from the migration only",
		"wait for the migration to end or delete it; refdaemon explain migration reports what it waits for"},
	"receiver": {WaitingForMigration, "a VirtualMachineInstance migrated from another cluster is never started here",
		"check the migration in the other cluster, and that the one in this cluster exists"},
}

// byReason is the advice for all other waits.
var byReason = map[string]advice{
	vmi.ReasonWaitingForCache: {WritePending, "nothing is created or deleted based on a cache that lacks the controller's own writes",
		"none: the object is read live after 30s; if this occurs often, check the metrics virtloom_expectations_expired_total and _outstanding"},

	vmi.ReasonPvcNotFound: {WaitingForStorage, "a Pod with a missing claim would be unschedulable forever",
		"create the claim or DataVolume, or correct its name in the volume"},
	vmi.ReasonFailedDataVolumeImport: {WaitingForStorage, "without its DataVolume it is unknown whether the claim was populated",
		"recreate the DataVolume and its claim, or remove the owner reference of a fully populated claim"},
	v1.VirtualMachineInstanceReasonNotAllDVsReady: {WaitingForStorage, "a VirtualMachineInstance must not start from a partially populated disk",
		"wait while it makes progress; otherwise check the DataVolume's conditions and the log of its importer Pod"},
	vmi.ReasonPVCNotReady: {WaitingForStorage, "the volume is hotplugged once its claim is usable",
		"check the events of the claim and the DataVolume"},
	vmi.ReasonBackendStorageCreate: {WaitingForStorage, "persistent TPM, EFI and changed block tracking state is stored in a claim of its own",
		"set vmStateStorageClass in the KubeVirt object, or configure a default StorageClass"},
	vmi.ReasonBackendStorageProbe: {WaitingForStorage, "the backend storage claim is not usable",
		"restore or replace the claim as the message says; deleting it deletes the state"},
	vmi.ReasonBackendStorageNotReady: {WaitingForStorage, "the backend storage claim is not bound yet",
		"check the events of the claim and the provisioner of its StorageClass"},
	"WaitingForFirstConsumer": {WaitingForStorage, "the claims are provisioned on the node of their first consumer, then populated; a temporary Pod is that consumer",
		"check why that Pod is not scheduled, and the events of the claims"},
	"VolumeNotMounted": {WaitingForNode, "the volume is attached to the node, but not to the domain", askAgent},

	vmi.ReasonFailedCreateValidation: {InvalidNetwork, "no Pod can provide these networks",
		"correct spec.networks and spec.domain.devices.interfaces as the message says, and recreate the VirtualMachineInstance"},
	vmi.ReasonContainerPathVolumesDisabled: {InvalidSpec, "containerPath volumes are disabled in this cluster",
		"enable feature gate ContainerPathVolumes in the KubeVirt object, or remove the volume"},
	vmi.ReasonMissingVirtiofsContainers: {InvalidSpec, "containers cannot be added to a Pod that exists", "restart the VirtualMachine"},
	vmi.ReasonFailedGuaranteeResources: {InvalidSpec, "only a Pod of QoS class Guaranteed gets dedicated CPUs",
		"make requests and limits equal, also for injected containers, and recreate the VirtualMachineInstance"},
	vmi.ReasonFailedTopologyHints: {InvalidSpec, "no node is known to have the required TSC frequency",
		"set minimumClusterTSCFrequency, or label nodes with their TSC frequency"},
	"WaitingForTopologyHints": {WaitingForController, "the launcher Pod is scheduled by the stored TSC frequency", askOthers},
	"VSOCKAddressMissing": {WaitingForController, "every VirtualMachineInstance needs a unique VSOCK CID; all are in use, or none is reserved yet",
		"none; if it persists, delete VirtualMachineInstances with spec.domain.devices.autoattachVSOCK"},

	vmi.ReasonInvalidLease: {NotUnderstood, "which node may run the domain is unknown; no action taken",
		"restore the annotation virtloom.dev/handoff from a copy, or remove it while the domain runs on no node"},
	vmi.ReasonUnknownPhase:   {NotUnderstood, "unknown phase; no action taken", "correct status.phase, or delete the object"},
	vmi.ReasonFailedHandover: {NotUnderstood, "phase and lease are inconsistent; no action taken", "check on the node whether the domain runs, then correct the wrong field"},

	vmi.ReasonFailedCreate: {LastWriteFailed, "the launcher Pod could not be created",
		"do as the message says; retried when a related object changes, and every minute"},
	vmi.ReasonFailedDelete:          {LastWriteFailed, "a Pod of the VirtualMachineInstance could not be deleted", "do as the message says; retried automatically"},
	vmi.ReasonFailedPodPatch:        {LastWriteFailed, "labels, annotations or the readiness gate of the Pod are outdated", "do as the message says; retried automatically"},
	vmi.ReasonFailedHotplugSync:     {LastWriteFailed, "hotplug and unplug of volumes wait for it", "do as the message says; retried automatically"},
	vmi.ReasonBackendStorageDelete:  {LastWriteFailed, "an unused backend storage claim could not be deleted", "do as the message says; retried automatically"},
	vmi.ReasonNodeUnresponsive:      {NodeSilent, "the node keeps the VirtualMachineInstance until it returns or is fenced: the domain must not run twice", "recover the node, or make sure that it is off and taint it node.kubernetes.io/out-of-service, or delete its Node object"},
	"GuestEnding":                   {Ending, "only the node agent can report the end of the domain", askAgent},
	v1.PodTerminatingReason:         {Ending, "the kubelet of the Pod's node must confirm the deletion", "check the node's kubelet and the Pod's finalizers"},
	"Finalizers":                    {Ending, "the object is deleted once its finalizers are removed", "check the owners of the finalizers; remove a finalizer by hand only if its owner no longer exists"},
	"GuestMoving":                   {WaitingForNode, "only the source and target nodes know which of them runs the domain", askAgent},
	string(v1.WaitingForSync):       {WaitingForMigration, "a migration from another cluster creates the launcher Pod", "check the migration in the other cluster, or delete the object"},
	v1.PodNotExistsReason:           {LauncherMissing, "the decision waits for the last stored status", askOthers},
	v1.GuestNotRunningReason:        {WaitingForNode, "the node has not reported the VirtualMachineInstance as running", askAgent},
	"InvalidSpec":                   {InvalidSpec, "the node's hypervisor does not support the spec", makeAnew},
	"SyncFailed":                    {Disagreement, "the hypervisor rejected a change", "do as the message says; retried automatically"},
	"NodeNotReady":                  {WaitingForNode, "the node lacks a prerequisite of the VirtualMachineInstance", "do as the message says; otherwise " + askAgent},
	"GuestUnresponsive":             {WaitingForNode, "the hypervisor is unresponsive", "check libvirt's log in the launcher Pod and the load of the node"},
	"ErrImagePull":                  {PodNotReady, "the launcher Pod does not start without its images", pullRemedy},
	"ImagePullBackOff":              {PodNotReady, "the launcher Pod does not start without its images", pullRemedy},
	corev1.PodReasonUnschedulable:   {Unschedulable, "no node satisfies the requirements of the launcher Pod", "free or add the resources named by the scheduler, or request less"},
	corev1.PodReasonSchedulingGated: {Unschedulable, "spec.schedulingGates of the Pod is not empty", "find the owner of the gate and what it waits for"},
	corev1.PodReasonSchedulerError:  {Unschedulable, "the scheduler failed", "check the scheduler's log"},
	"ContainersNotReady":            {PodNotReady, "the handoff to the node agent requires running containers", "check the containers below, the Pod's events and the log of the failing container"},
}

const pullRemedy = "correct the image or the registry's credentials (spec.volumes[].containerDisk.imagePullSecret, imagePullSecrets); the kubelet retries"

// byMessage are remedies for what the scheduler says in its message only.
var byMessage = []struct{ says, remedy string }{
	{"unbound immediate PersistentVolumeClaims", "create a PersistentVolume that fits the claim, or name a StorageClass with a provisioner in it; check the events of the claim"},
}

// byResponsible is the advice for waits without an entry of their own.
var byResponsible = map[handoff.Responsible]advice{
	handoff.ByUser:       {InvalidSpec, "a user must correct the configuration", "do as the message says"},
	handoff.ByController: {WaitingForController, "a controller must act", askOthers},
	handoff.ByStorage:    {WaitingForStorage, "storage must become ready", "check the events of the claim"},
	handoff.ByScheduler:  {Unschedulable, "the scheduler must place the Pod", "check the events of the Pod"},
	handoff.ByKubelet:    {PodNotReady, "the kubelet must start or stop the Pod", "check the events of the Pod"},
	handoff.ByNode:       {WaitingForNode, "the node agent must act", askAgent},
}

// advised returns the finding for a wait; check is the name of the check that returned it.
func advised(w vmi.Wait, check string) Finding {
	a, known := byCheck[check]
	if !known {
		a, known = byReason[w.Reason]
	}
	if !known || a.kind == WaitingForNode && w.Responsible == handoff.ByController {
		a = byResponsible[w.Responsible]
	}
	for _, m := range byMessage {
		if a.kind == Unschedulable && strings.Contains(w.Message, m.says) {
			a.remedy = m.remedy
		}
	}
	return Finding{
		Kind: a.kind, Reason: w.Reason, What: w.Message, Why: a.why, Remedy: a.remedy,
		Object: w.Object, Responsible: w.Responsible, Until: w.Until, Deadline: w.Deadline,
	}
}
