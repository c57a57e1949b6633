// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
)

type change = func(*v1.VirtualMachineInstance)

func arm64(vmi *v1.VirtualMachineInstance) { vmi.Spec.Architecture = "arm64" }

func hugepages(size string) change {
	return func(vmi *v1.VirtualMachineInstance) {
		if vmi.Spec.Domain.Memory == nil {
			vmi.Spec.Domain.Memory = &v1.Memory{}
		}
		vmi.Spec.Domain.Memory.Hugepages = &v1.Hugepages{PageSize: size}
	}
}

func isolated(n uint32) change {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.CPU = &v1.CPU{Cores: n, DedicatedCPUPlacement: true, IsolateEmulatorThread: true}
	}
}

func parity(vmi *v1.VirtualMachineInstance) {
	vmi.Annotations = map[string]string{v1.EmulatorThreadCompleteToEvenParity: ""}
}

func supplementalThreads(n uint32) change {
	return func(vmi *v1.VirtualMachineInstance) {
		policy := v1.IOThreadsPolicySupplementalPool
		vmi.Spec.Domain.IOThreadsPolicy = &policy
		vmi.Spec.Domain.IOThreads = &v1.DiskIOThreads{SupplementalPoolThreadCount: &n}
	}
}

func gpus(names ...string) change {
	return func(vmi *v1.VirtualMachineInstance) {
		for i, name := range names {
			vmi.Spec.Domain.Devices.GPUs = append(vmi.Spec.Domain.Devices.GPUs, v1.GPU{Name: fmt.Sprint("gpu", i), DeviceName: name})
		}
	}
}

func noGraphics(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Devices.AutoattachGraphicsDevice = new(bool)
}

func ratio(r string) func(*template.Input) {
	return func(in *template.Input) { in.Config.AdditionalGuestMemoryOverheadRatio = r }
}

func quota(ratioLabel string, hard corev1.ResourceList) func(*template.Input) {
	return func(in *template.Input) {
		in.Facts.Quotas = []*corev1.ResourceQuota{{Spec: corev1.ResourceQuotaSpec{Hard: hard}}}
		if ratioLabel != "" {
			in.Facts.NamespaceLabels = map[string]string{"alpha.kubevirt.io/auto-memory-limits-ratio": ratioLabel}
		}
	}
}

// diffResources compares by value, since quantities have several forms.
func diffResources(want, got corev1.ResourceList) string {
	return cmp.Diff(want, got, cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }))
}

func TestMemoryOverhead_TermsSumUp(t *testing.T) {
	vmi := newVMI(isolated(4), requests("memory", "8Gi"), gpus("x/y"), arm64, func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.LivenessProbe = &v1.Probe{Handler: v1.Handler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	})
	o := template.MemoryOverhead(template.Input{VMI: vmi, Config: template.Config{AdditionalGuestMemoryOverheadRatio: "1.2"}})
	sum := int64(0)
	for _, term := range o.Terms {
		sum += term.Amount.Value()
	}
	if sum != o.Bytes || len(o.Terms) < 12 {
		t.Errorf("%d terms sum up to %d, want %d", len(o.Terms), sum, o.Bytes)
	}
	pod := launcher(t, input(vmi, ratio("1.2")))
	if got, want := pod.Annotations[v1.MemoryOverheadAnnotationBytes], fmt.Sprint(o.Bytes); got != want {
		t.Errorf("annotated overhead %s, want %s", got, want)
	}
}
