// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// defaultAcceptWithin is how long a node may take to accept an offered VMI before the offer
// counts as overdue. It equals KubeVirt's heartbeat timeout for an unresponsive node.
const defaultAcceptWithin = 5 * time.Minute

// Config is the configuration of decisions.
type Config struct {
	// AcceptWithin bounds the time from offer to acceptance; zero means five
	// minutes.
	AcceptWithin time.Duration
	// PodHoldsDomain is true if the domain runs inside its Pod, as with KubeVirt's
	// launcher, and dies with it. Then the absence of its Pods is evidence that an
	// unresponsive node does not run it.
	PodHoldsDomain bool
	// LauncherImage is the image of new launcher Pods; a VMI whose Pod has another image
	// is outdated. Empty disables the comparison.
	LauncherImage string
	// StateClass is the StorageClass of backend storage claims. Empty means the
	// cluster's default. (KubeVirt: vmStateStorageClass)
	StateClass string
	// MemoryRatio is recorded on VMIs whose memory is increased. (KubeVirt:
	// additionalGuestMemoryOverheadRatio)
	MemoryRatio string
	// MinimumTSC is the TSC frequency in Hz for all VMIs that require one; nil means
	// the lowest of all nodes. (KubeVirt: minimumClusterTSCFrequency)
	MinimumTSC *int64
	// ReportOverhead stores the memory overhead of the hypervisor in the status.
	// (KubeVirt: feature gate VmiMemoryOverheadReport)
	ReportOverhead bool
	// ContainerPaths allows containerPath volumes. (KubeVirt:
	// feature gate ContainerPathVolumes)
	ContainerPaths bool
	// FeatureGates and DisabledFeatureGates are those of the cluster. A VMI with a field
	// that requires another gate gets no Pod, and launchers run as root only with gate
	// Root. (KubeVirt: developerConfiguration)
	FeatureGates, DisabledFeatureGates []string
	// HotplugBatch is how long hotplug and unplug requests are batched before Pods are
	// replaced; zero means three seconds.
	HotplugBatch time.Duration
	// SyncLabels and SyncAnnotations are patterns of keys, in addition to KubeVirt's,
	// that are copied from a VMI to its Pod. A pattern may end in * for any suffix; *
	// alone is ignored.
	SyncLabels, SyncAnnotations []string

	// Replaceable parts, which must be pure functions.

	// SpecValidator validates specs before a Pod is created. The default rejects
	// network bindings that KubeVirt has removed.
	SpecValidator SpecValidator
	// NetworkStatus computes status.interfaces. Defaults to Interfaces.
	NetworkStatus NetworkStatus
	// MigrationEvaluator decides when a running VMI must be migrated. The default
	// compares the networks of its Pod with its spec.
	MigrationEvaluator MigrationEvaluator
	// TopologyHints computes the TSC frequency of a VMI. The default is the
	// minimum, or the lowest of the nodes.
	TopologyHints TopologyHints
}

// NetworkStatus computes status.interfaces of a VMI from its launcher Pod. On error the stored
// value is kept.
type NetworkStatus func(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) ([]v1.VirtualMachineInstanceNetworkInterface, error)

// TopologyHints computes the TSC frequency available to a VMI on all nodes; minimum is
// Config.MinimumTSC. On error a VMI does not start if its TSCRequirement is TSCForBoot.
type TopologyHints func(vmi *v1.VirtualMachineInstance, nodes []Node, minimum *int64) (*v1.TopologyHints, error)

func (c Config) complete() Config {
	if c.AcceptWithin == 0 {
		c.AcceptWithin = defaultAcceptWithin
	}
	if c.HotplugBatch == 0 {
		c.HotplugBatch = defaultHotplugBatch
	}
	if c.SpecValidator == nil {
		c.SpecValidator = discontinuedBindings
	}
	if c.NetworkStatus == nil {
		c.NetworkStatus = Interfaces
	}
	if c.TopologyHints == nil {
		c.TopologyHints = topologyHints
	}
	return c
}

