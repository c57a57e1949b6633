// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// advice is what a finding adds to a wait.
type advice struct {
	kind        FindingKind
	why, remedy string
}

const (
	makeAnew  = "correct the spec and make the guest anew: that part of it cannot be changed"
	askAgent  = "look at the node agent on the node: its log, its probe /readyz; refdaemon explain node tells what is known of the node"
	askOthers = "nothing, unless it stays so: then look whether the controller that is to act runs, and at its log"
)

// byCheck is the advice of waits whose reason says less than the check they are of.
var byCheck = map[string]advice{
	"name": {LauncherMissing, "the name of a guest's Pod follows from that of the guest, so that there is never a second one",
		"delete the Pod that has the name, or rename what makes it"},
	"elsewhere": {Disagreement, "the object has lost its status, and a Pod that a migration made may have the guest: a second Pod could run it twice",
		"look on that Pod's node whether the guest runs; delete the Pod if it does not"},
	"migration": {WaitingForMigration, "a guest that is on its way to another node gets no Pod from anybody else",
		"wait for the migration to end or delete it; refdaemon explain migration tells what it waits for"},
	"receiver": {WaitingForMigration, "a guest that is received from another cluster is never started here",
		"look at the migration in the other cluster, and whether the one here was made"},
}

// byReason is the advice of all other waits.
var byReason = map[string]advice{
	ReasonWaitingForCache: {WriteUnseen, "nothing is created or deleted on the word of a cache that does not show the controller's own writes",
		"nothing: it is read live after half a minute; if this comes often, see the metrics virtloom_expectations_expired_total and _outstanding"},

	ReasonPvcNotFound: {WaitingForStorage, "a Pod with a claim that does not exist would be unschedulable for ever",
		"create the claim or DataVolume, or correct its name in the guest's volume"},
	ReasonFailedDataVolumeImport: {WaitingForStorage, "without its DataVolume nobody can tell whether the claim was ever filled",
		"create the DataVolume and its claim anew, or take the owner reference from a claim that is complete"},
	v1.VirtualMachineInstanceReasonNotAllDVsReady: {WaitingForStorage, "a guest must not start from a disk that is half filled",
		"wait, if it makes progress; else look at the DataVolume's conditions and at the log of its importer Pod"},
	ReasonPVCNotReady: {WaitingForStorage, "the volume is plugged in when its claim can be used",
		"look at the events of the claim and the DataVolume"},
	ReasonBackendStorageCreate: {WaitingForStorage, "the guest's TPM, firmware variables or block maps are kept by a claim of their own",
		"name a StorageClass by vmStateStorageClass of the KubeVirt object, or make one the default"},
	ReasonBackendStorageProbe: {WaitingForStorage, "the claim that keeps the guest's state cannot be used as it is",
		"restore or replace the claim as it is said; deleting it deletes the state"},
	ReasonBackendStorageNotReady: {WaitingForStorage, "the claim that keeps the guest's state is not there yet",
		"look at the events of the claim and at what provisions its StorageClass"},
	"WaitingForFirstConsumer": {WaitingForStorage, "the claims are provisioned where a Pod is placed, and filled then; a Pod that does no more is there for that",
		"look where that Pod could be placed, and at the events of the claims"},
	"VolumeNotMounted": {WaitingForNode, "the volume has reached the node, and not the guest", askAgent},

	ReasonFailedCreateValidation: {InvalidNetwork, "no Pod can be made that gives the guest these networks",
		"correct spec.networks and spec.domain.devices.interfaces as it is said, and make the guest anew"},
	ReasonContainerPathVolumesDisabled: {InvalidSpec, "the cluster does not let guests have volumes of their Pod's own paths",
		"enable feature gate ContainerPathVolumes in the KubeVirt object, or do without the volume"},
	ReasonMissingVirtiofsContainers: {InvalidSpec, "containers cannot be added to a Pod that exists", "restart the guest"},
	ReasonFailedGuaranteeResources: {InvalidSpec, "CPUs of its own are given only to a Pod of QoS class Guaranteed",
		"make requests and limits equal, of containers that others inject as well, and make the guest anew"},
	ReasonFailedTopologyHints: {InvalidSpec, "the guest counts on a clock that no node is known to have",
		"set minimumClusterTSCFrequency, or label nodes with their frequency"},
	"WaitingForTopologyHints": {WaitingForController, "the guest's Pod is placed by the frequency that is stored", askOthers},
	"VSOCKAddressMissing": {WaitingForController, "every guest has an address on VSOCK of its own, and all are in use, or none is reserved yet",
		"nothing, unless it stays so: then end guests with spec.domain.devices.autoattachVSOCK"},

	ReasonInvalidLease: {NotUnderstood, "who may run the guest is not known, so that nobody touches it",
		"restore the annotation virtloom.dev/handoff from a copy, or remove it while the guest runs nowhere"},
	ReasonUnknownPhase:   {NotUnderstood, "of a phase that nobody knows nothing follows", "correct status.phase, or delete the object"},
	ReasonFailedHandover: {NotUnderstood, "phase and lease contradict each other, so that nobody touches the guest", "find out on the node whether the guest runs, then correct what is wrong"},

	ReasonFailedCreate: {LastWriteFailed, "the guest has no Pod as long as it is refused",
		"do as the message says; it is tried again when what is known to be in the way changes, and every minute"},
	ReasonFailedDelete:              {LastWriteFailed, "a Pod of the guest could not be deleted", "do as the message says; it is tried again"},
	ReasonFailedPodPatch:            {LastWriteFailed, "labels, annotations or the gate of the Pod are not as they should be", "do as the message says; it is tried again"},
	ReasonFailedHotplugSync:         {LastWriteFailed, "what is to be plugged in or out waits for it", "do as the message says; it is tried again"},
	ReasonBackendStorageDelete:      {LastWriteFailed, "the claim of state that is kept no more could not be deleted", "do as the message says; it is tried again"},
	ReasonNodeUnresponsive:          {NodeSilent, "the guest stays its node's until that node returns, or is known to be gone: it must not run twice", "bring the node back, or make sure that it is off and taint it node.kubernetes.io/out-of-service, or delete its Node object"},
	"GuestEnding":                   {Ending, "only the node knows that a guest has ended", askAgent},
	reasonPodTerminating:            {Ending, "a Pod is gone when the kubelet of its node says so", "look at the node's kubelet, and at finalizers of the Pod"},
	"Finalizers":                    {Ending, "an object goes when nobody keeps it", "look what those are that keep it; take a finalizer away only if nobody is left to do so"},
	"GuestMoving":                   {WaitingForNode, "which of the two nodes has the guest is known to them alone", askAgent},
	string(v1.WaitingForSync):       {WaitingForMigration, "the guest is received by a migration", "look at the migration in the other cluster, or delete the object"},
	reasonPodNotExists:              {LauncherMissing, "the decision waits for what was stored last", askOthers},
	reasonGuestNotRunning:           {WaitingForNode, "the node was asked to run the guest, and has not said that it does", askAgent},
	"InvalidSpec":                   {InvalidSpec, "the node's hypervisor cannot give the guest what it asks for", makeAnew},
	"SyncFailed":                    {Disagreement, "the hypervisor refused something, and is asked again", "do as the message says; it is tried again"},
	"NodeNotReady":                  {WaitingForNode, "something that the guest needs is missing on its node", "do as the message says; else " + askAgent},
	"GuestUnresponsive":             {WaitingForNode, "the hypervisor does not answer about the guest", "look at libvirt's log in the guest's Pod and at the load of the node"},
	"ErrImagePull":                  {PodNotReady, "the guest's Pod does not run without its images", pullRemedy},
	"ImagePullBackOff":              {PodNotReady, "the guest's Pod does not run without its images", pullRemedy},
	corev1.PodReasonUnschedulable:   {Unschedulable, "no node has what the guest's Pod asks for", "free or add what the scheduler misses, or ask for less"},
	corev1.PodReasonSchedulingGated: {Unschedulable, "somebody holds the Pod back by spec.schedulingGates", "find out who set the gate and what it waits for"},
	corev1.PodReasonSchedulerError:  {Unschedulable, "the scheduler itself has failed", "look at the scheduler's log"},
	"ContainersNotReady":            {PodNotReady, "the node agent takes over when the Pod's containers run", "look at the containers below, at the Pod's events and at the log of the one that does not run"},
}

