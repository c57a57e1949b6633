// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"strings"
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

// withDevices adds what every Pod of the table has.
func withDevices(l corev1.ResourceList) corev1.ResourceList {
	for _, name := range []corev1.ResourceName{"devices.kubevirt.io/kvm", "devices.kubevirt.io/tun", "devices.kubevirt.io/vhost-net"} {
		l[name] = resource.MustParse("1")
	}
	return l
}

// The rows are the worked examples of KubeVirt's arithmetic. A row without memory limit has none.
func TestResourcesOfWorkedExamples(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi      []change
		config   []func(*template.Input)
		overhead int64
		requests corev1.ResourceList
		limits   corev1.ResourceList
	}{
		"A one vCPU, guest 64Mi":  {[]change{cores(1), guest("64Mi")}, nil, 301989888, list("cpu", "100m", "memory", "369098752"), list()},
		"A' requests 64Mi":        {[]change{cores(1), requests("memory", "64Mi")}, nil, 302120960, list("cpu", "100m", "memory", "369229824"), list()},
		"B four vCPUs, guest 8Gi": {[]change{cores(4), guest("8Gi")}, nil, 327155712, list("cpu", "400m", "memory", "8917090304"), list()},
		"B' requests 8Gi":         {[]change{cores(4), requests("memory", "8Gi")}, nil, 343932928, list("cpu", "400m", "memory", "8933867520"), list()},
		"B on arm64":              {[]change{cores(4), guest("8Gi"), arm64}, nil, 461373440, list("cpu", "400m", "memory", "9051308032"), list()},
		"B overcommit 150": {[]change{cores(4), guest("8Gi")}, []func(*template.Input){func(in *template.Input) { in.Config.MemoryOvercommit = 150 }},
			327155712, list("cpu", "400m", "memory", "6053778773"), list()},
		"C two dedicated and the emulator": {[]change{isolated(2), guest("4Gi")}, nil, 415236096,
			list("cpu", "3", "memory", "4710203392"), list("cpu", "3", "memory", "4710203392")},
		"C to even parity": {[]change{isolated(2), guest("4Gi"), parity}, nil, 415236096,
			list("cpu", "4", "memory", "4710203392"), list("cpu", "4", "memory", "4710203392")},
		"C' requests 4Gi": {[]change{isolated(2), requests("memory", "4Gi")}, nil, 423624705,
			list("cpu", "3", "memory", "4718592001"), list("cpu", "3", "memory", "4718592001")},
		"D hugepages, guest 1Gi": {[]change{cores(1), guest("1Gi"), hugepages("1Gi")}, nil, 301989888,
			list("cpu", "100m", "memory", "288Mi", "hugepages-1Gi", "1Gi"), list("hugepages-1Gi", "1Gi")},
		"D' requests 1Gi": {[]change{cores(1), guest("1Gi"), requests("memory", "1Gi"), hugepages("1Gi")}, nil, 304087040,
			list("cpu", "100m", "memory", "304087040", "hugepages-1Gi", "1Gi"), list("hugepages-1Gi", "1Gi")},
		"E one GPU": {[]change{cores(4), guest("8Gi"), gpus("nvidia.com/X")}, nil, 1400897536,
			list("cpu", "400m", "memory", "9990832128", "nvidia.com/X", "1"), list("nvidia.com/X", "1")},
		"E' requests 8Gi": {[]change{cores(4), requests("memory", "8Gi"), gpus("nvidia.com/X")}, nil, 1417674752,
			list("cpu", "400m", "memory", "10007609344", "nvidia.com/X", "1"), list("nvidia.com/X", "1")},
		"E two of one GPU": {[]change{cores(4), guest("8Gi"), gpus("nvidia.com/X", "nvidia.com/X")}, nil, 1400897536,
			list("cpu", "400m", "memory", "9990832128", "nvidia.com/X", "2"), list("nvidia.com/X", "2")},
		"F requests and limits": {[]change{requests("cpu", "1m", "memory", "1G"), limits("cpu", "2m", "memory", "2G")}, nil, 303943013,
			list("cpu", "1m", "memory", "1303943013"), list("cpu", "2m", "memory", "2303943013")},
		"F on arm64": {[]change{arm64, requests("cpu", "1m", "memory", "1G"), limits("cpu", "2m", "memory", "2G")}, nil, 438160741,
			list("cpu", "1m", "memory", "1438160741"), list("cpu", "2m", "memory", "2438160741")},
		"F overcommit of the overhead": {[]change{requests("cpu", "1m", "memory", "1G"), limits("cpu", "2m", "memory", "2G"),
			func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Resources.OvercommitGuestOverhead = true }}, nil, 303943013,
			list("cpu", "1m", "memory", "1G"), list("cpu", "2m", "memory", "2303943013")},
		"G three cores": {[]change{cores(3), requests("cpu", "1m", "memory", "64M")}, nil, 318892104, list("cpu", "1m", "memory", "382892104"), list()},
		"G no graphics": {[]change{cores(3), requests("cpu", "1m", "memory", "64M"), noGraphics}, nil, 285337672, list("cpu", "1m", "memory", "349337672"), list()},
		"G on arm64":    {[]change{cores(3), requests("cpu", "1m", "memory", "64M"), arm64}, nil, 453109832, list("cpu", "1m", "memory", "517109832"), list()},
		"G on arm64, no graphics": {[]change{cores(3), requests("cpu", "1m", "memory", "64M"), arm64, noGraphics}, nil, 419555400,
			list("cpu", "1m", "memory", "483555400"), list()},
		"H ratio 1.5": {[]change{cores(1), requests("memory", "1Gi")}, []func(*template.Input){ratio("1.5")}, 456131040,
			list("cpu", "100m", "memory", "1529872864"), list()},
		"H ratio 2.332": {[]change{cores(1), requests("memory", "1Gi")}, []func(*template.Input){ratio("2.332")}, 709132040,
			list("cpu", "100m", "memory", "1782873864"), list()},
		"H ratio that is no number": {[]change{cores(1), requests("memory", "1Gi")}, []func(*template.Input){ratio("no_float")}, 304087040,
			list("cpu", "100m", "memory", "1377828864"), list()},
		"I hugepages without guest": {[]change{hugepages("2Mi"), requests("memory", "64M"), limits("memory", "64M")}, nil, 302114888,
			list("cpu", "100m", "memory", "302114888", "hugepages-2Mi", "64M"), list("memory", "302114888", "hugepages-2Mi", "64M")},
		"I on arm64": {[]change{arm64, hugepages("2Mi"), requests("memory", "64M"), limits("memory", "64M")}, nil, 436332616,
			list("cpu", "100m", "memory", "436332616", "hugepages-2Mi", "64M"), list("memory", "436332616", "hugepages-2Mi", "64M")},
		"J hugepages, guest smaller than request": {[]change{hugepages("1Gi"), guest("64M"), requests("memory", "70M"), limits("memory", "70M")}, nil, 302126606,
			list("cpu", "100m", "memory", "308126606", "hugepages-1Gi", "64M"), list("memory", "308126606", "hugepages-1Gi", "64M")},
		"K quota on memory": {[]change{requests("memory", "64M")}, []func(*template.Input){quota("", list("limits.memory", "64G"))}, 302114888,
			list("cpu", "100m", "memory", "366114888"), list("memory", "732229776")},
		"K quota on memory, ratio 3.2": {[]change{requests("memory", "64M")}, []func(*template.Input){quota("3.2", list("limits.memory", "64G"))}, 302114888,
			list("cpu", "100m", "memory", "366114888"), list("memory", "1171567641")},
		"K ratio below one counts as two": {[]change{requests("memory", "64M")}, []func(*template.Input){quota("0.5", list("limits.memory", "64G"))}, 302114888,
			list("cpu", "100m", "memory", "366114888"), list("memory", "732229776")},
		"quota on CPU": {[]change{cores(3), requests("memory", "64M")}, []func(*template.Input){quota("", list("limits.cpu", "64"))}, 318892104,
			list("cpu", "300m", "memory", "382892104"), list("cpu", "3")},

		"72 dedicated three cores": {[]change{isolated(3), guest("1Gi")}, nil, 423624704, list("cpu", "4", "memory", "1497366528"), list("cpu", "4", "memory", "1497366528")},
		"72 three cores to parity": {[]change{isolated(3), guest("1Gi"), parity}, nil, 423624704, list("cpu", "4", "memory", "1497366528"), list("cpu", "4", "memory", "1497366528")},
		"72 four cores to parity":  {[]change{isolated(4), guest("1Gi"), parity}, nil, 432013312, list("cpu", "6", "memory", "1505755136"), list("cpu", "6", "memory", "1505755136")},
		"73 with I/O threads": {[]change{isolated(5), guest("1Gi"), supplementalThreads(2)}, nil, 440401920,
			list("cpu", "8", "memory", "1514143744"), list("cpu", "8", "memory", "1514143744")},
		"73 with I/O threads to parity": {[]change{isolated(6), guest("1Gi"), supplementalThreads(2), parity}, nil, 448790528,
			list("cpu", "10", "memory", "1522532352"), list("cpu", "10", "memory", "1522532352")},
		"74 dedicated without topology": {[]change{isolated(0), guest("1Gi"), requests("cpu", "3"), limits("cpu", "3")}, nil, 406847488,
			list("cpu", "4", "memory", "1480589312"), list("cpu", "4", "memory", "1480589312")},
		"88 TPM": {[]change{cores(1), requests("memory", "1Gi"), func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{} }}, nil, 359661568,
			list("cpu", "100m", "memory", "1433403392"), list()},
		"95 reserved overhead": {[]change{cores(1), guest("1Gi"), func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Memory.ReservedOverhead = &v1.ReservedOverhead{AddedOverhead: quantity("100G")}
		}}, nil, 100301989888, list("cpu", "100m", "memory", "101375731712"), list()},
		"97 limit only": {[]change{cores(1), limits("memory", "2Gi")}, nil, 301989888,
			list("cpu", "100m", "memory", "2449473536"), list("memory", "2449473536")},
		"5 CPUs at ratio 16": {[]change{cores(5), guest("1Gi")}, []func(*template.Input){func(in *template.Input) { in.Config.CPUAllocationRatio = 16 }}, 335544320,
			list("cpu", "312500u", "memory", "1409286144"), list()},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := newVMI(append([]change{virtio}, tc.vmi...)...)
			got := container(t, launcher(t, input(vmi, tc.config...)), "compute").Resources
			wantRequests := tc.requests
			wantRequests[corev1.ResourceEphemeralStorage] = resource.MustParse("50M")
			if diff := diffResources(wantRequests, got.Requests); diff != "" {
				t.Errorf("requests:\n%s", diff)
			}
			if diff := diffResources(withDevices(tc.limits), got.Limits); diff != "" {
				t.Errorf("limits:\n%s", diff)
			}
			overhead := template.MemoryOverhead(input(vmi, tc.config...))
			if overhead.Bytes != tc.overhead {
				t.Errorf("overhead %d, want %d: %v", overhead.Bytes, tc.overhead, overhead.Terms)
			}
		})
	}
}

