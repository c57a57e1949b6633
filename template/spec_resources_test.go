// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

func changes(c ...change) change {
	return func(vmi *v1.VirtualMachineInstance) {
		for _, f := range c {
			f(vmi)
		}
	}
}

func cpu(c v1.CPU) change {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU = &c }
}

func devices(f func(*v1.Devices)) change {
	return func(vmi *v1.VirtualMachineInstance) { f(&vmi.Spec.Domain.Devices) }
}

func overcommit(percent int) func(*template.Input) {
	return func(in *template.Input) { in.Config.MemoryOvercommit = percent }
}

func allocation(ratio int) func(*template.Input) {
	return func(in *template.Input) { in.Config.CPUAllocationRatio = ratio }
}

func probes(readiness, liveness *v1.Probe) change {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.ReadinessProbe, vmi.Spec.LivenessProbe = readiness, liveness
	}
}

func execOnce() *v1.Probe {
	return &v1.Probe{Handler: v1.Handler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
}

func overcommitOverhead(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Resources.OvercommitGuestOverhead = true
}

func reserved(size string) change {
	return func(vmi *v1.VirtualMachineInstance) {
		if vmi.Spec.Domain.Memory == nil {
			vmi.Spec.Domain.Memory = &v1.Memory{}
		}
		vmi.Spec.Domain.Memory.ReservedOverhead = &v1.ReservedOverhead{AddedOverhead: quantity(size)}
	}
}

func namespaceLimit(key, value string) func(*template.Input) {
	return func(in *template.Input) {
		in.Config.AutoCPULimitNamespaceLabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"limit": "cpu"}}
		in.Facts.NamespaceLabels = map[string]string{key: value}
	}
}

// computed calculates and checks that every amount is the sum of its terms, and that the rendered container has them.
func computed(t *testing.T, in template.Input) template.Resources {
	t.Helper()
	r, err := template.ComputeResources(in)
	if err != nil {
		t.Fatal(err)
	}
	pod, err := preset(t).Launcher(in)
	if err != nil {
		t.Fatal(err)
	}
	rendered := container(t, pod, "compute").Resources
	for kind, list := range map[string]struct {
		amounts  map[corev1.ResourceName]template.Calculation
		rendered corev1.ResourceList
	}{"request": {r.Requests, rendered.Requests}, "limit": {r.Limits, rendered.Limits}} {
		for name, a := range list.amounts {
			if sum := render.Sum(a.Terms); sum.Cmp(a.Quantity) != 0 {
				t.Errorf("terms of %s %s sum up to %s, not %s: %v", kind, name, sum.String(), a.Quantity.String(), a.Terms)
			}
			if q, ok := list.rendered[name]; !ok || q.Cmp(a.Quantity) != 0 {
				t.Errorf("%s %s is rendered as %s, not %s", kind, name, q.String(), a.Quantity.String())
			}
			if a.Quantity.Sign() < 0 {
				t.Errorf("%s %s is %s", kind, name, a.Quantity.String())
			}
		}
	}
	if sum := render.Sum(r.Overhead.Terms); sum.CmpInt64(r.Overhead.Bytes) != 0 {
		t.Errorf("terms of the overhead sum up to %s, not %d", sum.String(), r.Overhead.Bytes)
	}
	if got := pod.Annotations[v1.MemoryOverheadAnnotationBytes]; got != fmt.Sprint(r.Overhead.Bytes) {
		t.Errorf("the overhead is annotated as %s, not %d", got, r.Overhead.Bytes)
	}
	return r
}

func wantAmounts(t *testing.T, kind, want string, got map[corev1.ResourceName]template.Calculation) {
	t.Helper()
	wanted := corev1.ResourceList{}
	for _, pair := range strings.Fields(want) {
		name, q, _ := strings.Cut(pair, "=")
		wanted[corev1.ResourceName(name)] = resource.MustParse(q)
	}
	list := corev1.ResourceList{}
	for name, a := range got {
		list[name] = a.Quantity
	}
	if diff := diffResources(wanted, list); diff != "" {
		t.Errorf("%ss:\n%s", kind, diff)
	}
}

