// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// networkGrace is how long a change of networks is left to a controller that attaches running
// Pods to networks before the VMI is migrated for it.
const networkGrace = 15 * time.Second

// Verdict is the result of a [MigrationEvaluator].
type Verdict struct {
	// Status is True if the VMI must be migrated, False if it must be unless the cause
	// disappears by DueAt, and Unknown if there is no cause.
	Status corev1.ConditionStatus
	// Interface is the name of the spec's interface that is the cause; empty if there is
	// no cause or another one.
	Interface string
	// Reason describes the cause; empty if there is none.
	Reason string
	// DueAt is when False becomes True; zero if Status is not False. If an evaluator
	// leaves it zero for False, it is evaluated again after 10 s.
	DueAt time.Time
}

// MigrationEvaluator decides whether a running VMI must be migrated so that its Pod matches
// its spec again. It is called for VMIs that are not migrating, with the launcher Pod, and
// must modify neither. The default compares the networks of the Pod with the spec.
// (specs: VMI reconciliation 6.4)
type MigrationEvaluator interface {
	Evaluate(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, now time.Time) Verdict
}

// MigrationEvaluatorFunc adapts a function to a MigrationEvaluator.
type MigrationEvaluatorFunc func(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, now time.Time) Verdict

// Evaluate implements MigrationEvaluator.
func (f MigrationEvaluatorFunc) Evaluate(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, now time.Time) Verdict {
	return f(vmi, pod, now)
}

// evaluateNetworks decides whether the VMI must be migrated because its Pod is attached to
// other networks than its spec names. Only multus networks other than the default count,
// in the order of the interfaces; the first cause is returned:
//
//   - an interface without a status is to be hotplugged: True at once for SR-IOV,
//     whose device cannot be added to a running Pod, otherwise False;
//   - an absent interface is still attached to the Pod and removed from the domain:
//     False;
//   - the Pod's interface is attached to another network than the spec names: True.
//
// False becomes True 15 s after the VMI's condition MigrationRequired became False.
// Annotations of the Pod that cannot be parsed are no cause.
func evaluateNetworks(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, now time.Time) Verdict {
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		in := &vmi.Spec.Domain.Devices.Interfaces[i]
		n := networkNamed(vmi.Spec.Networks, in.Name)
		if n == nil || !secondary(n) {
			continue
		}
		var status *v1.VirtualMachineInstanceNetworkInterface
		if k := interfaceNamed(vmi.Status.Interfaces, in.Name); k >= 0 {
			status = &vmi.Status.Interfaces[k]
		}
		switch {
		case in.State == v1.InterfaceStateAbsent:
			if status != nil && hasSource(status.InfoSource, sourceMultus) && !hasSource(status.InfoSource, sourceDomain) {
				return pendingVerdict(vmi, in.Name, "the Pod is still attached to the network of an unplugged interface", now)
			}
		case status == nil:
			return newInterface(vmi, in, now)
		case inOtherNetwork(vmi, pod, n, status.PodInterfaceName):
			return Verdict{Status: corev1.ConditionTrue, Interface: in.Name,
				Reason: "the Pod is not attached to network " + n.Multus.NetworkName}
		}
	}
	return Verdict{Status: corev1.ConditionUnknown}
}

// newInterface returns the verdict for an interface without a status.
func newInterface(vmi *v1.VirtualMachineInstance, in *v1.Interface, now time.Time) Verdict {
	if in.SRIOV != nil {
		return Verdict{Status: corev1.ConditionTrue, Interface: in.Name, Reason: "a new SR-IOV interface needs a new Pod"}
	}
	return pendingVerdict(vmi, in.Name, "the Pod is not attached to the network of a new interface", now)
}

// pendingVerdict returns False until networkGrace has passed, then True.
func pendingVerdict(vmi *v1.VirtualMachineInstance, name, reason string, now time.Time) Verdict {
	since := now
	if c := vmistatus.Condition(vmi, v1.VirtualMachineInstanceMigrationRequired); c != nil && c.Status == corev1.ConditionFalse {
		since = c.LastTransitionTime.Time
	}
	due := since.Add(networkGrace)
	if !now.Before(due) {
		return Verdict{Status: corev1.ConditionTrue, Interface: name, Reason: fmt.Sprintf("%s, for more than %s", reason, networkGrace)}
	}
	return Verdict{Status: corev1.ConditionFalse, Interface: name, Reason: reason, DueAt: due}
}

// inOtherNetwork reports whether the Pod is known to be attached to another network. If the
// Pod requests no interface of that name, any other that it requests in the network counts:
// names depend on the release that rendered the Pod.
func inOtherNetwork(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, n *v1.Network, podInterface string) bool {
	if pod == nil {
		return false
	}
	elements, ok := requestedNetworks(pod)
	if !ok {
		return false
	}
	if podInterface == "" {
		attached, err := linksOf(pod)
		if err != nil {
			return false
		}
		podInterface = podInterfaceNames(vmi.Spec.Networks, attached)[n.Name]
	}
	want := networkReference(vmi.Namespace, n.Multus.NetworkName)
	somewhere := false
	for _, e := range elements {
		same := networkReference(pod.Namespace, e.reference()) == want
		if e.Interface == podInterface {
			return !same
		}
		somewhere = somewhere || same
	}
	return !somewhere
}

// requestedNetwork is one element of the annotation that requests networks from multus.
type requestedNetwork struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Interface string `json:"interface"`
}

func (r requestedNetwork) reference() string {
	if r.Namespace == "" {
		return r.Name
	}
	return r.Namespace + "/" + r.Name
}

// requestedNetworks returns the networks that the Pod requests from multus; ok is false if the
// annotation cannot be parsed.
func requestedNetworks(pod *corev1.Pod) (all []requestedNetwork, ok bool) {
	text := pod.Annotations[networksAnnotation]
	if text == "" {
		return nil, true
	}
	return all, json.Unmarshal([]byte(text), &all) == nil
}

// networkReference adds the namespace to the name of a NetworkAttachmentDefinition.
func networkReference(namespace, name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	return namespace + "/" + name
}

func networkNamed(networks []v1.Network, name string) *v1.Network {
	for i := range networks {
		if networks[i].Name == name {
			return &networks[i]
		}
	}
	return nil
}
