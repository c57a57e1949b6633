// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// Whoever may write a VirtualMachineInstance can write lease, labels and phase of it as
// well: none of these says that a controller meant the guest for a node. A launcher Pod
// does: who may create Pods that a VirtualMachineInstance controls is for admission to
// say, and only the controllers may. So a node starts nothing, and prepares nothing for
// a guest that is to come, without the Pod that was made for this UID. A guest that runs
// is never ended for the lack of it.

// errUnproven is what the error of [Sight.Proof] wraps.
var errUnproven = errors.New("no launcher Pod")

// launcherApp is the value of the label kubevirt.io of launcher Pods; compute the
// container in them that stands for the guest.
const (
	launcherApp      = "virt-launcher"
	computeContainer = "compute"
)

// GuestOf returns the guest whose launcher Pod this is: the one that controls it, by name
// and UID. false: it is no launcher's. What the Pod's labels and annotations say is not
// asked, since a user may change them.
func GuestOf(pod *corev1.Pod) (types.NamespacedName, types.UID, bool) {
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

// Proof returns the Pod that shows that a controller meant the guest for this node, as
// the lease has it: the target Pod of the migration where the guest is to come, the
// launcher Pod that was made for its start where it is to start. Otherwise the error is an
// [*Error] that says what is missing.
func (s Sight) Proof() (*corev1.Pod, error) {
	if s.VMI == nil {
		return nil, errUnproven
	}
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		return nil, err
	}
	why := "there is none that it controls"
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
	return nil, &Error{
		Object: "VirtualMachineInstance " + s.VMI.Namespace + "/" + s.VMI.Name,
		Reason: fmt.Sprintf("no launcher Pod on node %s shows that it is to run there: %s", s.Node, why),
		Remedy: "labels, status and lease alone start nothing; create the object anew, without them, and have the controller place it",
		Err:    errUnproven,
	}
}

// Launcher returns the Pod on this node that the guest lives in, if there is one only that
// may be: one that the guest controls and that has not ended.
func (s Sight) Launcher() *corev1.Pod {
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

// notOurs says why the Pod is not the guest's on this node, empty if it is.
func (s Sight) notOurs(p *corev1.Pod) string {
	of, uid, launches := GuestOf(p)
	switch {
	case !launches || of != (types.NamespacedName{Namespace: s.VMI.Namespace, Name: s.VMI.Name}) || uid != s.VMI.UID:
		return "is controlled by another object"
	case p.Spec.NodeName != s.Node:
		return fmt.Sprintf("is on node %q", p.Spec.NodeName)
	}
	return ""
}

// notMeant says why the guest's Pod does not show that the guest may start, or come, in
// it; empty if it does. A target Pod is not for a start: the guest runs elsewhere.
func (s Sight) notMeant(p *corev1.Pod, lease handoff.Lease) string {
	job, has := "", p.Labels[v1.MigrationJobLabel]
	if RoleOf(lease, s.Node) == RoleTarget {
		job = string(lease.Tag)
	}
	_, temporary := p.Annotations[v1.EphemeralProvisioningObject]
	switch {
	case p.Labels[v1.AppLabel] != launcherApp:
		return fmt.Sprintf("has label %s=%q, not %q", v1.AppLabel, p.Labels[v1.AppLabel], launcherApp)
	case p.Labels[v1.CreatedByLabel] != string(s.VMI.UID):
		return fmt.Sprintf("has label %s=%q, which is not the UID of the guest", v1.CreatedByLabel, p.Labels[v1.CreatedByLabel])
	case temporary:
		return "has claims provisioned and runs no guest"
	case has != job && (job != "" || lease.State == handoff.Offered || lease.MayStart(s.Node)):
		return fmt.Sprintf("has label %s=%q, not %q", v1.MigrationJobLabel, has, job)
	case ended(p):
		return "has ended"
	case p.DeletionTimestamp != nil:
		return "is being deleted"
	}
	return ""
}

// ended tells whether the Pod, or the container in it that runs the guest, has ended.
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

// NeedsProof tells whether what comes next for the guest on this node, to start it or to
// get ready to receive it, takes the Pod that [Sight.Proof] returns.
func (s Sight) NeedsProof() bool {
	if s.VMI == nil {
		return false
	}
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		return false
	}
	switch RoleOf(lease, s.Node) {
	case RoleOffered:
		return true
	case RoleHolder:
		return lease.MayStart(s.Node)
	case RoleTarget:
		return lease.State == handoff.Preparing
	default:
		return false
	}
}

// prove makes the lack of a launcher Pod what stands in the way of the guest.
func (d *decision) prove() {
	if _, err := d.Proof(); err != nil {
		d.Obstacle = err
	}
}
