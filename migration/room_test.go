// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

func TestRoom_TargetLabels(t *testing.T) {
	changing := func(types ...v1.VirtualMachineInstanceConditionType) func(*world) {
		return func(w *world) {
			for _, c := range types {
				w.VMI.Status.Conditions = append(w.VMI.Status.Conditions, v1.VirtualMachineInstanceCondition{Type: c, Status: corev1.ConditionTrue})
			}
		}
	}
	dedicated := func(w *world) { w.VMI.Spec.Domain.CPU = &v1.CPU{DedicatedCPUPlacement: true} }
	const cpus, memory = v1.VirtualMachinePodCPULimitsLabel, v1.VirtualMachinePodMemoryRequestsLabel
	for name, tc := range map[string]struct {
		given []func(*world)
		want  map[string]string
	}{
		"S14/97 dedicated CPUs":             {[]func(*world){dedicated, changing(v1.VirtualMachineInstanceVCPUChange)}, map[string]string{cpus: "4"}},
		"CPUs that are shared":              {[]func(*world){changing(v1.VirtualMachineInstanceVCPUChange)}, map[string]string{}},
		"dedicated CPUs that do not change": {[]func(*world){dedicated}, map[string]string{}},
		"memory, huge pages included":       {[]func(*world){changing(v1.VirtualMachineInstanceMemoryChange)}, map[string]string{memory: "1344Mi"}},
		"both": {[]func(*world){dedicated, changing(v1.VirtualMachineInstanceMemoryChange, v1.VirtualMachineInstanceVCPUChange)},
			map[string]string{cpus: "4", memory: "1344Mi"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Until(v1.MigrationScheduling)
			for _, g := range tc.given {
				g(w)
			}
			w.Pods["dst"].Spec.Containers = []corev1.Container{{Name: "sidecar"}, {Name: migration.ComputeContainer, Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
				Requests: corev1.ResourceList{
					corev1.ResourceMemory: resource.MustParse("320Mi"), "hugepages-2Mi": resource.MustParse("1Gi"),
				},
			}}}
			w.PodBecomesReady(targetNode)
			w.Passes()
			got := map[string]string{}
			for _, label := range []string{cpus, memory} {
				if value, found := w.VMI.Labels[label]; found {
					got[label] = value
				}
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("labels (-want +got):\n%s", d)
			}
		})
	}
}
