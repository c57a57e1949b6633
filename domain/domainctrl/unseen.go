// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/plan"
)

// launcherContainer is the container in which a guest's hypervisor runs (KubeVirt's name).
const launcherContainer = "compute"

// unseen fills in why the state of a domain without a hypervisor is unknown. That it does not run
// needs positive evidence: each of its Pods on this node has ended, as the kubelet reports, or
// exists no more. A missing folder or socket of a Pod is no evidence: the folder of Pods may be the
// wrong one, or not mounted.
func (r gatherer) unseen(ctx context.Context, key types.NamespacedName, s *plan.Snapshot) error {
	if r.Connector == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	var pods corev1.PodList
	err := r.APIReader.List(ctx, &pods, client.InNamespace(key.Namespace), client.MatchingFields{"spec.nodeName": r.NodeName})
	if err != nil {
		return fmt.Errorf("domainctrl: list the Pods of %s on this node: %w", key, err)
	}
	var alive []string
	for i := range pods.Items {
		if p := &pods.Items[i]; runsGuestOf(p, s) && !hasEnded(p) {
			alive = append(alive, fmt.Sprintf("%s (%s)", p.Name, p.UID))
		}
	}
	if len(alive) == 0 {
		return nil
	}
	slices.Sort(alive)
	s.StateUnknown = &convert.Error{
		Object: "VirtualMachineInstance " + key.String(),
		Reason: fmt.Sprintf("node %s found no launcher in Pod %s, which has not ended: the state of the domain is unknown", r.NodeName, strings.Join(alive, ", ")),
		Remedy: "check that the agent's folder of Pods (--launchers) is the kubelet's and that it is mounted with what the kubelet mounts below it; if the Pod is stuck, delete it",
	}
	return nil
}

// runsGuestOf reports whether the Pod may run the VMI, or an earlier one of its name that has files
// here.
func runsGuestOf(p *corev1.Pod, s *plan.Snapshot) bool {
	if !slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == launcherContainer }) {
		return false
	}
	if s.VMI != nil {
		if _, active := s.VMI.Status.ActivePods[p.UID]; active {
			return true
		}
	}
	_, uid, launches := plan.VMIOf(p)
	return launches && (s.VMI != nil && uid == s.VMI.UID || slices.Contains(s.OrphanedUIDs, uid))
}

// hasEnded reports whether the kubelet has reported the end of the Pod's launcher. The phase alone
// is no evidence: others than the kubelet write it for Pods of nodes they believe to be dead.
func hasEnded(p *corev1.Pod) bool {
	running := false
	for i := range p.Status.ContainerStatuses {
		c := &p.Status.ContainerStatuses[i]
		if c.Name == launcherContainer && c.State.Terminated != nil {
			return true
		}
		running = running || c.State.Running != nil
	}
	return !running && (p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed)
}
