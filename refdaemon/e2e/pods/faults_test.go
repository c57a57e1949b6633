// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/internal/refcluster"
)

// TestLauncher_QEMUKilled: a guest whose QEMU is killed has failed, and status.reason says that it crashed.
func TestLauncher_QEMUKilled(t *testing.T) {
	nightly(t)
	s := boot(t, newGuest("crashed"))
	s.killQEMU()
	s.awaitFailed("GuestCrashed")
}

// TestLauncher_Hangs: the VMI's status says that its launcher does not answer, while its guest runs on and other guests of the node start and
// end. It does not say so any more when the launcher answers again.
func TestLauncher_Hangs(t *testing.T) {
	s := boot(t, newGuest("hangs"))
	_, rest := s.processes()
	processes := strings.Join(rest, " ")
	t.Cleanup(func() { s.onNode(context.Background(), "kill -CONT "+processes+" || :") }) // they may have ended by then
	s.onNode(t.Context(), "kill -STOP "+processes)
	s.awaitUnresponsive(true)
	s.beats("", 10)
	other := boot(t, newGuest("neighbour", on(s.vmi.Status.NodeName)))
	other.remove()
	s.awaitUnresponsive(true)
	s.onNode(t.Context(), "kill -CONT "+processes)
	s.awaitUnresponsive(false)
	s.awaitRunning(s.vmi.Status.NodeName)
	s.migrate()
	s.unbroken()
}

// awaitUnresponsive waits until the VMI's status says that its launcher does not answer, or does not say so.
func (s *scene) awaitUnresponsive(want bool) {
	s.Helper()
	from := time.Now()
	defer func() { s.Logf("known after %v: %t", time.Since(from), want) }()
	s.awaitStatus(fmt.Sprintf("the status to say that the launcher does not answer: %t", want), func(vmi *v1.VirtualMachineInstance) error {
		got := slices.ContainsFunc(vmi.Status.Conditions, func(c v1.VirtualMachineInstanceCondition) bool {
			return c.Type == v1.VirtualMachineInstanceSynchronized && c.Status == corev1.ConditionFalse && c.Reason == status.ReasonUnresponsive
		})
		if got != want {
			return fmt.Errorf("the conditions are %+v", vmi.Status.Conditions)
		}
		return nil
	})
}

// killQEMU kills the guest.
func (s *scene) killQEMU() {
	s.Helper()
	qemu, _ := s.processes()
	s.onNode(s.Context(), "kill -9 "+qemu)
}

// processes returns the process of the guest on its node, and the others of its launcher.
func (s *scene) processes() (qemu string, others []string) {
	s.Helper()
	pod, err := s.pod(s.Context())
	must(s.T, err)
	all, err := s.c.Processes(s.Context(), pod, "compute")
	must(s.T, err)
	for _, of := range all {
		name, pid := "", ""
		for line := range strings.Lines(of) {
			_, _ = fmt.Sscanf(line, "Name: %s", &name)
			_, _ = fmt.Sscanf(line, "Pid: %s", &pid)
		}
		if strings.HasPrefix(name, "qemu") {
			qemu = pid
		} else {
			others = append(others, pid)
		}
	}
	if qemu == "" || len(others) == 0 {
		s.Fatalf("no QEMU, or nothing else, among %d processes", len(all))
	}
	return qemu, others
}

// onNode runs a script as root of the VMI's node.
func (s *scene) onNode(ctx context.Context, script string) {
	s.Helper()
	if out, err := s.c.Node(s.vmi.Status.NodeName).Command(ctx, "sh", "-c", script).CombinedOutput(); err != nil {
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
