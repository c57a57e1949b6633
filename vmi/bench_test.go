// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
)

// BenchmarkDecide measures a pass over a VMI without reads and writes.
func BenchmarkDecide(b *testing.B) {
	starting := vmi.Snapshot{VMI: guest(v1.Pending)}
	filled(cdiv1.Succeeded)(&starting)
	running := vmi.Snapshot{VMI: guest(v1.Running, lease(handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-a"})), Pods: []*corev1.Pod{pod("p")}}
	filled(cdiv1.Succeeded)(&running)
	running.VMI = vmi.Decide(running, now).VMI
	for name, s := range map[string]vmi.Snapshot{"start": starting, "at-rest": running} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				vmi.Decide(s, now)
			}
		})
	}
}