// Every row also checks that the terms of each amount sum up to it. The ephemeral-storage request of 50M is implied.
func TestSpecResources(t *testing.T) {
	oneG := changes(requests("cpu", "1m", "memory", "1G"), limits("cpu", "2m", "memory", "2G"))
	quotaMemory, quotaCPU := list("limits.memory", "64G"), list("limits.cpu", "64")
	for name, tc := range map[string]struct {
		vmi              change
		config           func(*template.Input)
		overhead         int64
		requests, limits string
	}{
		"A: one CPU, guest 64Mi":                      {changes(cores(1), guest("64Mi")), nil, 301989888, "cpu=100m memory=352Mi", ""},
		"A': requests 64Mi":                           {changes(cores(1), requests("memory", "64Mi")), nil, 302120960, "cpu=100m memory=369229824", ""},
		"B: four CPUs, guest 8Gi":                     {changes(cores(4), guest("8Gi")), nil, 327155712, "cpu=400m memory=8917090304", ""},
		"B': requests 8Gi":                            {changes(cores(4), requests("memory", "8Gi")), nil, 343932928, "cpu=400m memory=8933867520", ""},
		"B: arm64":                                    {changes(cores(4), guest("8Gi"), arm64), nil, 461373440, "cpu=400m memory=9051308032", ""},
		"B: overcommit 150":                           {changes(cores(4), guest("8Gi")), overcommit(150), 327155712, "cpu=400m memory=6053778773", ""},
		"C: two dedicated, isolated emulator":         {changes(isolated(2), guest("4Gi")), nil, 415236096, "cpu=3 memory=4710203392", "cpu=3 memory=4710203392"},
		"C: parity":                                   {changes(isolated(2), guest("4Gi"), parity), nil, 415236096, "cpu=4 memory=4710203392", "cpu=4 memory=4710203392"},
		"C': requests 4Gi":                            {changes(isolated(2), requests("memory", "4Gi")), nil, 423624705, "cpu=3 memory=4718592001", "cpu=3 memory=4718592001"},
		"D: hugepages 1Gi, guest 1Gi":                 {changes(cores(1), guest("1Gi"), hugepages("1Gi")), nil, 301989888, "cpu=100m memory=288Mi hugepages-1Gi=1Gi", "hugepages-1Gi=1Gi"},
		"D': requests 1Gi":                            {changes(cores(1), guest("1Gi"), requests("memory", "1Gi"), hugepages("1Gi")), nil, 304087040, "cpu=100m memory=304087040 hugepages-1Gi=1Gi", "hugepages-1Gi=1Gi"},
		"E: one GPU":                                  {changes(cores(4), guest("8Gi"), gpus("nvidia.com/X")), nil, 1400897536, "cpu=400m memory=9990832128", ""},
		"E': requests 8Gi":                            {changes(cores(4), requests("memory", "8Gi"), gpus("nvidia.com/X")), nil, 1417674752, "cpu=400m memory=10007609344", ""},
		"F: CPU nil, requests and limits":             {oneG, nil, 303943013, "cpu=1m memory=1303943013", "cpu=2m memory=2303943013"},
		"F: arm64":                                    {changes(oneG, arm64), nil, 438160741, "cpu=1m memory=1438160741", "cpu=2m memory=2438160741"},
		"G: three cores, 64M":                         {changes(cores(3), requests("cpu", "1m", "memory", "64M")), nil, 318892104, "cpu=1m memory=382892104", ""},
		"H: ratio 1.5":                                {changes(cores(1), requests("memory", "1Gi")), ratio("1.5"), 456131040, "cpu=100m memory=1529872864", ""},
		"H: ratio 2.332":                              {changes(cores(1), requests("memory", "1Gi")), ratio("2.332"), 709132040, "cpu=100m memory=1782873864", ""},
		"I: hugepages, requests and limits 64M":       {changes(hugepages("2Mi"), requests("memory", "64M"), limits("memory", "64M")), nil, 302114888, "cpu=100m memory=302114888 hugepages-2Mi=64M", "memory=302114888 hugepages-2Mi=64M"},
		"I: arm64":                                    {changes(arm64, hugepages("2Mi"), requests("memory", "64M"), limits("memory", "64M")), nil, 436332616, "cpu=100m memory=436332616 hugepages-2Mi=64M", "memory=436332616 hugepages-2Mi=64M"},
		"J: hugepages, guest 64M, 70M":                {changes(hugepages("1Gi"), guest("64M"), requests("memory", "70M"), limits("memory", "70M")), nil, 302126606, "cpu=100m memory=308126606 hugepages-1Gi=64M", "memory=308126606 hugepages-1Gi=64M"},
		"K: quota on memory, requests 64M":            {requests("memory", "64M"), quota("", quotaMemory), 302114888, "cpu=100m memory=366114888", "memory=732229776"},
		"K: ratio 3.2":                                {requests("memory", "64M"), quota("3.2", quotaMemory), 302114888, "cpu=100m memory=366114888", "memory=1171567641"},
		"K: ratio below one counts as two":            {requests("memory", "64M"), quota("0.5", quotaMemory), 302114888, "cpu=100m memory=366114888", "memory=732229776"},
		"K: ratio that is no number counts as two":    {requests("memory", "64M"), quota("NaN", quotaMemory), 302114888, "cpu=100m memory=366114888", "memory=732229776"},
		"K: the VMI's own limit wins over the quota":  {limits("memory", "64M"), quota("", quotaMemory), 301989888, "cpu=100m memory=365989888", "memory=365989888"},
		"K: dedicated CPUs keep limits like requests": {changes(isolated(2), guest("4Gi")), quota("", quotaMemory), 415236096, "cpu=3 memory=4710203392", "cpu=3 memory=4710203392"},
		"K: hugepages beside a quota":                 {changes(cores(1), guest("1Gi"), hugepages("1Gi")), quota("", quotaMemory), 301989888, "cpu=100m memory=288Mi hugepages-1Gi=1Gi", "memory=576Mi hugepages-1Gi=1Gi"},
		"K: quota of another namespace": {requests("memory", "64M"), func(in *template.Input) {
			quota("", quotaMemory)(in)
			in.Facts.Quotas[0].Namespace = "other"
		}, 302114888, "cpu=100m memory=366114888", ""},

		"67: requests and limits":             {oneG, nil, 303943013, "cpu=1m memory=1303943013", "cpu=2m memory=2303943013"},
		"67: arm64":                           {changes(oneG, arm64), nil, 438160741, "cpu=1m memory=1438160741", "cpu=2m memory=2438160741"},
		"68: overcommit of the overhead":      {changes(oneG, overcommitOverhead), nil, 303943013, "cpu=1m memory=1G", "cpu=2m memory=2303943013"},
		"69: three cores, 64M":                {changes(cores(3), requests("memory", "64M")), nil, 318892104, "cpu=300m memory=382892104", ""},
		"69: without graphics":                {changes(cores(3), requests("memory", "64M"), noGraphics), nil, 285337672, "cpu=300m memory=349337672", ""},
		"69: arm64":                           {changes(cores(3), requests("memory", "64M"), arm64), nil, 453109832, "cpu=300m memory=517109832", ""},
		"69: arm64 without graphics":          {changes(cores(3), requests("memory", "64M"), arm64, noGraphics), nil, 419555400, "cpu=300m memory=483555400", ""},
		"72: two cores":                       {changes(isolated(2), guest("1Gi")), nil, 415236096, "cpu=3 memory=1488977920", "cpu=3 memory=1488977920"},
		"72: three cores":                     {changes(isolated(3), guest("1Gi")), nil, 423624704, "cpu=4 memory=1497366528", "cpu=4 memory=1497366528"},
		"72: three cores to parity":           {changes(isolated(3), guest("1Gi"), parity), nil, 423624704, "cpu=4 memory=1497366528", "cpu=4 memory=1497366528"},
		"72: four cores to parity":            {changes(isolated(4), guest("1Gi"), parity), nil, 432013312, "cpu=6 memory=1505755136", "cpu=6 memory=1505755136"},
		"73: five CPUs, two I/O threads":      {changes(isolated(5), guest("1Gi"), supplementalThreads(2)), nil, 440401920, "cpu=8 memory=1514143744", "cpu=8 memory=1514143744"},
		"73: six CPUs, two threads to parity": {changes(isolated(6), guest("1Gi"), supplementalThreads(2), parity), nil, 448790528, "cpu=10 memory=1522532352", "cpu=10 memory=1522532352"},
		"73, Q8: five CPUs, one thread to parity": {changes(isolated(5), guest("1Gi"), supplementalThreads(1), parity), nil, 440401920,
			"cpu=8 memory=1514143744", "cpu=8 memory=1514143744"},
		"73, Q8: six CPUs, one thread to parity": {changes(isolated(6), guest("1Gi"), supplementalThreads(1), parity), nil, 448790528,
			"cpu=8 memory=1522532352", "cpu=8 memory=1522532352"},
		"74: no topology, three CPUs": {changes(isolated(0), guest("1Gi"), requests("cpu", "3"), limits("cpu", "3")), nil, 406847488,
			"cpu=4 memory=1480589312", "cpu=4 memory=1480589312"},
		"74: no topology, limit alone": {changes(isolated(0), guest("1Gi"), limits("cpu", "3"), supplementalThreads(2)), nil, 406847488,
			"cpu=6 memory=1480589312", "cpu=6 memory=1480589312"},
		"74: no topology, request alone": {changes(isolated(0), guest("1Gi"), requests("cpu", "3")), nil, 406847488, "cpu=4 memory=1480589312", "cpu=4 memory=1480589312"},
		"74: no topology, nothing":       {changes(isolated(0), guest("1Gi")), nil, 406847488, "cpu=2 memory=1480589312", "cpu=2 memory=1480589312"},
		"75: also without memory":        {cpu(v1.CPU{Cores: 2, DedicatedCPUPlacement: true}), nil, 415236096, "cpu=2 memory=396Mi", "cpu=2 memory=396Mi"},
		"75: the memory limit is the request": {changes(cpu(v1.CPU{Cores: 2, DedicatedCPUPlacement: true}), requests("memory", "1G"), limits("memory", "2G")), nil, 417189221,
			"cpu=2 memory=1417189221", "cpu=2 memory=1417189221"},
		"76: realtime": {changes(cpu(v1.CPU{Cores: 1, DedicatedCPUPlacement: true, Realtime: &v1.Realtime{}}),
			requests("memory", "1G", "cpu", "1"), limits("memory", "1G", "cpu", "1")), nil, 408800613, "cpu=1 memory=1408800613", "cpu=1 memory=1408800613"},

		"62: ping probes cost nothing": {changes(guest("1Gi"), probes(&v1.Probe{Handler: v1.Handler{GuestAgentPing: &v1.GuestAgentPing{}}}, nil)), nil, 301989888,
			"cpu=100m memory=1312Mi", ""},
		"63: one exec probe":       {changes(guest("1Gi"), probes(execOnce(), nil)), nil, 301989888 + 110<<20, "cpu=100m memory=1422Mi", ""},
		"63: two exec probes":      {changes(guest("1Gi"), probes(execOnce(), execOnce())), nil, 301989888 + 120<<20, "cpu=100m memory=1432Mi", ""},
		"88: TPM":                  {changes(requests("memory", "1Gi"), devices(func(d *v1.Devices) { d.TPM = &v1.TPMDevice{} })), nil, 359661568, "cpu=100m memory=1433403392", ""},
		"88: TPM off":              {changes(requests("memory", "1Gi"), devices(func(d *v1.Devices) { d.TPM = &v1.TPMDevice{Enabled: new(bool)} })), nil, 304087040, "cpu=100m memory=1377828864", ""},
		"94: ratio 1.5":            {requests("memory", "1Gi"), ratio("1.5"), 456131040, "cpu=100m memory=1529872864", ""},
		"94: ratio without number": {requests("memory", "1Gi"), ratio("no_float"), 304087040, "cpu=100m memory=1377828864", ""},
		"94: ratio of infinity":    {requests("memory", "1Gi"), ratio("Inf"), 304087040, "cpu=100m memory=1377828864", ""},
		"95: reserved 100G":        {changes(guest("1Gi"), reserved("100G")), nil, 301989888 + 100e9, "cpu=100m memory=101375731712", ""},
		"97: limit alone":          {limits("memory", "2Gi"), nil, 301989888, "cpu=100m memory=2336Mi", "memory=2336Mi"},

		"Q11: overcommit does not reach hugepages": {changes(cores(1), guest("3Gi"), hugepages("1Gi")), overcommit(150), 301989888,
			"cpu=100m memory=288Mi hugepages-1Gi=3Gi", "hugepages-1Gi=3Gi"},
		"Q11: one page without guest": {changes(cores(1), hugepages("1Gi")), overcommit(150), 301989888, "cpu=100m memory=288Mi hugepages-1Gi=1Gi", "hugepages-1Gi=1Gi"},
		"Q11: a small request does not shrink hugepages": {changes(cores(1), guest("2Gi"), requests("memory", "1Gi"), hugepages("1Gi")), nil, 304087040,
			"cpu=100m memory=304087040 hugepages-1Gi=2Gi", "hugepages-1Gi=2Gi"},
		"overcommit of the overhead is not for hugepages": {changes(cores(1), guest("1Gi"), hugepages("1Gi"), overcommitOverhead), nil, 301989888,
			"cpu=100m memory=288Mi hugepages-1Gi=1Gi", "hugepages-1Gi=1Gi"},
		"overcommit below 100":                {changes(cores(1), guest("1Gi")), overcommit(50), 301989888, "cpu=100m memory=2336Mi", ""},
		"overcommit does not touch a request": {changes(cores(1), guest("1Gi"), requests("memory", "1Gi")), overcommit(150), 304087040, "cpu=100m memory=1377828864", ""},
		"Q13: a CPU without topology":         {changes(cores(0), guest("1Gi")), nil, 301989888, "memory=1312Mi", ""},
		"Q13: with threads":                   {changes(cores(0), guest("1Gi"), supplementalThreads(2)), nil, 301989888, "cpu=200m memory=1312Mi", ""},
		"Q15: sixteen GPUs cost as one": {changes(cores(1), guest("1Gi"), gpus(strings.Split(strings.Repeat(" x.com/y", 16)[1:], " ")...)), nil, 301989888 + 1<<30,
			"cpu=100m memory=2336Mi", ""},
		"threads beside shared CPUs":         {changes(cores(3), guest("1Gi"), supplementalThreads(2)), nil, 318767104, "cpu=500m memory=1328Mi", ""},
		"thirds of a CPU":                    {changes(cores(1), guest("1Gi"), supplementalThreads(1)), allocation(3), 301989888, "cpu=666666667n memory=1312Mi", ""},
		"sixteenths of a CPU":                {changes(cores(5), guest("1Gi")), allocation(16), 335544320, "cpu=312500u memory=1344Mi", ""},
		"quota on CPU":                       {changes(cores(3), guest("1Gi"), supplementalThreads(2)), quota("", quotaCPU), 318767104, "cpu=500m memory=1328Mi", "cpu=5"},
		"quota on CPU, the VMI's limit wins": {changes(cores(3), guest("1Gi"), limits("cpu", "2")), quota("", quotaCPU), 318767104, "cpu=300m memory=1328Mi", "cpu=2"},
		"quota on CPU below the request":     {changes(cores(1), guest("1Gi"), requests("cpu", "4")), quota("", quotaCPU), 301989888, "cpu=4 memory=1312Mi", "cpu=4"},
		"selected namespace":                 {changes(cores(3), guest("1Gi")), namespaceLimit("limit", "cpu"), 318767104, "cpu=300m memory=1328Mi", "cpu=3"},
		"namespace that is not selected":     {changes(cores(3), guest("1Gi")), namespaceLimit("limit", "none"), 318767104, "cpu=300m memory=1328Mi", ""},
		"namespace without labels": {changes(cores(3), guest("1Gi")), func(in *template.Input) {
			namespaceLimit("limit", "cpu")(in)
			in.Facts.NamespaceLabels = nil
		}, 318767104, "cpu=300m memory=1328Mi", ""},
		"impossible selector of namespaces": {changes(cores(3), guest("1Gi")), func(in *template.Input) {
			namespaceLimit("limit", "cpu")(in)
			in.Config.AutoCPULimitNamespaceLabelSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Sometimes"}}
		}, 318767104, "cpu=300m memory=1328Mi", ""},
		"a low limit cuts the calculated request": {changes(cores(4), guest("1Gi"), limits("cpu", "50m")), nil, 327155712, "cpu=50m memory=1336Mi", "cpu=50m"},
		"zero is no limit":                        {changes(cores(1), guest("1Gi"), limits("cpu", "0", "memory", "0")), nil, 301989888, "cpu=100m memory=1312Mi", ""},
		"zero memory is no request":               {changes(cores(1), guest("1Gi"), requests("memory", "0")), nil, 301989888, "cpu=100m memory=1312Mi", ""},
		"parts of a byte":                         {requests("memory", "1500m"), nil, 301989889, "cpu=100m memory=301989890500m", ""},
		"other resources pass":                    {changes(guest("1Gi"), requests("example.com/x", "2"), limits("example.com/x", "2")), nil, 301989888, "cpu=100m memory=1312Mi example.com/x=2", "example.com/x=2"},
	} {
		t.Run(name, func(t *testing.T) {
			in := presetInput(newVMI(virtio, tc.vmi))
			if tc.config != nil {
				tc.config(&in)
			}
			r := computed(t, in)
			if r.Overhead.Bytes != tc.overhead {
				t.Errorf("overhead %d, want %d: %v", r.Overhead.Bytes, tc.overhead, r.Overhead.Terms)
			}
			wantAmounts(t, "request", tc.requests+" ephemeral-storage=50M", r.Requests)
			wantAmounts(t, "limit", tc.limits, r.Limits)
		})
	}
}

