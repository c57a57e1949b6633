// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
)

// TestVM_LiveUpdate: a running guest gets the CPU and the memory that its VM gets, in a Pod that requests as much; fewer CPUs need a
// restart, which the VM's condition says.
func TestVM_LiveUpdate(t *testing.T) {
	nightly(t)
	updatesWorkloads(t)
	m := newMachine(t, "grows", v1.RunStrategyAlways, func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.CPU = &v1.CPU{Sockets: 1, Model: "Nehalem"}
		vmi.Spec.Domain.Memory.Guest = new(resource.MustParse("1Gi")) // the least that can grow
	})
	s := m.boots(nil)
	had := s.launcher()
	s.hears(func(cpus, kib int) bool { return cpus == 1 && kib < 1<<20 })

	to := s.other()
	m.change(false, func() { m.vm.Spec.Template.Spec.Domain.CPU.Sockets = 2 })
	s.settlesOn(to)
	s.hears(func(cpus, _ int) bool { return cpus == 2 })

	to = s.other()
	m.change(false, func() { m.vm.Spec.Template.Spec.Domain.Memory.Guest = new(resource.MustParse("1536Mi")) })
	s.settlesOn(to)
	s.hears(func(cpus, kib int) bool { return cpus == 2 && kib > 1400<<10 })
	s.awaitStatus("memory of 1536Mi", func(vmi *v1.VirtualMachineInstance) error {
		if now := vmi.Status.Memory; now == nil || now.GuestCurrent == nil || now.GuestCurrent.Value() != 1536<<20 {
			return fmt.Errorf("it is %+v", now)
		}
		return nil
	})
	s.unbroken()
	for name, grown := range map[corev1.ResourceName]int64{corev1.ResourceCPU: 100, corev1.ResourceMemory: 1000 * 512 << 20} {
		was, is := had.Resources.Requests[name], s.launcher().Resources.Requests[name]
		if is.MilliValue()-was.MilliValue() < grown {
			t.Errorf("the Pod requests %s of %s, had %s", &is, name, &was)
		}
	}

	m.change(false, func() { m.vm.Spec.Template.Spec.Domain.CPU.Sockets = 1 })
	m.await("that a restart is required", func(ctx context.Context) error {
		if err := s.c.Client.Get(ctx, client.ObjectKeyFromObject(m.vm), m.vm); err != nil {
			return err
		}
		for _, c := range m.vm.Status.Conditions {
			if c.Type == v1.VirtualMachineRestartRequired && c.Message == "Reduction of CPU socket count requires a restart" {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", m.vm.Status.Conditions)
	})
	s.hears(func(cpus, _ int) bool { return cpus == 2 })
	m.request(v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest, UID: &s.vmi.UID}, v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest})
	s = m.boots(s)
	s.hears(func(cpus, kib int) bool { return cpus == 1 && kib > 1400<<10 })
	m.ran(2)
}

// updatesWorkloads lets VMIs move that need another Pod, until the test is over.
func updatesWorkloads(t *testing.T) {
	t.Helper()
	set := func(ctx context.Context, methods ...v1.WorkloadUpdateMethod) error {
		kv := &v1.KubeVirt{}
		if err := cluster(t).Client.Get(ctx, client.ObjectKey{Namespace: "kubevirt", Name: "kubevirt"}, kv); err != nil {
			return err
		}
		was := kv.DeepCopy()
		kv.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods = methods
		return shared.cluster.Client.Patch(ctx, kv, client.MergeFrom(was))
	}
	must(t, set(t.Context(), v1.WorkloadUpdateMethodLiveMigrate))
	t.Cleanup(func() { must(t, set(context.Background())) })
}

// hears waits until the guest says by HTTP that it has such CPUs and memory.
func (s *scene) hears(is func(cpus, kib int) bool) {
	s.Helper()
	must(s.T, refcluster.Await(s.Context(), patience, "the guest to have another size", func(ctx context.Context) error {
		pod, err := s.pod(ctx)
		if err != nil {
			return err
		}
		said, err := s.get(ctx, fmt.Sprintf("pods/%s:%d", pod.Name, port))
		cpus, kib := 0, 0
		if _, has, found := strings.Cut(said, " cpus="); err == nil && found {
			_, err = fmt.Sscanf(has, "%d mem=%dkB", &cpus, &kib)
		}
		if err != nil || !is(cpus, kib) {
			return fmt.Errorf("it says %q: %w", said, err)
		}
		return nil
	}))
}

// settlesOn waits until the guest runs on the node, and every change of its size is done there.
func (s *scene) settlesOn(node string) {
	s.Helper()
	s.awaitRunning(node)
	s.awaitStatus("the change to be done", func(vmi *v1.VirtualMachineInstance) error {
		s.vmi = vmi
		for _, c := range vmi.Status.Conditions {
			if c.Type == v1.VirtualMachineInstanceVCPUChange || c.Type == v1.VirtualMachineInstanceMemoryChange {
				return fmt.Errorf("condition %+v", c)
			}
		}
		if m := vmi.Status.MigrationState; m == nil || !m.Completed {
			return fmt.Errorf("migration %+v", m)
		}
		return nil
	})
	s.beats(node, 3)
}

// pod returns the launcher's Pod where the guest is.
func (s *scene) pod(ctx context.Context) (*corev1.Pod, error) {
	pods, err := s.pods(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool {
		return p.Spec.NodeName == s.vmi.Status.NodeName && p.Status.Phase == corev1.PodRunning
	})
	if i < 0 {
		return nil, fmt.Errorf("no Pod runs on %s", s.vmi.Status.NodeName)
	}
	return &pods[i], nil
}

// launcher returns the container that the guest is in.
func (s *scene) launcher() corev1.Container {
	s.Helper()
	pod, err := s.pod(s.Context())
	must(s.T, err)
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == "compute" })
	return pod.Spec.Containers[i]
}
