// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
)

func annotate(key, value string) change {
	return func(vmi *v1.VirtualMachineInstance) {
		if vmi.Annotations == nil {
			vmi.Annotations = map[string]string{}
		}
		vmi.Annotations[key] = value
	}
}

func TestMetadata(t *testing.T) {
	long := "a-very-very-long-virtual-machine-instance-name-used-for-testing-this-logic"
	label := func(key string) func(*corev1.Pod) string { return func(p *corev1.Pod) string { return p.Labels[key] } }
	annotation := func(key string) func(*corev1.Pod) string {
		return func(p *corev1.Pod) string {
			if v, ok := p.Annotations[key]; ok {
				return v
			}
			return "absent"
		}
	}
	velero := func(p *corev1.Pod) string {
		n := 0
		for key := range p.Annotations {
			if strings.Contains(key, "hook.backup.velero.io") {
				n++
			}
		}
		return strings.Repeat("x", n)
	}
	automount := func(p *corev1.Pod) string {
		if *p.Spec.AutomountServiceAccountToken {
			return "yes"
		}
		return "no"
	}
	for name, tc := range map[string]struct {
		vmi  []change
		get  func(*corev1.Pod) string
		want string
	}{
		"2 labels are copied":           {[]change{func(vmi *v1.VirtualMachineInstance) { vmi.Labels = map[string]string{"key1": "v"} }}, label("key1"), "v"},
		"labels of ours win":            {[]change{func(vmi *v1.VirtualMachineInstance) { vmi.Labels = map[string]string{"kubevirt.io": "v"} }}, label("kubevirt.io"), "virt-launcher"},
		"4 long names are cut":          {[]change{func(vmi *v1.VirtualMachineInstance) { vmi.Name = "testvmi-" + strings.Repeat("a", 63) }}, label("vm.kubevirt.io/name"), "testvmi-" + strings.Repeat("a", 55)},
		"5 identity of a long name":     {[]change{func(vmi *v1.VirtualMachineInstance) { vmi.Name = long }}, label("vmi.kubevirt.io/id"), "a-very-very-long-virtual-machine-instance-name-used-fo-88ed080c"},
		"name label follows hostname":   {[]change{func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Hostname = "host" }}, label("vm.kubevirt.io/name"), "host"},
		"7 kubectl's own":               {[]change{annotate("kubectl.kubernetes.io/last-applied-configuration", "x")}, annotation("kubectl.kubernetes.io/last-applied-configuration"), "absent"},
		"8 observed versions":           {[]change{annotate("kubevirt.io/latest-observed-api-version", "v1")}, annotation("kubevirt.io/latest-observed-api-version"), "absent"},
		"9 domain is the VMI's":         {[]change{annotate("kubevirt.io/domain", "fedora")}, annotation("kubevirt.io/domain"), "fedora"},
		"10 default container":          {[]change{annotate("kubectl.kubernetes.io/default-container", "x")}, annotation("kubectl.kubernetes.io/default-container"), "compute"},
		"13 mesh wants a token":         {[]change{annotate("sidecar.istio.io/inject", "TRUE")}, automount, "yes"},
		"14 mesh wants none":            {[]change{annotate("sidecar.istio.io/inject", "false")}, automount, "no"},
		"14 mesh label":                 {[]change{annotate("sidecar.istio.io/inject", "false")}, label("sidecar.istio.io/inject"), "false"},
		"15 overhead of a guest":        {[]change{guest("7Gi")}, annotation("kubevirt.io/memory-overhead-bytes"), "301989888"},
		"overhead cannot be set":        {[]change{annotate("kubevirt.io/memory-overhead-bytes", "1")}, annotation("kubevirt.io/memory-overhead-bytes"), "301989888"},
		"18 backup hooks":               {nil, velero, "xxxxx"},
		"19 backup hooks skipped":       {[]change{annotate("kubevirt.io/skip-backup-hooks", "T")}, velero, ""},
		"19 backup hooks, unclear":      {[]change{annotate("kubevirt.io/skip-backup-hooks", "invalid")}, velero, "xxxxx"},
		"backup hooks of the VMI lose":  {[]change{annotate("pre.hook.backup.velero.io/timeout", "1s")}, annotation("pre.hook.backup.velero.io/timeout"), "60s"},
		"mesh interfaces of masquerade": {[]change{virtio}, annotation("istio.io/reroute-virtual-interfaces"), "k6t-eth0"},
		"no mesh interfaces":            {nil, annotation("istio.io/reroute-virtual-interfaces"), "absent"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.get(launcher(t, input(newVMI(tc.vmi...))))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestArgumentsFollowTheirSource(t *testing.T) {
	gate := func(name string) func(*template.Config) {
		return func(c *template.Config) { c.FeatureGates = []string{name} }
	}
	for name, tc := range map[string]struct {
		vmi     []change
		config  func(*template.Config)
		want    string
		missing bool
	}{
		"48 firmware of arm64":     {[]change{arm64}, nil, "--ovmf-path /usr/share/AAVMF ", false},
		"firmware of s390x":        {[]change{func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Architecture = "s390x" }}, nil, "--ovmf-path  --disk", false},
		"firmware configured":      {nil, func(c *template.Config) { c.OVMFPath = "/o" }, "--ovmf-path /o ", false},
		"49 gates on by default":   {nil, nil, "--image-volume --upgrade-ordinal-ifaces", false},
		"gate off":                 {nil, func(c *template.Config) { c.DisabledFeatureGates = []string{"ImageVolume"} }, "--image-volume", true},
		"gate on":                  {nil, gate("VMStatsCollector"), "--vm-stats-collector", false},
		"50 emulation":             {nil, func(c *template.Config) { c.AllowEmulation = true }, "--allow-emulation", false},
		"no emulation":             {nil, nil, "--allow-emulation", true},
		"64 keep after failure":    {[]change{annotate("kubevirt.io/keep-launcher-alive-after-failure", "")}, nil, "--keep-after-failure", false},
		"64 do not keep":           {[]change{annotate("kubevirt.io/keep-launcher-alive-after-failure", "false")}, nil, "--keep-after-failure", true},
		"log filters":              {[]change{annotate("kubevirt.io/libvirt-log-filters", "3:qemu")}, nil, "--libvirt-log-filters 3:qemu", false},
		"crash":                    {[]change{annotate("kubevirt.io/func-test-virt-launcher-fail-fast", "")}, nil, "--simulate-crash", false},
		"nonroot":                  {[]change{func(vmi *v1.VirtualMachineInstance) { vmi.Status.RuntimeUser = 107 }}, nil, "--run-as-nonroot --image-volume", false},
		"26 nonroot by annotation": {[]change{annotate("kubevirt.io/nonroot", "")}, nil, "--run-as-nonroot", false},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(newVMI(tc.vmi...))
			if tc.config != nil {
				tc.config(&in.Config)
			}
			args := strings.Join(container(t, launcher(t, in), "compute").Args, " ")
			if strings.Contains(args, tc.want) == tc.missing {
				t.Errorf("arguments %q, looked for %q", args, tc.want)
			}
		})
	}
}