const pullRemedy = "correct the image or the registry's credentials (spec.volumes[].containerDisk.imagePullSecret, imagePullSecrets); the kubelet tries again"

// byActor is the advice of waits that nobody has foreseen.
var byActor = map[Actor]advice{
	ByUser:       {InvalidSpec, "somebody has to change something", "do as the message says"},
	ByController: {WaitingForController, "a controller has to act", askOthers},
	ByStorage:    {WaitingForStorage, "storage has to be ready", "look at the events of the claim"},
	ByScheduler:  {Unschedulable, "the scheduler has to place the Pod", "look at the events of the Pod"},
	ByKubelet:    {PodNotReady, "the kubelet has to run or end the Pod", "look at the events of the Pod"},
	ByNode:       {WaitingForNode, "the node agent has to act", askAgent},
}

// advised is the finding that a wait is; check is the name of the check it is of.
func advised(w Wait, check string) Finding {
	a, known := byCheck[check]
	if !known {
		a, known = byReason[w.Reason]
	}
	if !known || a.kind == WaitingForNode && w.By == ByController {
		a = byActor[w.By]
	}
	return Finding{
		Kind: a.kind, Reason: w.Reason, What: w.Message, Why: a.why, Remedy: a.remedy,
		Object: w.Object, By: w.By, Until: w.Until, Deadline: w.Deadline,
	}
}
