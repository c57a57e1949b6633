// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/refcluster"
)

var everyFault = flag.Bool("faults", false, "run the tests of faults that CI has no time for")

// TestLauncher_QEMUKilled: a guest whose QEMU is killed has failed, and status.reason says that it crashed.
func TestLauncher_QEMUKilled(t *testing.T) {
	if !*everyFault {
		return // nightly
	}
	s := boot(t, newGuest("crashed"))
	s.onNode("kill -9 " + s.qemu())
	s.awaitFailed("GuestCrashed")
}

// TestNode_Dies: all that runs on a node ends at once, as when it loses its power. Its guest is lost while nothing is known of it: it
// neither fails nor gets a second Pod. When the node has come back without it, it has failed.
func TestNode_Dies(t *testing.T) {
	if !*everyFault {
		return // nightly
	}
	s := boot(t, newGuest("mourned"))
	on := s.vmi.Status.NodeName
	must(t, s.c.Node(on).Stop(t.Context()))
	long := 3 * patience // a node counts as silent after five minutes
	must(t, refcluster.Await(t.Context(), long, "the VMI to be lost", func(ctx context.Context) error {
		if err := s.c.Client.Get(ctx, s.key, s.vmi); err != nil {
			return err
		}
		l, err := handoff.Of(s.vmi)
		if err != nil || l.State != handoff.Lost {
			return fmt.Errorf("its lease is %+v: %w", l, err)
		}
		return nil
	}))
	if s.vmi.Status.Phase != v1.Running {
		t.Errorf("nothing is known of it, and it is %s", s.vmi.Status.Phase)
	}
	must(t, s.c.StartNode(t.Context(), on))
	s.restore(nil)
	s.awaitFailed("")
	requests, err := s.c.Rig.Requests()
	must(t, err)
	pods := 0
	for i := range requests {
		if q := &requests[i]; q.What() == "create pods" && q.Accepted() && !q.DryRun() && strings.Contains(string(q.RequestObject), string(s.vmi.UID)) {
			pods++
		}
	}
	if pods != 1 {
		t.Errorf("it got %d Pods", pods)
	}
}

// qemu returns the process of the guest on its node.
func (s *scene) qemu() (pid string) {
	s.Helper()
	pods, err := s.pods(s.Context())
	must(s.T, err)
	processes, err := s.c.Processes(s.Context(), &pods[0], "compute")
	must(s.T, err)
	for _, status := range processes {
		name := ""
		for line := range strings.Lines(status) {
			_, _ = fmt.Sscanf(line, "Name: %s", &name)
			if strings.HasPrefix(name, "qemu") {
				_, _ = fmt.Sscanf(line, "Pid: %s", &pid)
			}
		}
	}
	if pid == "" {
		s.Fatalf("no QEMU among %d processes", len(processes))
	}
	return pid
}

// onNode runs a script as root of the VMI's node.
func (s *scene) onNode(script string) {
	s.Helper()
	if out, err := s.c.Node(s.vmi.Status.NodeName).Command(s.Context(), "sh", "-c", script).CombinedOutput(); err != nil {
		s.Fatalf("%v: %s", err, out)
	}
}

// awaitFailed waits until the VMI has failed for the reason, and logs how long that took.
func (s *scene) awaitFailed(reason string) {
	s.Helper()
	from := time.Now()
	must(s.T, refcluster.Await(s.Context(), patience, fmt.Sprintf("the VMI to have failed, reason %q", reason), func(ctx context.Context) error {
		if err := s.c.Client.Get(ctx, s.key, s.vmi); err != nil {
			return err
		}
		if s.vmi.Status.Phase != v1.Failed || s.vmi.Status.Reason != reason {
			return fmt.Errorf("it is %s, reason %q", s.vmi.Status.Phase, s.vmi.Status.Reason)
		}
		return nil
	}))
	s.Logf("known after %v", time.Since(from))
}