// diffResources compares by value, as quantities have several spellings.
func diffResources(want, got corev1.ResourceList) string {
	return cmp.Diff(want, got, cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }))
}

func TestOverheadTermsSumUp(t *testing.T) {
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

func TestDeviceLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi    []change
		config func(*template.Input)
		want   string
	}{
		"no interface":     {nil, nil, "kvm tun"},
		"virtio interface": {[]change{virtio}, nil, "kvm tun vhost-net"},
		"e1000 interface": {[]change{virtio, func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces[0].Model = "e1000"
		}}, nil, "kvm tun"},
		"emulation":      {[]change{virtio}, func(in *template.Input) { in.Config.AllowEmulation = true }, "tun"},
		"no pod network": {[]change{func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Devices.AutoattachPodInterface = new(bool) }}, nil, "kvm"},
		"vsock": {[]change{func(vmi *v1.VirtualMachineInstance) {
			yes := true
			vmi.Spec.Domain.Devices.AutoattachVSOCK = &yes
		}}, nil, "kvm tun vhost-vsock"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(newVMI(tc.vmi...))
			if tc.config != nil {
				tc.config(&in)
			}
			limits := container(t, launcher(t, in), "compute").Resources.Limits
			var got []string
			for _, device := range []string{"kvm", "tun", "vhost-net", "vhost-vsock"} {
				if _, ok := limits[corev1.ResourceName("devices.kubevirt.io/"+device)]; ok {
					got = append(got, device)
				}
			}
			if diff := cmp.Diff(tc.want, strings.Join(got, " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}
