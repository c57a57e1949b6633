// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain/nodectrl"
	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/internal/rig"
)

// TestNode_WithoutKVM: nodes without KVM take no guests once the KubeVirt object does not allow emulation: their Nodes and "refdaemon explain"
// say so, with the remedy, a new VMI waits, and one that runs goes on. Once emulation is allowed again the nodes take new guests.
func TestNode_WithoutKVM(t *testing.T) {
	s := boot(t, newGuest("emulated"))
	t.Cleanup(func() {
		emulation(t, true)
		must(t, s.c.AwaitSchedulable(context.Background(), patience))
	})
	emulation(t, false)
	for _, n := range s.c.Nodes {
		must(t, refcluster.Await(t.Context(), patience, n.Name()+" to say what it lacks", func(ctx context.Context) error {
			node := &corev1.Node{}
			if err := s.c.Client.Get(ctx, client.ObjectKey{Name: n.Name()}, node); err != nil {
				return err
			}
			problems, err := nodectrl.ProblemsOf(node)
			if err != nil || len(problems) == 0 || problems[0].Code != "NoKVM" || node.Labels[v1.NodeSchedulable] != "false" {
				return fmt.Errorf("schedulable %q, problems %+v: %w", node.Labels[v1.NodeSchedulable], problems, err)
			}
			return nil
		}))
		said := explain(t, s.c.Rig, "node", n.Name())
		if !strings.Contains(said, "/dev/kvm") || !strings.Contains(said, "useEmulation") {
			t.Errorf("refdaemon explain node %s: %s", n.Name(), said)
		}
	}
	waits := create(t, newGuest("waits"))
	waits.awaitStatus("the VMI to wait for a node", func(vmi *v1.VirtualMachineInstance) error {
		for _, c := range vmi.Status.Conditions {
			if c.Type == v1.VirtualMachineInstanceConditionType(corev1.PodScheduled) && c.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %+v", vmi.Status.Conditions)
	})
	if said := explain(t, s.c.Rig, "vmi", namespace+"/waits"); !strings.Contains(said, "kubevirt.io/schedulable") {
		t.Errorf("refdaemon explain vmi waits: %s", said)
	}
	s.beats("", 10)
	s.awaitRunning(s.vmi.Status.NodeName)
	emulation(t, true)
	must(t, s.c.AwaitSchedulable(t.Context(), patience))
	waits.remove() // its Pod asks for devices that it does not need any more
	boot(t, newGuest("waits"))
	s.unbroken()
}

// emulation allows it or not.
func emulation(t *testing.T, allowed bool) {
	t.Helper()
	ctx, admin := context.Background(), shared.cluster.Client
	kv := &v1.KubeVirt{}
	must(t, admin.Get(ctx, client.ObjectKey{Namespace: "kubevirt", Name: "kubevirt"}, kv))
	was := kv.DeepCopy()
	kv.Spec.Configuration.DeveloperConfiguration.UseEmulation = allowed
	must(t, admin.Patch(ctx, kv, client.MergeFrom(was)))
}

// explain runs "refdaemon explain" as administrator, with the program of the image.
func explain(t *testing.T, r *rig.Rig, what ...string) string {
	t.Helper()
	program := filepath.Join(programs(t), "images", "controller", "usr", "bin", "refdaemon")
	out, err := exec.CommandContext(t.Context(), program, append([]string{"explain", "--kubeconfig", r.Kubeconfig(rig.UserAdmin)}, what...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("refdaemon explain %v: %v\n%s", what, err, out)
	}
	return string(out)
}