// Ephemeral storage is not part of the other table.
func TestSpecEphemeralStorage(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi            change
		request, limit string
	}{
		"91: request and limit": {changes(requests("ephemeral-storage", "30M"), limits("ephemeral-storage", "70M")), "80M", "120M"},
		"91: no limit":          {requests("ephemeral-storage", "30M"), "80M", ""},
		"91: nothing":           {guest("1Gi"), "50M", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := computed(t, presetInput(newVMI(tc.vmi)))
			wantAmounts(t, "request", "cpu=100m ephemeral-storage="+tc.request, without(r.Requests, corev1.ResourceMemory))
			limits := ""
			if tc.limit != "" {
				limits = "ephemeral-storage=" + tc.limit
			}
			wantAmounts(t, "limit", limits, r.Limits)
		})
	}
}

func without(amounts map[corev1.ResourceName]template.Calculation, name corev1.ResourceName) map[corev1.ResourceName]template.Calculation {
	delete(amounts, name)
	return amounts
}

// TestSpecOverheadAnnotation is case 15.
func TestSpecOverheadAnnotation(t *testing.T) {
	for _, size := range []string{"1Mi", "64Mi", "8Gi", "512Gi", "4Ti"} {
		pod := presetLauncher(t, newVMI(guest(size)))
		if got := pod.Annotations[v1.MemoryOverheadAnnotationBytes]; got != "301989888" {
			t.Errorf("15: guest of %s has an overhead of %s", size, got)
		}
	}
}

