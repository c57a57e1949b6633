// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/refdaemon/config"
)

// kills are the parts that are killed while a guest runs, and while one moves: those of a node, or all controllers. What starts them again
// is returned, nil if the cluster does it.
var kills = []struct {
	name string
	kill func(s *scene, node string) (again func(context.Context) error)
}{
	{"agent", func(s *scene, node string) func(context.Context) error {
		return s.killContainers("virtloom-node", node)
	}},
	{"controllers", func(s *scene, _ string) func(context.Context) error {
		return s.killContainers("virtloom-controller", "")
	}},
	{"kubelet", func(s *scene, node string) func(context.Context) error {
		n := s.c.Node(node)
		must(s.T, n.KillKubelet())
		return n.StartKubelet
	}},
	{"containerd", func(s *scene, node string) func(context.Context) error {
		n := s.c.Node(node)
		must(s.T, n.KillContainerd())
		return n.StartContainerd
	}},
}

// TestParts_KilledWhileGuestRuns: whatever of the cluster is killed, the guest runs on, and moves afterwards.
func TestParts_KilledWhileGuestRuns(t *testing.T) {
	s := boot(t, newGuest("survivor"))
	for _, k := range kills {
		t.Run(k.name, func(t *testing.T) {
			inner := *s
			inner.T = t
			again := k.kill(&inner, s.vmi.Status.NodeName)
			// No log is read while the kubelet is away, so the heartbeats come later.
			inner.restore(again)
			inner.beats("", 10)
			inner.awaitRunning(s.vmi.Status.NodeName)
		})
	}
	s.migrate()
	s.unbroken()
}

// TestParts_KilledWhileGuestMoves: whatever is killed while a guest moves, on the node that it leaves or on the one that it goes to, it runs
// in the end, once, and no heartbeat is lost.
func TestParts_KilledWhileGuestMoves(t *testing.T) {
	slow(t, "8Mi")
	s := boot(t, newGuest("moving", slowly))
	for _, k := range kills {
		t.Run(k.name, func(t *testing.T) {
			inner := *s
			inner.T = t
			inner.killedWhileMoving(k.name, func() func(context.Context) error { return k.kill(&inner, inner.vmi.Status.NodeName) })
			s.vmi = inner.vmi
		})
		if k.name == "controllers" {
			continue // they are of no node
		}
		t.Run(k.name+" of the target", func(t *testing.T) {
			if k.name != "agent" {
				nightly(t)
			}
			inner := *s
			inner.T = t
			inner.killedWhileMoving(k.name, func() func(context.Context) error { return k.kill(&inner, inner.other()) })
			s.vmi = inner.vmi
		})
	}
}

// killedWhileMoving migrates the VMI, and kills something before it has arrived.
func (s *scene) killedWhileMoving(name string, kill func() (again func(context.Context) error)) {
	s.Helper()
	m := s.begin()
	s.awaitMoving(m)
	killed := time.Now()
	s.restore(kill())
	must(s.T, refcluster.Await(s.Context(), patience, "the migration to end", func(ctx context.Context) error {
		if err := s.c.Client.Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
			return err
		}
		if !m.IsFinal() {
			return fmt.Errorf("it is %s, %+v", m.Status.Phase, m.Status.MigrationState)
		}
		return nil
	}))
	// Its time has whole seconds.
	if end := m.Status.MigrationState.EndTimestamp; end == nil || end.Time.Before(killed.Truncate(time.Second)) {
		s.Fatalf("the migration ended at %v, before the %s was killed at %v: nothing is shown", end, name, killed)
	}
	s.awaitRunning("")
	s.beats(s.vmi.Status.NodeName, 3)
	s.unbroken()
	s.single()
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

// restore starts again what was killed, and waits until virtloom is ready and the nodes take guests.
func (s *scene) restore(again func(context.Context) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	if again != nil {
		must(s.T, again(ctx))
	}
	objects, err := config.Manifests()
	must(s.T, err)
	must(s.T, s.c.AwaitReady(ctx, objects))
	must(s.T, s.c.AwaitSchedulable(ctx, patience))
}

// killContainers kills the first container of an app's Pods with SIGKILL, on one node or on all.
func (s *scene) killContainers(app, on string) func(context.Context) error {
	s.Helper()
	var pods corev1.PodList
	must(s.T, s.c.Client.List(s.Context(), &pods, client.MatchingLabels{"app": app}))
	var killed []*corev1.Pod
	for i := range pods.Items {
		if p := &pods.Items[i]; on == "" || p.Spec.NodeName == on {
			must(s.T, s.c.KillContainer(s.Context(), p, p.Spec.Containers[0].Name))
			killed = append(killed, p)
		}
	}
	if len(killed) == 0 {
		s.Fatalf("no Pod of %s on %q", app, on)
	}
	return func(ctx context.Context) error { return s.restarted(ctx, killed) }
}

// restarted waits until the containers of the Pods have been started again: until then the Pods look as before.
func (s *scene) restarted(ctx context.Context, killed []*corev1.Pod) error {
	return refcluster.Await(ctx, patience, "containers to be started again", func(ctx context.Context) error {
		for _, p := range killed {
			now := &corev1.Pod{}
			if err := s.c.Client.Get(ctx, client.ObjectKeyFromObject(p), now); err != nil {
				return err
			}
			if was, is := first(p), first(now); is.ContainerID == was.ContainerID || is.State.Running == nil {
				return fmt.Errorf("container %s of %s is %+v", is.Name, p.Name, is.State)
			}
		}
		return nil
	})
}

// first returns the status of the first container of the spec.
func first(p *corev1.Pod) (s corev1.ContainerStatus) {
	for _, s = range p.Status.ContainerStatuses {
		if s.Name == p.Spec.Containers[0].Name {
			return s
		}
	}
	return s
}

// TestLauncher_Killed: a guest whose launcher is killed has failed, and status.reason says why.
func TestLauncher_Killed(t *testing.T) {
	s := boot(t, newGuest("killed"))
	pods, err := s.pods(t.Context())
	must(t, err)
	must(t, s.c.KillContainer(t.Context(), &pods[0], "compute"))
	s.awaitFailed("LauncherFailed")
}
