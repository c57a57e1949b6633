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

// DefaultAcceptWithin bounds how long an offered guest may stay unaccepted by
// its node before the offer counts as overdue. It equals KubeVirt's heartbeat
// timeout for an unresponsive node.
const DefaultAcceptWithin = 5 * time.Minute

// Config is what a decision depends on beside the objects.
type Config struct {
	// AcceptWithin bounds the step from offer to acceptance; zero means
	// DefaultAcceptWithin.
	AcceptWithin time.Duration
	// PodHoldsGuest says that a guest lives inside of its Pod, as with KubeVirt's
	// launcher, and dies with it. Then that its Pods are gone is evidence that a
	// silent node does not run it.
	PodHoldsGuest bool
	// LauncherImage is the image that guests' Pods are made with; a guest whose Pod
	// has another one is outdated. Empty compares nothing.
	LauncherImage string
	// StateClass is the StorageClass of the claims that keep guests' state. Empty means
	// the cluster's default. (KubeVirt: vmStateStorageClass)
	StateClass string
	// MemoryRatio is noted on guests that are to get more memory. (KubeVirt:
	// additionalGuestMemoryOverheadRatio)
	MemoryRatio string
	// MinimumTSC is the frequency in Hz that all guests count on whose clock matters;
	// nil means what the nodes have in common. (KubeVirt: minimumClusterTSCFrequency)
	MinimumTSC *int64
	// ReportOverhead stores what the hypervisor needs beside the guest's memory.
	// (KubeVirt: feature gate VmiMemoryOverheadReport)
	ReportOverhead bool
	// ContainerPaths lets guests have volumes of their Pod's own paths. (KubeVirt:
	// feature gate ContainerPathVolumes)
	ContainerPaths bool
	// FeatureGates and DisabledFeatureGates are those of the cluster. A guest with a field
	// that needs another one gets no Pod, and one is made a root's guest only with gate
	// Root. (KubeVirt: developerConfiguration)
	FeatureGates, DisabledFeatureGates []string
	// HotplugBatch is how long changes of what is plugged are gathered before Pods are
	// replaced; zero means DefaultHotplugBatch.
	HotplugBatch time.Duration
	// SyncLabels and SyncAnnotations are patterns of keys, beside KubeVirt's own, that
	// a guest's Pod shall have as the guest has them. A pattern may end in * for any
	// end; * alone counts for nothing.
	SyncLabels, SyncAnnotations []string

	// What follows are replaceable parts. They must be pure.

	// SpecValidator refuses guests a Pod. Defaults to DiscontinuedBindings.
	SpecValidator SpecValidator
	// NetworkStatus computes status.interfaces. Defaults to Interfaces.
	NetworkStatus NetworkStatus
	// MigrationEvaluator tells when a running guest must be migrated. Defaults to
	// EvaluateNetworks.
	MigrationEvaluator MigrationEvaluator
	// TopologyHints finds the clock a guest counts on. Defaults to Hints.
	TopologyHints TopologyHints
}

// NetworkStatus computes status.interfaces of a guest with the Pod that runs it. An
// error leaves them as they are.
type NetworkStatus func(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) ([]v1.VirtualMachineInstanceNetworkInterface, error)

// TopologyHints finds the clock that a guest can count on everywhere; minimum is
// Config.MinimumTSC. An error keeps a guest from starting whose TSCRequirement is
// TSCForBoot.
type TopologyHints func(vmi *v1.VirtualMachineInstance, nodes []Node, minimum *int64) (*v1.TopologyHints, error)

func (c Config) complete() Config {
	if c.AcceptWithin == 0 {
		c.AcceptWithin = DefaultAcceptWithin
	}
	if c.HotplugBatch == 0 {
		c.HotplugBatch = DefaultHotplugBatch
	}
	if c.SpecValidator == nil {
		c.SpecValidator = DiscontinuedBindings
	}
	if c.NetworkStatus == nil {
		c.NetworkStatus = Interfaces
	}
	if c.TopologyHints == nil {
		c.TopologyHints = Hints
	}
	return c
}

