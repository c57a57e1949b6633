// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/realcluster"
	"github.com/virtloom/virtloom/internal/rig"
)

// TestVMI_Steps logs how long each step of a start takes, from the audit log and the console, and how much memory a launcher takes
// beside QEMU: the table in docs/performance.md. Only the order of the steps is asserted.
func TestVMI_Steps(t *testing.T) {
	s := boot(t, newGuest("steps"))
	first := s.con.Ticks()[0].At
	pods, err := s.pods(t.Context())
	must(t, err)
	requests, err := s.c.Rig.Requests()
	must(t, err)
	steps := stepsOf(requests, s.vmi, pods[0].Name)
	steps = append(steps, step{"guest: first line of the console", first})
	for i := range steps {
		switch {
		case steps[i].at.IsZero():
			t.Errorf("%s is not in the audit log", steps[i].what)
		case i > 0:
			t.Logf("%8.0f ms  %s", float64(steps[i].at.Sub(steps[0].at))/float64(time.Millisecond), steps[i].what)
		}
	}
	t.Logf("memory of the launcher's programs but QEMU: %d KiB", launcherMemory(t, s.c, &pods[0]))
}

// step is something that happened, and when.
type step struct {
	what string
	at   time.Time
}

// stepsOf returns the steps of a start.
func stepsOf(requests []rig.Request, vmi *v1.VirtualMachineInstance, pod string) []step {
	steps := []step{
		{what: "API server: VMI created"}, {what: "controller: Pod created"}, {what: "scheduler: Pod bound"},
		{what: "kubelet, images, launcher: Pod running"}, {what: "controller: VMI handed to the node"}, {what: "agent, libvirt: VMI Running"},
	}
	note := func(i int, at time.Time) {
		if steps[i].at.IsZero() {
			steps[i].at = at
		}
	}
	for _, q := range requests {
		if !q.Accepted() || q.ObjectRef.Namespace != vmi.Namespace {
			continue
		}
		switch {
		case q.What() == "create virtualmachineinstances" && named(q, vmi.Name):
			note(0, q.Received)
		case q.What() == "create pods" && named(q, pod):
			note(1, q.Answered)
		case q.What() == "create pods/binding" && q.ObjectRef.Name == pod:
			note(2, q.Answered)
		case q.ObjectRef.Resource == "virtualmachineinstances" && q.ObjectRef.Name == vmi.Name && q.ResponseObject != nil:
			var o v1.VirtualMachineInstance
			if json.Unmarshal(q.ResponseObject, &o) != nil {
				continue
			}
			switch o.Status.Phase {
			case v1.Scheduled:
				note(4, q.Answered)
			case v1.Running:
				note(5, q.Answered)
			}
		case q.ObjectRef.Resource == "pods" && q.ObjectRef.Subresource == "status" && q.ObjectRef.Name == pod && strings.HasPrefix(q.User.Username, "system:node:"):
			// The last one before the VMI is handed over says that the Pod runs.
			if steps[4].at.IsZero() {
				steps[3].at = q.Answered
			}
		}
	}
	return steps
}

// named reports whether a request is about the object of that name; that of a creation may be in its body alone.
func named(q rig.Request, name string) bool {
	if q.ObjectRef.Name == name {
		return true
	}
	for _, body := range []json.RawMessage{q.RequestObject, q.ResponseObject} {
		var o struct{ Metadata struct{ Name string } }
		if json.Unmarshal(body, &o) == nil && o.Metadata.Name == name {
			return true
		}
	}
	return false
}

// launcherMemory sums the resident memory of the processes in the compute container of a Pod, QEMU left out, in KiB.
func launcherMemory(t *testing.T, c *realcluster.Cluster, pod *corev1.Pod) int {
	t.Helper()
	processes, err := c.Processes(t.Context(), pod, "compute")
	must(t, err)
	total := 0
	for _, status := range processes {
		name, kib := "", 0
		for _, line := range strings.Split(status, "\n") {
			_, _ = fmt.Sscanf(line, "Name: %s", &name)
			_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &kib)
		}
		t.Logf("%8d KiB  %s", kib, name)
		if !strings.HasPrefix(name, "qemu") {
			total += kib
		}
	}
	return total
}