func TestConsoleLogContainer(t *testing.T) {
	yes, no := true, false
	for name, tc := range map[string]struct {
		attach, log *bool
		disabled    bool
		want        bool
	}{
		"default": {nil, nil, false, true}, "disabled in cluster": {nil, nil, true, false},
		"asked for": {nil, &yes, true, true}, "declined": {nil, &no, false, false},
		"120 TT": {&yes, &yes, false, true}, "120 TF": {&yes, &no, false, false},
		"120 FT": {&no, &yes, false, false}, "120 FF": {&no, &no, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(newVMI(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Domain.Devices.AutoattachSerialConsole, vmi.Spec.Domain.Devices.LogSerialConsole = tc.attach, tc.log
			}))
			in.Config.DisableSerialConsoleLog = tc.disabled
			if got := len(launcher(t, in).Spec.InitContainers) == 1; got != tc.want {
				t.Errorf("rendered %v, want %v", got, tc.want)
			}
		})
	}
}

func TestNodeSelectors(t *testing.T) {
	cpu := func(c v1.CPU) change { return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU = &c } }
	hz := int64(123123)
	hint := func(vmi *v1.VirtualMachineInstance) { vmi.Status.TopologyHints = &v1.TopologyHints{TSCFrequency: &hz} }
	invtsc := cpu(v1.CPU{Model: "Conroe", Features: []v1.CPUFeature{{Name: "invtsc", Policy: "require"}}})
	for name, tc := range map[string]struct {
		vmi  []change
		want string
	}{
		"129 bare":               {nil, ""},
		"129 architecture":       {[]change{func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Architecture = "AMD64" }}, "kubernetes.io/arch=amd64"},
		"130 VMI over cluster":   {[]change{func(vmi *v1.VirtualMachineInstance) { vmi.Spec.NodeSelector = map[string]string{"pool": "mine"} }}, "pool=mine"},
		"131 model and features": {[]change{cpu(v1.CPU{Model: "Conroe", Features: []v1.CPUFeature{{Name: "lahf_lm", Policy: "require"}, {Name: "mmx", Policy: "disable"}}})}, "cpu-feature.node.kubevirt.io/lahf_lm=true cpu-model.node.kubevirt.io/Conroe=true"},
		"features without model": {[]change{cpu(v1.CPU{Features: []v1.CPUFeature{{Name: "lahf_lm"}}})}, ""},
		"host model":             {[]change{cpu(v1.CPU{Model: "host-model"})}, ""},
		"132 machine":            {[]change{func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Machine = &v1.Machine{Type: "q35"} }}, "machine-type.node.kubevirt.io/q35=true"},
		"132 machine in status": {[]change{func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Machine = &v1.Machine{Type: "q35"}
			vmi.Status.Machine = &v1.Machine{Type: "pc-q35-9"}
		}}, "machine-type.node.kubevirt.io/pc-q35-9=true"},
		"133 clock frequency": {[]change{invtsc, hint}, "cpu-feature.node.kubevirt.io/invtsc=true cpu-model.node.kubevirt.io/Conroe=true scheduling.node.kubevirt.io/tsc-frequency-123123=true"},
		"133 hint alone":      {[]change{hint}, ""},
		"133 need alone":      {[]change{invtsc}, "cpu-feature.node.kubevirt.io/invtsc=true cpu-model.node.kubevirt.io/Conroe=true"},
		"dedicated":           {[]change{cpu(v1.CPU{DedicatedCPUPlacement: true, Cores: 1}), guest("1Gi")}, "kubevirt.io/cpumanager=true"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(newVMI(tc.vmi...))
			in.Config.NodeSelectors = map[string]string{"pool": "vm"}
			got := launcher(t, in).Spec.NodeSelector
			if got["kubevirt.io/schedulable"] != "true" {
				t.Error("may run on nodes that are not for guests")
			}
			delete(got, "kubevirt.io/schedulable")
			if got["pool"] == "vm" {
				delete(got, "pool")
			}
			var pairs []string
			for _, key := range slices.Sorted(maps.Keys(got)) {
				pairs = append(pairs, key+"="+got[key])
			}
			if diff := cmp.Diff(tc.want, strings.Join(pairs, " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAffinityOfANamedModelIsLeftAlone(t *testing.T) {
	vmi := newVMI(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU = &v1.CPU{Model: "Conroe"} })
	if got := launcher(t, input(vmi)).Spec.Affinity; got != nil {
		t.Errorf("got %v, want none", got)
	}
}

func TestVolumesThatAreNotTheLaunchers(t *testing.T) {
	vmi := newVMI(
		volume("inline", v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: "x"}}),
		volume("empty", v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: *quantity("1Gi")}}),
		volume("late", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "dv", Hotpluggable: true}}),
		volume("plugged", pvc("c")),
		volume("dump", v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{}}),
		func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "plugged", HotplugVolume: &v1.HotplugVolumeStatus{}}}
		},
	)
	for _, v := range launcher(t, input(vmi)).Spec.Volumes {
		if slices.Contains([]string{"inline", "empty", "late", "plugged", "dump"}, v.Name) {
			t.Errorf("volume %s is in the launcher", v.Name)
		}
	}
}