func TestSpecDedicatedNode(t *testing.T) {
	pod := presetLauncher(t, newVMI(cpu(v1.CPU{Cores: 2, DedicatedCPUPlacement: true}), guest("1Gi")))
	if got := pod.Spec.NodeSelector[v1.CPUManager]; got != "true" {
		t.Errorf("75: CPU manager %q", got)
	}
}

func TestExplain_TermsOfAmounts(t *testing.T) {
	in := presetInput(newVMI(virtio, cores(4), guest("8Gi"), gpus("nvidia.com/X", "nvidia.com/X"), supplementalThreads(2)), quota("", list("limits.memory", "1Ti", "limits.cpu", "9")))
	e, err := preset(t).Explain(render.LauncherPod, in)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, path := range []string{
		"spec.containers[compute].resources.requests[memory]", "spec.containers[compute].resources.requests.cpu",
		"spec.containers[compute].resources.requests[nvidia.com/X]", "spec.containers[compute].resources.limits[memory]",
		"metadata.annotations[kubevirt.io/memory-overhead-bytes]",
	} {
		origin := originAt(t, e, path)
		sum := render.Sum(origin.Terms)
		got[path] = fmt.Sprint(sum.Value(), " of ", len(origin.Terms))
	}
	want := map[string]string{
		"spec.containers[compute].resources.requests[memory]":       "9990832128 of 10",
		"spec.containers[compute].resources.requests.cpu":           "1 of 2",
		"spec.containers[compute].resources.requests[nvidia.com/X]": "2 of 2",
		"spec.containers[compute].resources.limits[memory]":         "19981664256 of 11",
		"metadata.annotations[kubevirt.io/memory-overhead-bytes]":   "1400897536 of 9",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