// Snapshot is the complete input of one decision. Decide does not modify it.
type Snapshot struct {
	// VMI is the object from the cache.
	VMI *v1.VirtualMachineInstance
	// Pods are all Pods whose controller is the VMI (by UID), in any phase. Where the
	// absence of a Pod would fail the VMI or remove its finalizer, it must come from
	// the API server; see NeedsProof.
	Pods []*corev1.Pod
	// Attachments are all Pods whose controller is one of Pods: attachments of
	// hotplugged volumes to the node, and triggers that are the first consumer of a
	// claim there.
	Attachments []*corev1.Pod
	// Foreign is a Pod with the launcher Pod's name that the VMI does not control; nil
	// if there is none.
	Foreign *corev1.Pod
	// Earlier are the unfinished Pods whose controller is a deleted object with the VMI's
	// name; needed while the VMI has no Pod.
	Earlier []*corev1.Pod
	// Migrations are the unfinished migrations that name the VMI.
	Migrations []*v1.VirtualMachineInstanceMigration
	// Storage is the storage state of the VMI's volumes.
	Storage Storage
	// Pending lists own writes that the caches have not observed yet; while it is not
	// empty, nothing is created or deleted.
	Pending []string
	// Late lists own creations that the API server may still execute, although it had not when it was queried.
	// They are repeated under the same name; while it is not empty, the finalizer is kept.
	Late []string
	// VMExists is true if the VirtualMachine that controls the object exists; then its
	// controller removes its own finalizer.
	VMExists bool
	// Nodes are the nodes of the cluster; needed for VMIs whose TSCRequirement is not
	// TSCNotRequired, until their hints are stored.
	Nodes []Node
	// Annotations are generated annotations of the launcher Pod.
	Annotations PodAnnotations
	// CID is the VSOCK CID reserved for the VMI; nil if it requests none, or already has
	// one.
	CID *uint32
	// Failure is the failure of an action; set after acting.
	Failure *Failure
	// Silent maps the VMI's unresponsive nodes to the time of their last heartbeat.
	Silent map[string]time.Time
	// Stock contains the VMI's nodes reported by stock virt-handler, which accepts no lease.
	Stock map[string]bool
	// Evidence proves, by node, that the domain does not run there; see NeedsEvidence.
	Evidence map[string]handoff.Evidence
	// Config is the current configuration.
	Config Config
}

// PodAnnotations are the generated annotations of the launcher Pod.
type PodAnnotations struct {
	// Network annotations are set where the Pod has other values.
	Network map[string]string
	// Storage annotations likewise; a key of StorageKeys that they lack is copied from
	// the VMI or removed.
	Storage     map[string]string
	StorageKeys []string
}

// Failure is a failed action, as reported by the Synchronized condition.
type Failure struct {
	// Reason is one of KubeVirt's Synchronized reasons.
	Reason string
	// Message contains object, field and remedy where known.
	Message string
}

// Launcher returns the newest launcher Pod on the VMI's node (any node before one is
// assigned), or nil. Target Pods of migrations count only once the VMI is on their
// node.
func (s Snapshot) Launcher() *corev1.Pod {
	var newest *corev1.Pod
	for _, p := range s.Pods {
		if isTemporary(p) || s.elsewhere(p) {
			continue
		}
		if newest == nil || newer(p, newest) {
			newest = p
		}
	}
	return newest
}

// newer reports whether a was created after b; within a second the name decides.
func newer(a, b *corev1.Pod) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name > b.Name
	}
	return b.CreationTimestamp.Before(&a.CreationTimestamp)
}

// NeedsProof reports whether the snapshot lacks a Pod whose absence makes Decide fail the
// VMI, so that its node ends the domain, or remove the finalizer, so that no controller
// deletes remaining Pods. A cache does not prove absence: of two caches, that of Pods may
// lag behind the one that shows the VMI on a new node, or in a final phase. Pods must then be
// read from the API server.
func (s Snapshot) NeedsProof() bool {
	switch s.VMI.Status.Phase {
	case v1.Scheduling, v1.Scheduled, v1.Running:
		return len(s.Pending) == 0 && s.Launcher() == nil
	default:
		return s.leaves()
	}
}

// ended reports whether the phase is final, or the VMI is being deleted while it waits for its
// migration: then its domain never ran here.
func (s Snapshot) ended() bool {
	return s.VMI.IsFinal() || s.VMI.Status.Phase == v1.WaitingForSync && s.VMI.DeletionTimestamp != nil
}

// leaves reports whether the finalizer can be removed: the object still has it, and the
// snapshot shows nothing left to clean up.
func (s Snapshot) leaves() bool {
	if !s.ended() || len(s.Pods) > 0 || s.unsure() || !slices.ContainsFunc(s.VMI.Finalizers, ours) {
		return false
	}
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		return false
	}
	// No node accepted a migration target in WaitingForSync.
	return unheld(lease) || s.VMI.Status.Phase == v1.WaitingForSync && lease.Cause == handoff.CauseStock
}

// unsure reports whether Pods may exist or appear that the snapshot does not show.
func (s Snapshot) unsure() bool { return len(s.Pending) > 0 || len(s.Late) > 0 }

// unheld reports whether the lease allows no node to run the domain.
func unheld(l handoff.Lease) bool {
	switch l.State {
	case handoff.Released, handoff.Unclaimed, handoff.Claimed, handoff.Offered:
		return true
	default:
		return false
	}
}

func (s Snapshot) elsewhere(p *corev1.Pod) bool {
	node := s.VMI.Status.NodeName
	if node == "" {
		// A migration target from another cluster has no Pod but its target Pod.
		return p.Labels[v1.MigrationJobLabel] != "" && !receiver(s.VMI)
	}
	return p.Spec.NodeName != node
}

func isTemporary(p *corev1.Pod) bool {
	_, temporary := p.Annotations[v1.EphemeralProvisioningObject]
	return temporary
}

// OwnedPods returns the Pods whose controller is the VMI, by UID.
func OwnedPods(vmi *v1.VirtualMachineInstance, pods []corev1.Pod) []*corev1.Pod {
	var owned []*corev1.Pod
	for i := range pods {
		if metav1.IsControlledBy(&pods[i], vmi) {
			owned = append(owned, &pods[i])
		}
	}
	return owned
}
