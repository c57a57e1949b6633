// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
)

// bridge connects a guest to the Pod network with binding bridge.
func bridge(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}
	vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyNone)
}

// withAgent starts the guest agent in a guest.
func withAgent(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Firmware.KernelBoot.Container.InitrdPath = "/boot/initrd-agent"
}

// probe is one that asks often.
func probe(h v1.Handler) *v1.Probe {
	return &v1.Probe{Handler: h, PeriodSeconds: 1, TimeoutSeconds: 10, FailureThreshold: 3}
}

func httpGet(port int) v1.Handler {
	return v1.Handler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt(port)}}
}

// TestNetwork_Bridge: a guest with binding bridge has the address of its Pod, by which the kubelet's probe, another Pod and a
// Service reach it; it cannot move. "kubectl delete pod" of its launcher asks it to shut down.
func TestNetwork_Bridge(t *testing.T) {
	s := boot(t, newGuest("bridged", bridge, func(vmi *v1.VirtualMachineInstance) { vmi.Spec.ReadinessProbe = probe(httpGet(port)) }))
	pods, err := s.pods(t.Context())
	must(t, err)
	ip := pods[0].Status.PodIP
	s.says(" ip=" + ip + "/32")
	s.awaitAddress(ip)
	s.service()
	s.awaitReady(corev1.ConditionTrue)
	s.answers("by its own address")
	if c := s.condition(v1.VirtualMachineInstanceIsMigratable); c.Status != corev1.ConditionFalse || c.Reason != v1.VirtualMachineInstanceReasonInterfaceNotMigratable {
		t.Errorf("migratable: %+v", c)
	}
	// An agent that starts again finds the network as it is.
	n := s.vmi.Status.NodeName
	if out, err := kubectl("-n", "virtloom-node", "delete", "pod", "--field-selector", "spec.nodeName="+n, "--wait"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, s.c.AwaitSchedulable(t.Context(), patience))
	s.answers("after a restart of the agent")
	s.unbroken()
	if out, err := kubectl("-n", namespace, "delete", "pod", pods[0].Name, "--wait=false"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.says("virtloom-power-button")
	s.awaitFinal(v1.Succeeded)
}

// awaitReady waits until the launcher's Pod has that readiness.
func (s *scene) awaitReady(want corev1.ConditionStatus) {
	s.Helper()
	must(s.T, refcluster.Await(s.Context(), patience, "the launcher to be ready: "+string(want), func(ctx context.Context) error {
		pods, err := s.pods(ctx)
		if err != nil || len(pods) != 1 {
			return fmt.Errorf("%d Pods: %w", len(pods), err)
		}
		for _, c := range pods[0].Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == want {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", pods[0].Status.Conditions)
	}))
}

// condition returns a condition of the VMI.
func (s *scene) condition(kind v1.VirtualMachineInstanceConditionType) v1.VirtualMachineInstanceCondition {
	s.Helper()
	vmi := &v1.VirtualMachineInstance{}
	must(s.T, s.c.Client.Get(s.Context(), s.key, vmi))
	for _, c := range vmi.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	s.Fatalf("no condition %s in %+v", kind, vmi.Status.Conditions)
	return v1.VirtualMachineInstanceCondition{}
}

// awaitFinal waits for the last phase of the VMI.
func (s *scene) awaitFinal(want v1.VirtualMachineInstancePhase) {
	s.Helper()
	must(s.T, refcluster.Await(s.Context(), patience, "the VMI to end", func(ctx context.Context) error {
		vmi := &v1.VirtualMachineInstance{}
		if err := s.c.Client.Get(ctx, s.key, vmi); err != nil {
			return err
		}
		if vmi.Status.Phase != want {
			return fmt.Errorf("it is %s, want %s", vmi.Status.Phase, want)
		}
		return nil
	}))
}

// TestProbes_Agent: a program in the guest is the readiness probe, its agent the liveness probe; status.interfaces has what the agent
// reports.
func TestProbes_Agent(t *testing.T) {
	s := boot(t, newGuest("asked", withAgent, func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.ReadinessProbe = probe(v1.Handler{Exec: &corev1.ExecAction{Command: []string{"/bin/grep", "-q", "serve=", "/proc/cmdline"}}})
		vmi.Spec.LivenessProbe = probe(v1.Handler{GuestAgentPing: &v1.GuestAgentPing{}})
		vmi.Spec.LivenessProbe.InitialDelaySeconds = 20
	}))
	s.awaitReady(corev1.ConditionTrue)
	must(t, refcluster.Await(t.Context(), patience, "the agent's report", func(ctx context.Context) error {
		vmi := &v1.VirtualMachineInstance{}
		if err := s.c.Client.Get(ctx, s.key, vmi); err != nil {
			return err
		}
		if in := vmi.Status.Interfaces; len(in) < 1 || in[0].InterfaceName != "eth0" || !strings.Contains(in[0].InfoSource, "guest-agent") {
			return fmt.Errorf("status.interfaces %+v", in)
		}
		return nil
	}))
	s.unbroken()
}

// TestProbes_Failing: a guest whose liveness probe fails ends, and one whose readiness probe fails is not ready, and runs on.
func TestProbes_Failing(t *testing.T) {
	nightly(t)
	for name, h := range map[string]v1.Handler{
		"tcp": {TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9)}}, "http": httpGet(9),
		"exec": {Exec: &corev1.ExecAction{Command: []string{"/bin/false"}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := boot(t, newGuest("unready-"+name, withAgent, func(vmi *v1.VirtualMachineInstance) { vmi.Spec.ReadinessProbe = probe(h) }))
			s.beats("", 100)
			s.awaitReady(corev1.ConditionFalse)
			s.unbroken()
			dies := newGuest("dies-"+name, withAgent, func(vmi *v1.VirtualMachineInstance) { vmi.Spec.LivenessProbe = probe(h) })
			must(t, s.c.Client.Create(t.Context(), dies))
			d := &scene{T: t, c: s.c, key: client.ObjectKeyFromObject(dies), vmi: dies}
			t.Cleanup(d.remove)
			must(t, refcluster.Await(t.Context(), patience, "the VMI to end", func(ctx context.Context) error {
				vmi := &v1.VirtualMachineInstance{}
				if err := d.c.Client.Get(ctx, d.key, vmi); err != nil || !vmi.IsFinal() {
					return fmt.Errorf("it is %s: %w", vmi.Status.Phase, err)
				}
				return nil
			}))
		})
	}
}
