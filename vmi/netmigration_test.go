// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
)

func cards(all ...v1.Interface) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) { g.Spec.Domain.Devices.Interfaces = all }
}

func bridge(name string) v1.Interface {
	return v1.Interface{Name: name, InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}}
}

func sriov(name string) v1.Interface {
	return v1.Interface{Name: name, InterfaceBindingMethod: v1.InterfaceBindingMethod{SRIOV: &v1.InterfaceSRIOV{}}}
}

func absent(i v1.Interface) v1.Interface {
	i.State = v1.InterfaceStateAbsent
	return i
}

func required(status corev1.ConditionStatus, since time.Time) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Status.Conditions = append(g.Status.Conditions, v1.VirtualMachineInstanceCondition{
			Type: v1.VirtualMachineInstanceMigrationRequired, Status: status, LastTransitionTime: metav1.NewTime(since),
		})
	}
}

// asked sets the Pod's request to multus for an interface in a network.
func asked(namespace, nad, name string) func(*corev1.Pod) {
	return annotated(networkAsked, `[{"name":"`+nad+`","namespace":"`+namespace+`","interface":"`+name+`"}]`)
}

func TestEvaluateNetworks(t *testing.T) {
	redNet := networks(podNetwork("default"), multus("red", "nad"), multus("blue", "nad"))
	redOf := func(nad string) func(*v1.VirtualMachineInstance) {
		return networks(podNetwork("default"), multus("red", nad))
	}
	plugged := interfaces(nic{Name: "red", PodInterfaceName: hashedRed, InfoSource: "domain, multus-status"})
	unplugged := interfaces(nic{Name: "red", PodInterfaceName: hashedRed, InfoSource: "multus-status"})
	in := asked("ns", "nad", hashedRed)
	type change = func(*v1.VirtualMachineInstance)
	due := now.Add(15 * time.Second)

	for name, tt := range map[string]struct {
		guest  []change
		pod    *corev1.Pod
		status corev1.ConditionStatus
		of     string
		due    time.Time
	}{
		"68 no interfaces":                  {status: corev1.ConditionUnknown},
		"68 all as the spec says":           {guest: []change{redNet, cards(bridge("red")), plugged}, pod: pod("p", in), status: corev1.ConditionUnknown},
		"68 the Pod's own network":          {guest: []change{redNet, cards(bridge("default"))}, pod: pod("p"), status: corev1.ConditionUnknown},
		"68 an interface without a network": {guest: []change{cards(bridge("red"))}, pod: pod("p"), status: corev1.ConditionUnknown},
		"71 a plugged bridge waits":         {guest: []change{redNet, cards(bridge("red"))}, pod: pod("p"), status: corev1.ConditionFalse, of: "red", due: due},
		"71 a plugged SR-IOV is at once":    {guest: []change{redNet, cards(sriov("red"))}, pod: pod("p"), status: corev1.ConditionTrue, of: "red"},
		"71 the first one counts": {
			guest: []change{redNet, cards(bridge("red"), sriov("blue"))}, pod: pod("p"), status: corev1.ConditionFalse, of: "red", due: due,
		},
		"68 the wait counts from the condition": {
			guest:  []change{redNet, cards(bridge("red")), required(corev1.ConditionFalse, now.Add(-10*time.Second))},
			pod:    pod("p"),
			status: corev1.ConditionFalse, of: "red", due: now.Add(5 * time.Second),
		},
		"68 the wait is over": {
			guest: []change{redNet, cards(bridge("red")), required(corev1.ConditionFalse, now.Add(-15*time.Second))},
			pod:   pod("p"), status: corev1.ConditionTrue, of: "red",
		},
		"68 a condition that is True is no wait": {
			guest: []change{redNet, cards(bridge("red")), required(corev1.ConditionTrue, now.Add(-time.Hour))},
			pod:   pod("p"), status: corev1.ConditionFalse, of: "red", due: due,
		},
		"an unplugged interface is still attached": {
			guest: []change{redNet, cards(absent(bridge("red"))), unplugged}, pod: pod("p", in), status: corev1.ConditionFalse, of: "red", due: due,
		},
		"an interface to be unplugged is still in the domain": {
			guest: []change{redNet, cards(absent(bridge("red"))), plugged}, pod: pod("p", in), status: corev1.ConditionUnknown,
		},
		"an absent interface that is gone": {guest: []change{redNet, cards(absent(bridge("red")))}, pod: pod("p"), status: corev1.ConditionUnknown},
		"another network": {
			guest: []change{redOf("other"), cards(bridge("red")), plugged}, pod: pod("p", in), status: corev1.ConditionTrue, of: "red",
		},
		"the network with its namespace": {
			guest: []change{redOf("ns/nad"), cards(bridge("red")), plugged}, pod: pod("p", in), status: corev1.ConditionUnknown,
		},
		"a network of that name in another namespace": {
			guest: []change{redOf("else/nad"), cards(bridge("red")), plugged}, pod: pod("p", in), status: corev1.ConditionTrue, of: "red",
		},
		"the Pod's interface is in another namespace's network": {
			guest: []change{redNet, cards(bridge("red")), plugged}, pod: pod("p", asked("else", "nad", hashedRed)), status: corev1.ConditionTrue, of: "red",
		},
		"an interface that was not asked for": {
			guest: []change{redNet, cards(bridge("red")), plugged}, pod: pod("p"), status: corev1.ConditionTrue, of: "red",
		},
		"names of its own": {
			guest: []change{redNet, cards(bridge("red")), plugged}, pod: pod("p", asked("ns", "nad", "mine")), status: corev1.ConditionUnknown,
		},
		"a status that does not name the Pod's interface yet": {
			guest: []change{redOf("other"), cards(bridge("red")), interfaces(nic{Name: "red", InfoSource: "domain"})},
			pod:   pod("p", in), status: corev1.ConditionTrue, of: "red",
		},
		"no Pod to read": {guest: []change{redOf("other"), cards(bridge("red")), plugged}, status: corev1.ConditionUnknown},
		"a Pod that cannot be read": {
			guest: []change{redOf("other"), cards(bridge("red")), plugged}, pod: pod("p", annotated(networkAsked, "nad@x")), status: corev1.ConditionUnknown,
		},
		"a report that cannot be read": {
			guest: []change{redOf("other"), cards(bridge("red")), interfaces(nic{Name: "red", InfoSource: "domain"})},
			pod:   pod("p", in, annotated(networkStatus, "{")), status: corev1.ConditionUnknown,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var e vmi.MigrationEvaluator = vmi.MigrationEvaluatorFunc(vmi.EvaluateNetworks)
			got := e.Evaluate(guest(v1.Running, tt.guest...), tt.pod, now)
			if got.Status != tt.status || got.Interface != tt.of || !got.DueAt.Equal(tt.due) {
				t.Errorf("got %+v, want %s of %q, due %s", got, tt.status, tt.of, tt.due)
			}
			if (strings.TrimSpace(got.Reason) == "") != (tt.status == corev1.ConditionUnknown) {
				t.Errorf("reason %q of %s", got.Reason, got.Status)
			}
		})
	}
}
