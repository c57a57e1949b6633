// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
)

func TestVMI_GuestPowersOff(t *testing.T) {
	c := cluster(t)
	s := boot(t, c, newGuest(t, "poweroff"))
	_, err := c.Node(s.vmi.Status.NodeName).Virsh(t.Context(), "shutdown", "default_poweroff")
	must(t, err)
	s.await(v1.Succeeded)
	l, err := handoff.Of(s.vmi)
	must(t, err)
	if l.State != handoff.Released {
		t.Errorf("the lease is %+v, want it released", l)
	}
}

func TestVMI_QEMUKilled(t *testing.T) {
	c := cluster(t)
	s := boot(t, c, newGuest(t, "killed"))
	node := c.Node(s.vmi.Status.NodeName)
	pids, err := node.QEMUs()
	must(t, err)
	for _, pid := range pids {
		p, err := os.FindProcess(pid)
		must(t, err)
		must(t, p.Kill())
	}
	s.await(v1.Failed)
}

// TestVMI_NodeUnresponsive: without an agent on the node, the
// VMI is Lost and its domain runs on; no node starts another, and the agent that returns finds
// it its own.
func TestVMI_NodeUnresponsive(t *testing.T) {
	c := cluster(t)
	s := boot(t, c, newGuest(t, "silent"))
	node := c.Node(s.vmi.Status.NodeName)
	before, err := node.QEMUs()
	must(t, err)
	crashAgent(t, c, node.Name(), func() {
		crashController(t, c, func() {}, "--node-silent-after", "1s")
		s.awaitLease(handoff.Lost)
		s.beats(node.Name(), 5)
		crashController(t, c, func() {}) // one that is patient, before the node speaks again
	})
	// The impatient one has closed both nodes. An agent opens its node again with its next report, and begins with one.
	crashAgent(t, c, s.other(node.Name()), func() {})
	must(t, c.AwaitAgents(t.Context(), patience))
	s.awaitLease(handoff.Owned)
	s.beats(node.Name(), 5)
	after, err := node.QEMUs()
	must(t, err)
	pods, err := c.Pods(t.Context(), s.key.Namespace)
	must(t, err)
	if !slices.Equal(before, after) || len(pods) != 1 {
		t.Errorf("QEMU processes were %v and are %v, with %d Pods", before, after, len(pods))
	}
	s.unbroken()
}

// awaitLease waits until the guest's lease is in the state.
func (s *scene) awaitLease(want handoff.State) {
	s.Helper()
	must(s.T, s.c.Await(s.Context(), patience, "the lease to be "+string(want), func(ctx context.Context) error {
		vmi, err := s.c.VMI(ctx, s.key)
		if err != nil {
			return err
		}
		l, err := handoff.Of(vmi)
		if err == nil && l.State != want {
			err = fmt.Errorf("it is %s", l.State)
		}
		return err
	}))
}

func TestNodeAgent_KilledBeforeStart(t *testing.T) {
	c := cluster(t)
	s := create(t, c, newGuest(t, "interrupted"))
	s.await(v1.Scheduled)
	crashAgent(t, c, s.vmi.Status.NodeName, func() {})
	s.await(v1.Running)
	s.single()
	s.beats("", 5)
	s.unbroken()
}

func TestVMI_LiveUpdate(t *testing.T) {
	c := cluster(t)
	s := boot(t, c, newGuest(t, "converge"))
	for _, want := range []v1.InterfaceState{v1.InterfaceStateLinkDown, v1.InterfaceStateLinkUp} {
		base := s.vmi.DeepCopy()
		s.vmi.Spec.Domain.Devices.Interfaces[0].State = want
		must(t, c.Client.Patch(t.Context(), s.vmi, client.MergeFrom(base)))
		must(t, c.Await(t.Context(), patience, "the link to be "+string(want), func(ctx context.Context) error {
			out, err := c.Node(s.vmi.Status.NodeName).Virsh(ctx, "domif-getlink", "default_converge", s.vmi.Status.Interfaces[0].MAC)
			if err == nil && !strings.Contains(out, string(want)) {
				err = fmt.Errorf("it is %s", out)
			}
			return err
		}))
	}
}

func TestInvalidVMI_SetsCondition(t *testing.T) {
	c := cluster(t)
	for name, tt := range map[string]struct {
		spoil func(*v1.VirtualMachineInstance)
		phase v1.VirtualMachineInstancePhase
		says  []string
	}{
		"bad-bus": {
			func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Devices.Disks[0].Disk.Bus = "floppy" },
			v1.Pending, []string{"spec.domain.devices.disks[0].disk.bus", "floppy", "virtio"}},
		"no-claim": {
			func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Volumes[0].VolumeSource = v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
					PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "nowhere"}}}
			},
			v1.Pending, []string{"spec.volumes[0].persistentVolumeClaim.claimName", "nowhere", "create it"}},
		"no-kernel": {
			func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Domain.Firmware.KernelBoot.Container.KernelPath = "/boot/missing"
			},
			v1.Scheduled, []string{"spec.domain.firmware.kernelBoot.container.kernelPath", "/boot/missing", "correct image and path"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := create(t, c, newGuest(t, name, tt.spoil))
			must(t, c.Await(t.Context(), patience, "a condition", func(ctx context.Context) error {
				vmi, err := c.VMI(ctx, s.key)
				if err != nil {
					return err
				}
				for _, have := range vmi.Status.Conditions {
					if have.Type == v1.VirtualMachineInstanceSynchronized && have.Status == corev1.ConditionFalse {
						return says(have.Message, vmi.Status.Phase, tt.phase, tt.says)
					}
				}
				return fmt.Errorf("it is %s, conditions %v", vmi.Status.Phase, vmi.Status.Conditions)
			}))
		})
	}
}

func says(message string, phase, wantPhase v1.VirtualMachineInstancePhase, words []string) error {
	if phase != wantPhase {
		return fmt.Errorf("phase %s, want %s", phase, wantPhase)
	}
	for _, w := range words {
		if !strings.Contains(message, w) {
			return fmt.Errorf("the message does not say %q: %s", w, message)
		}
	}
	return nil
}
