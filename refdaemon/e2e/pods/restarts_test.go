// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/realcluster"
	"github.com/virtloom/virtloom/internal/refcluster"
)

// kills are the parts that are killed while a guest runs, and while one moves.
var kills = []struct {
	name string
	kill func(*testing.T, *scene)
}{
	{"agent", func(t *testing.T, s *scene) { killContainer(t, s, "virtloom-node", s.vmi.Status.NodeName) }},
	{"controllers", func(t *testing.T, s *scene) { killContainer(t, s, "virtloom-controller", "") }},
	{"kubelet", func(t *testing.T, s *scene) { must(t, node(s.c, s.vmi.Status.NodeName).KillKubelet()) }},
	{"containerd", func(t *testing.T, s *scene) { must(t, node(s.c, s.vmi.Status.NodeName).KillContainerd()) }},
}

// TestParts_KilledWhileGuestRuns: whatever of the cluster is killed, the guest runs on, and moves afterwards.
func TestParts_KilledWhileGuestRuns(t *testing.T) {
	s := boot(t, newGuest("survivor"))
	for _, k := range kills {
		t.Run(k.name, func(t *testing.T) {
			inner := *s
			inner.T = t
			k.kill(t, &inner)
			inner.beats("", 10)
			must(t, s.c.AwaitReady(t.Context(), patience))
			inner.awaitRunning(s.vmi.Status.NodeName)
		})
	}
	s.migrate()
	s.unbroken()
}

// TestParts_KilledWhileGuestMoves: whatever is killed while a guest moves, it runs in the end, once, and no heartbeat is lost.
func TestParts_KilledWhileGuestMoves(t *testing.T) {
	for _, k := range kills {
		t.Run(k.name, func(t *testing.T) {
			s := boot(t, newGuest("moving-"+k.name))
			m := s.begin()
			must(t, refcluster.Await(t.Context(), patience, "the migration to run", func(ctx context.Context) error {
				if err := s.c.Client.Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
					return err
				}
				switch m.Status.Phase {
				case v1.MigrationTargetReady, v1.MigrationRunning, v1.MigrationSucceeded, v1.MigrationFailed:
					return nil
				}
				return fmt.Errorf("it is %s", m.Status.Phase)
			}))
			k.kill(t, s)
			must(t, s.c.AwaitReady(t.Context(), patience))
			must(t, refcluster.Await(t.Context(), patience, "the migration to end", func(ctx context.Context) error {
				if err := s.c.Client.Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
					return err
				}
				if !m.IsFinal() {
					return fmt.Errorf("it is %s, %+v", m.Status.Phase, m.Status.MigrationState)
				}
				return nil
			}))
			s.awaitRunning("")
			s.beats(s.vmi.Status.NodeName, 3)
			s.unbroken()
			s.single()
		})
	}
}

// single waits until one Pod of the VMI is left that has not ended, on its node.
func (s *scene) single() {
	s.Helper()
	must(s.T, refcluster.Await(s.Context(), patience, "one launcher Pod to run", func(ctx context.Context) error {
		pods, err := s.pods(ctx)
		if err != nil {
			return err
		}
		running := 0
		for _, p := range pods {
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				running++
				if p.Spec.NodeName != s.vmi.Status.NodeName {
					return fmt.Errorf("one runs on %s", p.Spec.NodeName)
				}
			}
		}
		if running != 1 {
			return fmt.Errorf("%d run", running)
		}
		return nil
	}))
}

func node(c *realcluster.Cluster, name string) realcluster.Node {
	for _, n := range c.Nodes {
		if n.Name() == name {
			return n
		}
	}
	panic("no node " + name)
}

// killContainer kills the processes of the Pods of an app with SIGKILL, on one node or on all.
func killContainer(t *testing.T, s *scene, app, on string) {
	t.Helper()
	var pods corev1.PodList
	must(t, s.c.Client.List(t.Context(), &pods, client.MatchingLabels{"app": app}))
	killed := 0
	for i := range pods.Items {
		p := &pods.Items[i]
		if on != "" && p.Spec.NodeName != on {
			continue
		}
		must(t, s.c.KillContainer(t.Context(), p, p.Spec.Containers[0].Name))
		killed++
	}
	if killed == 0 {
		t.Fatalf("no Pod of %s on %q", app, on)
	}
}

// TestUpgrade_RollsWhileGuestsRun: Deployment and DaemonSet are replaced, Pod by Pod, while a guest runs and another moves.
func TestUpgrade_RollsWhileGuestsRun(t *testing.T) {
	still, moving := boot(t, newGuest("still")), boot(t, newGuest("moving"))
	out, err := kubectl(t, "-n", "virtloom-system", "rollout", "restart", "deployment/virtloom-controller")
	if err == nil {
		out, err = kubectl(t, "-n", "virtloom-node", "rollout", "restart", "daemonset/virtloom-node")
	}
	if err != nil {
		t.Fatalf("restart: %v\n%s", err, out)
	}
	moving.migrate()
	must(t, refcluster.Await(t.Context(), 2*patience, "the rollout", func(ctx context.Context) error {
		var d appsv1.Deployment
		var ds appsv1.DaemonSet
		if err := moving.c.Client.Get(ctx, client.ObjectKey{Namespace: "virtloom-system", Name: "virtloom-controller"}, &d); err != nil {
			return err
		}
		if err := moving.c.Client.Get(ctx, client.ObjectKey{Namespace: "virtloom-node", Name: "virtloom-node"}, &ds); err != nil {
			return err
		}
		if d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas < *d.Spec.Replicas || d.Status.AvailableReplicas < *d.Spec.Replicas ||
			ds.Status.ObservedGeneration < ds.Generation || ds.Status.UpdatedNumberScheduled < ds.Status.DesiredNumberScheduled || ds.Status.NumberUnavailable > 0 {
			return fmt.Errorf("the Deployment is at %+v, the DaemonSet at %+v", d.Status, ds.Status)
		}
		return nil
	}))
	for _, s := range []*scene{still, moving} {
		s.awaitRunning(s.vmi.Status.NodeName)
		s.beats("", 5)
		s.migrate()
		s.unbroken()
	}
}

// TestLauncher_Killed: a guest whose launcher is killed fails, and its Pod does not run on.
func TestLauncher_Killed(t *testing.T) {
	s := boot(t, newGuest("killed"))
	pods, err := s.pods(t.Context())
	must(t, err)
	must(t, s.c.KillContainer(t.Context(), &pods[0], "compute"))
	must(t, refcluster.Await(t.Context(), patience, "the VMI to fail", func(ctx context.Context) error {
		if err := s.c.Client.Get(ctx, s.key, s.vmi); err != nil {
			return err
		}
		if s.vmi.Status.Phase != v1.Failed {
			return fmt.Errorf("it is %s", s.vmi.Status.Phase)
		}
		return nil
	}))
}
