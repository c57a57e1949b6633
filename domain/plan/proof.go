// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/handoff"
)

// A user who may write a VirtualMachineInstance can write its lease, labels and phase as well:
// none of these proves that a controller has assigned the VMI to a node. A launcher Pod does:
// admission lets only the controllers create Pods that a VirtualMachineInstance controls. So a
// node neither starts a VMI nor prepares to receive one without the Pod that was created for
// its UID. A running domain is never stopped for the lack of it.

// errUnproven is wrapped by the error of [Snapshot.Proof].
var errUnproven = errors.New("no launcher Pod")

// launcherApp is the value of the label kubevirt.io of launcher Pods; computeContainer is the
// container in them that runs the domain.
const (
	launcherApp      = "virt-launcher"
	computeContainer = "compute"
)

// VMIOf returns name and UID of the VMI that controls the Pod; false if none does. It
// ignores the Pod's labels and annotations, which a user may change.
func VMIOf(pod *corev1.Pod) (types.NamespacedName, types.UID, bool) {
	c := metav1.GetControllerOf(pod)
	if c == nil || c.Kind != v1.VirtualMachineInstanceGroupVersionKind.Kind || c.UID == "" {
		return types.NamespacedName{}, "", false
	}
	gv, err := schema.ParseGroupVersion(c.APIVersion)
	if err != nil || gv.Group != v1.VirtualMachineInstanceGroupVersionKind.Group {
		return types.NamespacedName{}, "", false
	}
	return types.NamespacedName{Namespace: pod.Namespace, Name: c.Name}, c.UID, true
}

// Proof returns the Pod that proves that a controller has assigned the VMI to this node, for
// its role under the lease: the target Pod of the migration for the target, the launcher Pod
// of the start for a start. Without one the error is an [*convert.Error] with the cause, or
// that of a lease that cannot be parsed.
func (s Snapshot) Proof() (*corev1.Pod, error) {
	if s.VMI == nil {
		return nil, errUnproven
	}
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		return nil, err
	}
	return s.proof(lease)
}

func (s Snapshot) proof(lease handoff.Lease) (*corev1.Pod, error) {
	why := "the VMI controls no Pod there"
	var found *corev1.Pod
	for _, p := range s.Pods {
		not := s.notOurs(p)
		if not == "" {
			not = s.notMeant(p, lease)
		}
		switch {
		case not != "":
			why = fmt.Sprintf("Pod %s %s", p.Name, not)
		case found == nil || found.CreationTimestamp.Before(&p.CreationTimestamp):
			found = p
		}
	}
	if found != nil {
		return found, nil
	}
	return nil, &convert.Error{
		Object: "VirtualMachineInstance " + s.VMI.Namespace + "/" + s.VMI.Name,
		Reason: fmt.Sprintf("no launcher Pod proves that the VMI is assigned to node %s: %s", s.Node, why),
		Remedy: "labels, status and lease alone do not start a VMI; recreate it without them, so that the controller schedules it",
		Err:    errUnproven,
	}
}

// Launcher returns the launcher Pod of the VMI on this node: that of [Snapshot.Proof], else the
// only Pod that the VMI controls and that has not ended; nil if there is none, or several.
func (s Snapshot) Launcher() *corev1.Pod {
	if p, err := s.Proof(); err == nil {
		return p
	}
	var found *corev1.Pod
	for _, p := range s.Pods {
		if s.VMI == nil || s.notOurs(p) != "" || ended(p) {
			continue
		}
		if found != nil {
			return nil
		}
		found = p
	}
	return found
}

// notOurs returns why the Pod is not one of the VMI on this node; empty if it is.
func (s Snapshot) notOurs(p *corev1.Pod) string {
	of, uid, launches := VMIOf(p)
	switch {
	case !launches || of != (types.NamespacedName{Namespace: s.VMI.Namespace, Name: s.VMI.Name}) || uid != s.VMI.UID:
		return "is controlled by another object"
	case p.Spec.NodeName != s.Node:
		return fmt.Sprintf("is on node %q", p.Spec.NodeName)
	}
	return ""
}

// notMeant returns why the VMI's Pod is no proof for a start, or for receiving the VMI; empty
// if it is. A target Pod is none for a start, since the VMI runs elsewhere.
func (s Snapshot) notMeant(p *corev1.Pod, lease handoff.Lease) string {
	job, has := "", p.Labels[v1.MigrationJobLabel]
	if handoff.RoleOf(lease, s.Node) == handoff.RoleTarget {
		job = string(lease.Tag)
	}
	_, temporary := p.Annotations[v1.EphemeralProvisioningObject]
	switch {
	case p.Labels[v1.AppLabel] != launcherApp:
		return fmt.Sprintf("has label %s=%q, not %q", v1.AppLabel, p.Labels[v1.AppLabel], launcherApp)
	case p.Labels[v1.CreatedByLabel] != string(s.VMI.UID):
		return fmt.Sprintf("has label %s=%q, which is not the UID of the VMI", v1.CreatedByLabel, p.Labels[v1.CreatedByLabel])
	case temporary:
		return "is a temporary Pod for the provisioning of claims"
	case has != job && (job != "" || lease.State == handoff.Offered || lease.MayStart(s.Node)):
		return fmt.Sprintf("has label %s=%q, not %q", v1.MigrationJobLabel, has, job)
	case ended(p):
		return "has ended"
	case p.DeletionTimestamp != nil:
		return "is being deleted"
	}
	return ""
}

// ended reports whether the Pod, or its compute container, has ended.
func ended(p *corev1.Pod) bool {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return true
	}
	for i := range p.Status.ContainerStatuses {
		if c := &p.Status.ContainerStatuses[i]; c.Name == computeContainer && c.State.Terminated != nil {
			return true
		}
	}
	return false
}

// NeedsProof reports whether the next step of the VMI on this node, a start or the preparation
// to receive it, requires the Pod of [Snapshot.Proof].
func (s Snapshot) NeedsProof() bool {
	if s.VMI == nil {
		return false
	}
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		return false
	}
	switch handoff.RoleOf(lease, s.Node) {
	case handoff.RoleOffered:
		return true
	case handoff.RoleHolder:
		return lease.MayStart(s.Node)
	case handoff.RoleTarget:
		return lease.State == handoff.Preparing
	default:
		return false
	}
}

// prove makes the lack of a launcher Pod the PrepareError.
func (d *decision) prove() {
	if _, err := d.proof(d.lease); err != nil {
		d.PrepareError = err
	}
}
