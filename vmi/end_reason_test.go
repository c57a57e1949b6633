// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
)

// TestReason_LauncherEnded: status.reason of a VMI that has failed is the kubelet's word for the end of its launcher.
func TestReason_LauncherEnded(t *testing.T) {
	ended := func(code int32, reason string) func(*corev1.Pod) {
		return statuses(corev1.ContainerStatus{Name: "compute", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason},
		}})
	}
	evicted := func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" }
	stored := func(reason string) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) { g.Status.Reason = reason }
	}
	none := func(*v1.VirtualMachineInstance) {}
	deleting := func(g *v1.VirtualMachineInstance) { g.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }
	for name, tt := range map[string]struct {
		phase v1.VirtualMachineInstancePhase
		guest func(*v1.VirtualMachineInstance)
		pod   func(*corev1.Pod)
		want  string
	}{
		"out of memory": {v1.Failed, none, ended(137, "OOMKilled"), "OOMKilled"},
		"out of memory, which the agent saw as crash": {v1.Failed, stored("GuestCrashed"), ended(137, "OOMKilled"), "OOMKilled"},
		"evicted by the kubelet":                      {v1.Failed, none, evicted, "Evicted"},
		"killed":                                      {v1.Failed, none, ended(137, "Error"), "LauncherFailed"},
		"after a crash of the guest":                  {v1.Failed, stored("GuestCrashed"), ended(1, "Error"), "GuestCrashed"},
		"after a panic, and short of memory":          {v1.Failed, stored("GuestPanicked"), ended(137, "OOMKilled"), "GuestPanicked"},
		"it ended well":                               {v1.Failed, none, ended(0, "Completed"), ""},
		"the guest ended well":                        {v1.Succeeded, none, ended(137, "Error"), ""},
		"it runs":                                     {v1.Failed, none, statuses(container("compute", true)), ""},
		"it is being deleted":                         {v1.Failed, deleting, ended(137, "Error"), ""},
		"a text that is no reason":                    {v1.Failed, none, ended(1, "<b>all is well</b>"), "LauncherFailed"},
		"a text without end":                          {v1.Failed, none, ended(1, "A"+strings.Repeat("a", 100_000)), "LauncherFailed"},
	} {
		t.Run(name, func(t *testing.T) {
			s := vmi.Snapshot{VMI: guest(tt.phase, tt.guest, released), Pods: []*corev1.Pod{pod("p", tt.pod)}}
			if got := vmi.Decide(s, now).VMI.Status.Reason; got != tt.want {
				t.Errorf("status.reason %q, want %q", got, tt.want)
			}
		})
	}
}
