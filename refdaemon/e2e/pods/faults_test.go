// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/refcluster"
)

// TestLauncher_QEMUKilled: a guest whose QEMU is killed has failed, and status.reason says that it crashed.
func TestLauncher_QEMUKilled(t *testing.T) {
	nightly(t)
	s := boot(t, newGuest("crashed"))
	s.onNode("kill -9 " + s.qemu())
	s.awaitFailed("GuestCrashed")
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