func TestImagesWithoutDigestContainers(t *testing.T) {
	vmi := newVMI(volume("r0", image("someImage")), annotate("kubevirt.io/image-volume-skip-digest-resolution", "true"))
	pod := launcher(t, input(vmi))
	if len(pod.Spec.InitContainers) != 1 {
		t.Errorf("%d init containers, want the console log alone", len(pod.Spec.InitContainers))
	}
	for _, v := range pod.Spec.Volumes {
		if v.Name == "launcher-volume" {
			t.Error("the launcher's image is mounted for nothing")
		}
	}
}

func TestPullSecretsAreListedOnce(t *testing.T) {
	secret := func(name, pull string) change {
		return volume(name, v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "i", ImagePullSecret: pull}})
	}
	in := input(newVMI(secret("a", "pull-2"), secret("b", "pull-2")))
	in.Config.ImagePullSecret = "pull-1"
	want := []corev1.LocalObjectReference{{Name: "pull-2"}, {Name: "pull-1"}}
	if diff := cmp.Diff(want, launcher(t, in).Spec.ImagePullSecrets); diff != "" {
		t.Error(diff)
	}
}

func TestEphemeralStorageOfTheLauncherIsAdded(t *testing.T) {
	vmi := newVMI(requests("ephemeral-storage", "30M"), limits("ephemeral-storage", "70M"))
	got := container(t, launcher(t, input(vmi)), "compute").Resources
	if r, l := got.Requests[corev1.ResourceEphemeralStorage], got.Limits[corev1.ResourceEphemeralStorage]; r.String() != "80M" || l.String() != "120M" {
		t.Errorf("request %s, limit %s; want 80M, 120M", r.String(), l.String())
	}
}

func TestAgentPingProbe(t *testing.T) {
	vmi := newVMI(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.ReadinessProbe = &v1.Probe{TimeoutSeconds: 5, Handler: v1.Handler{GuestAgentPing: &v1.GuestAgentPing{}}}
	})
	probe := container(t, launcher(t, input(vmi)), "compute").ReadinessProbe
	want := []string{"virt-probe", "--domainName", "default_testvmi", "--timeoutSeconds", "5", "--guestAgentPing"}
	if diff := cmp.Diff(want, probe.Exec.Command); diff != "" || probe.TimeoutSeconds != 6 {
		t.Errorf("timeout %d, command:\n%s", probe.TimeoutSeconds, diff)
	}
}