// Snapshot is everything one decision may see. Decide modifies none of it.
type Snapshot struct {
	// VMI is the object as cached.
	VMI *v1.VirtualMachineInstance
	// Pods are all Pods whose controller is the VMI (by UID), in any phase.
	// That a Pod is absent must be the API server's word where the guest fails
	// or its object goes because of it; see NeedsProof.
	Pods []*corev1.Pod
	// Attachments are all Pods whose controller is one of Pods: those that bring
	// plugged volumes to the guest's node, and those that have a claim
	// provisioned there.
	Attachments []*corev1.Pod
	// Foreign is a Pod that has the name of the guest's Pod and is not the
	// guest's; nil if there is none.
	Foreign *corev1.Pod
	// Earlier are the Pods whose controller is an earlier object of the guest's name, and
	// that have not ended; needed while the guest has no Pod.
	Earlier []*corev1.Pod
	// Migrations are the unfinished migrations that name the VMI.
	Migrations []*v1.VirtualMachineInstanceMigration
	// Storage is what the cluster says of the guest's volumes.
	Storage Storage
	// Unseen lists own writes the caches have not shown yet; while there is
	// one, nothing is created or deleted.
	Unseen []string
	// Late lists own creations that may still be carried out, though the API server had not done so when it was asked.
	// They are repeated, as their names are the same; while there is one, the object is not let go.
	Late []string
	// VMExists says that the VirtualMachine that controls the object exists; then
	// its own finalizer is its own to take away.
	VMExists bool
	// Nodes are the nodes of the cluster; needed for guests whose TSCRequirement is not
	// TSCNotRequired, until they have their hints.
	Nodes []Node
	// Annotations are those of the guest's Pod.
	Annotations PodAnnotations
	// CID is the address on VSOCK that is reserved for the guest; nil if it is to have
	// none, or has it.
	CID *uint32
	// Failure is set after acting, when an action failed.
	Failure *Failure
	// Silent are those of the guest's nodes that give no sign of life, and since
	// when they do not.
	Silent map[string]time.Time
	// Stock are those of the guest's nodes that KubeVirt's own agent reports for, which accepts no lease.
	Stock map[string]bool
	// Evidence is why the guest is known not to run on a node; see NeedsEvidence.
	Evidence map[string]handoff.Evidence
	// Config is the configuration in force.
	Config Config
}

// PodAnnotations is what generators say that the guest's Pod shall carry.
type PodAnnotations struct {
	// Network is set where the Pod has other values.
	Network map[string]string
	// Storage is set likewise; what it lacks of StorageKeys the Pod has only if the
	// guest has it.
	Storage     map[string]string
	StorageKeys []string
}

// Failure is an action that failed, as the Synchronized condition tells it.
type Failure struct {
	// Reason is one of KubeVirt's Synchronized reasons.
	Reason string
	// Message names object, field and remedy where they are known.
	Message string
}

// Launcher returns the Pod that runs, or shall run, the guest: of the Pods on
// the guest's node (any node before it has one) the newest. It is nil when
// there is none. Target Pods of migrations count only once the guest is on
// their node.
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

// newer orders Pods by creation; the name decides within a second.
func newer(a, b *corev1.Pod) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name > b.Name
	}
	return b.CreationTimestamp.Before(&a.CreationTimestamp)
}

// NeedsProof reports whether the snapshot lacks a Pod without which Decide
// declares the guest failed, upon which its node ends it, or takes the finalizer
// away, upon which nobody looks after a Pod any more. A cache proves no absence: of
// two caches, the one of Pods may lag behind the one that shows the guest on a new
// node, or at its end. Pods must then be read from the API server.
func (s Snapshot) NeedsProof() bool {
	switch s.VMI.Status.Phase {
	case v1.Scheduling, v1.Scheduled, v1.Running:
		return len(s.Unseen) == 0 && s.Launcher() == nil
	default:
		return s.leaves()
	}
}

// ended reports whether the guest has ended by its phase. One that waits to be
// received from elsewhere never was here.
func (s Snapshot) ended() bool {
	return s.VMI.IsFinal() || s.VMI.Status.Phase == v1.WaitingForSync && s.VMI.DeletionTimestamp != nil
}

// leaves reports whether the object still has the finalizer and nothing that the
// snapshot shows is left to be done under it.
func (s Snapshot) leaves() bool {
	if !s.ended() || len(s.Pods) > 0 || s.unsure() || !slices.ContainsFunc(s.VMI.Finalizers, ours) {
		return false
	}
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		return false
	}
	// Nobody accepted what was to be received and has not been.
	return unheld(lease) || s.VMI.Status.Phase == v1.WaitingForSync && lease.Cause == handoff.CauseStock
}

// unsure reports whether a Pod may be there, or appear, that the snapshot does not show.
func (s Snapshot) unsure() bool { return len(s.Unseen) > 0 || len(s.Late) > 0 }

// unheld tells whether no node may run the guest by its lease.
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
		// What is received from elsewhere has no other Pod than its target.
		return p.Labels[v1.MigrationJobLabel] != "" && !receiver(s.VMI)
	}
	return p.Spec.NodeName != node
}

func isTemporary(p *corev1.Pod) bool {
	_, temporary := p.Annotations[v1.EphemeralProvisioningObject]
	return temporary
}

// OwnedPods filters the Pods whose controller is the VMI, by UID.
func OwnedPods(vmi *v1.VirtualMachineInstance, pods []corev1.Pod) []*corev1.Pod {
	var owned []*corev1.Pod
	for i := range pods {
		if metav1.IsControlledBy(&pods[i], vmi) {
			owned = append(owned, &pods[i])
		}
	}
	return owned
}
