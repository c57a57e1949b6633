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
	"github.com/virtloom/virtloom/template/render"
)

func arch(name string) change {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Architecture = name }
}

func cpuOf(cpu v1.CPU) change {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU = &cpu }
}

func hyperv(f v1.FeatureHyperv) change {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Features = &v1.Features{Hyperv: &f} }
}

func selectors(pairs map[string]string) change {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.NodeSelector = pairs }
}

func secured(s v1.LaunchSecurity) change {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.LaunchSecurity = &s }
}

func hint(hz int64) change {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Status.TopologyHints = &v1.TopologyHints{TSCFrequency: &hz} }
}

func machines(spec, status string) change {
	return func(vmi *v1.VirtualMachineInstance) {
		if spec != "" {
			vmi.Spec.Domain.Machine = &v1.Machine{Type: spec}
		}
		if status != "" {
			vmi.Status.Machine = &v1.Machine{Type: status}
		}
	}
}

// pairs returns a map as sorted key=value, without the selectors of every launcher.
func pairs(m map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if key != v1.NodeSchedulable {
			out = append(out, key+"="+m[key])
		}
	}
	return strings.Join(out, " ")
}

func labelled(prefix string, names ...string) string {
	slices.Sort(names)
	for i := range names {
		names[i] = prefix + names[i] + "=true"
	}
	return strings.Join(names, " ")
}

func TestSpecNodeSelectors(t *testing.T) {
	yes, no := true, false
	on, off := &v1.FeatureState{Enabled: &yes}, &v1.FeatureState{Enabled: &no}
	everyHyperv := v1.FeatureHyperv{
		Relaxed: on, VAPIC: on, Spinlocks: &v1.FeatureSpinlocks{FeatureState: *on}, VPIndex: on, Runtime: on, SyNIC: on,
		SyNICTimer: &v1.SyNICTimer{FeatureState: *on}, Reset: on, VendorID: &v1.FeatureVendorID{FeatureState: *on},
		Frequencies: on, Reenlightenment: on, TLBFlush: &v1.TLBFlush{FeatureState: *on}, IPI: on, EVMCS: on,
	}
	strict := gates("HypervStrictCheck")
	invtsc := func(policy string) change {
		return cpuOf(v1.CPU{Model: "Conroe", Features: []v1.CPUFeature{{Name: "invtsc", Policy: policy}}})
	}
	const (
		conroe    = "cpu-model.node.kubevirt.io/Conroe=true"
		frequency = "scheduling.node.kubevirt.io/tsc-frequency-123123=true"
		intel     = "cpu-vendor.node.kubevirt.io/Intel=true"
	)
	for name, tc := range map[string]struct {
		vmi    []change
		config []func(*template.Input)
		want   string
	}{
		"129: architecture":          {[]change{arch("amd64")}, nil, "kubernetes.io/arch=amd64"},
		"129: no architecture":       {nil, nil, ""},
		"129: capital letters":       {[]change{arch("ARM64")}, nil, "kubernetes.io/arch=arm64"},
		"129: the VMI's own arch":    {[]change{arch("amd64"), selectors(map[string]string{"kubernetes.io/arch": "s390x"})}, nil, "kubernetes.io/arch=s390x"},
		"130: VMI over cluster":      {[]change{selectors(map[string]string{"kubernetes.io/hostname": "master"})}, []func(*template.Input){clusterSelector("kubernetes.io/hostname", "node02")}, "kubernetes.io/hostname=master"},
		"130: cluster alone":         {nil, []func(*template.Input){clusterSelector("pool", "vm")}, "pool=vm"},
		"130: labels of features":    {[]change{selectors(map[string]string{v1.CPUManager: "false"}), cpuOf(v1.CPU{Cores: 1, DedicatedCPUPlacement: true}), guest("1Gi")}, nil, "kubevirt.io/cpumanager=true"},
		"131: model and features":    {[]change{cpuOf(v1.CPU{Model: "Conroe", Features: []v1.CPUFeature{{Name: "lahf_lm", Policy: "require"}, {Name: "mmx", Policy: "disable"}}})}, nil, "cpu-feature.node.kubevirt.io/lahf_lm=true " + conroe},
		"131: feature of no policy":  {[]change{cpuOf(v1.CPU{Model: "Conroe", Features: []v1.CPUFeature{{Name: "lahf_lm"}}})}, nil, "cpu-feature.node.kubevirt.io/lahf_lm=true " + conroe},
		"131: other policies":        {[]change{cpuOf(v1.CPU{Model: "Conroe", Features: []v1.CPUFeature{{Name: "a", Policy: "force"}, {Name: "b", Policy: "optional"}, {Name: "c", Policy: "forbid"}}})}, nil, conroe},
		"131: host-passthrough":      {[]change{cpuOf(v1.CPU{Model: "host-passthrough", Features: []v1.CPUFeature{{Name: "a"}}})}, nil, "cpu-feature.node.kubevirt.io/a=true"},
		"131: host-model":            {[]change{cpuOf(v1.CPU{Model: "host-model"})}, nil, ""},
		"131: features of no model":  {[]change{cpuOf(v1.CPU{Features: []v1.CPUFeature{{Name: "a", Policy: "require"}}})}, nil, ""},
		"132: machine of the spec":   {[]change{machines("q35", "")}, nil, "machine-type.node.kubevirt.io/q35=true"},
		"132: machine of the status": {[]change{machines("q35", "pc-q35-rhel9.6.0")}, nil, "machine-type.node.kubevirt.io/pc-q35-rhel9.6.0=true"},
		"133: hint and need":         {[]change{invtsc("require"), hint(123123)}, nil, "cpu-feature.node.kubevirt.io/invtsc=true " + conroe + " " + frequency},
		"133: forced":                {[]change{invtsc("force"), hint(123123)}, nil, conroe + " " + frequency},
		"133: need without hint":     {[]change{invtsc("require")}, nil, "cpu-feature.node.kubevirt.io/invtsc=true " + conroe},
		"133: hint of nothing":       {[]change{invtsc("require"), hint(0)}, nil, "cpu-feature.node.kubevirt.io/invtsc=true " + conroe},
		"133: hint without need":     {[]change{hint(123123)}, nil, ""},
		"133: feature disabled":      {[]change{invtsc("disable"), hint(123123)}, nil, conroe},
		"133: reenlightenment":       {[]change{hyperv(v1.FeatureHyperv{Reenlightenment: on}), hint(123123)}, nil, frequency},
		"133: reenlightenment off":   {[]change{hyperv(v1.FeatureHyperv{Reenlightenment: off}), hint(123123)}, nil, ""},
		"134: every feature":         {[]change{hyperv(everyHyperv)}, []func(*template.Input){strict}, intel + " " + labelled("hyperv.node.kubevirt.io/", "vpindex", "runtime", "reset", "synic", "synictimer", "frequencies", "reenlightenment", "tlbflush", "ipi")},
		"134: gate off":              {[]change{hyperv(everyHyperv)}, nil, ""},
		"134: evmcs by naming it":    {[]change{hyperv(v1.FeatureHyperv{EVMCS: &v1.FeatureState{}})}, []func(*template.Input){strict}, intel},
		"134: evmcs off":             {[]change{hyperv(v1.FeatureHyperv{EVMCS: off})}, []func(*template.Input){strict}, ""},
		"134: naming is not enough":  {[]change{hyperv(v1.FeatureHyperv{SyNIC: &v1.FeatureState{}, SyNICTimer: &v1.SyNICTimer{}, TLBFlush: &v1.TLBFlush{}, IPI: off})}, []func(*template.Input){strict}, ""},
		"134: on every node":         {[]change{hyperv(v1.FeatureHyperv{Relaxed: on, VAPIC: on, Spinlocks: &v1.FeatureSpinlocks{FeatureState: *on}})}, []func(*template.Input){strict}, ""},
		"realtime":                   {[]change{cpuOf(v1.CPU{Model: "host-passthrough", Cores: 1, DedicatedCPUPlacement: true, Realtime: &v1.Realtime{}}), guest("1Gi")}, nil, "kubevirt.io/cpumanager=true kubevirt.io/realtime=true"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := presetLauncher(t, newVMI(tc.vmi...), tc.config...)
			if pod.Spec.NodeSelector[v1.NodeSchedulable] != "true" {
				t.Error("may run on nodes that are not schedulable for VMIs")
			}
			if diff := cmp.Diff(tc.want, pairs(pod.Spec.NodeSelector)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func clusterSelector(key, value string) func(*template.Input) {
	return func(in *template.Input) { in.Config.NodeSelectors = map[string]string{key: value} }
}

// TestSpecNodesOfConfidentialGuests runs the stage only: the labels are independent of the other requirements of such VMIs.
func TestSpecNodesOfConfidentialGuests(t *testing.T) {
	yes, no := true, false
	for name, tc := range map[string]struct {
		vmi  []change
		want string
	}{
		"SEV":                         {[]change{secured(v1.LaunchSecurity{SEV: &v1.SEV{}})}, "kubevirt.io/sev=true"},
		"SEV-ES":                      {[]change{secured(v1.LaunchSecurity{SEV: &v1.SEV{Policy: &v1.SEVPolicy{EncryptedState: &yes}}})}, "kubevirt.io/sev=true kubevirt.io/sev-es=true"},
		"SEV without encrypted state": {[]change{secured(v1.LaunchSecurity{SEV: &v1.SEV{Policy: &v1.SEVPolicy{EncryptedState: &no}}})}, "kubevirt.io/sev=true"},
		"SEV-SNP":                     {[]change{secured(v1.LaunchSecurity{SNP: &v1.SEVSNP{}})}, "kubevirt.io/sev=true kubevirt.io/sev-snp=true"},
		"TDX":                         {[]change{secured(v1.LaunchSecurity{TDX: &v1.TDX{}}), arch("amd64")}, "kubernetes.io/arch=amd64 kubevirt.io/tdx=true"},
		"Secure Execution":            {[]change{secured(v1.LaunchSecurity{}), arch("s390x")}, "kubernetes.io/arch=s390x kubevirt.io/s390-pv=true"},
		"nothing chosen":              {[]change{secured(v1.LaunchSecurity{}), arch("amd64")}, "kubernetes.io/arch=amd64"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := preset(t).Remove(template.StageSupported)
			if err != nil {
				t.Fatal(err)
			}
			pod, err := r.Launcher(presetInput(newVMI(tc.vmi...)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, pairs(pod.Spec.NodeSelector)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSpecCrossArchitecture is case 45.
func TestSpecCrossArchitecture(t *testing.T) {
	const gate = "CrossArchitectureVirtualization"
	vmi := newVMI(arch("ARM64"), selectors(map[string]string{"kubernetes.io/arch": "arm64", "rack": "1"}))
	pod := presetLauncher(t, vmi, gates(gate), clusterSelector("kubernetes.io/arch", "amd64"))
	if diff := cmp.Diff("kubevirt.io/vm-arch-arm64=true rack=1", pairs(pod.Spec.NodeSelector)); diff != "" {
		t.Error(diff)
	}
	want := []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "kubernetes.io/arch", Operator: "In", Values: []string{"arm64"}}},
	}}}
	if diff := cmp.Diff(want, pod.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution); diff != "" {
		t.Error(diff)
	}
	command := []string{"/usr/bin/virt-launcher-monitor", "--allow-cross-arch-emulation"}
	if diff := cmp.Diff(command, pod.Spec.Containers[0].Command); diff != "" {
		t.Error(diff)
	}

	t.Run("preferences of the VMI come first", func(t *testing.T) {
		vmi := vmi.DeepCopy()
		mine := corev1.PreferredSchedulingTerm{Weight: 1, Preference: corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "rack", Operator: "Exists"}},
		}}
		vmi.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{mine},
		}}
		pod := presetLauncher(t, vmi, gates(gate))
		got := pod.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		if diff := cmp.Diff(append([]corev1.PreferredSchedulingTerm{mine}, want...), got); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("unknown architecture", func(t *testing.T) {
		pod := presetLauncher(t, newVMI(cpuOf(v1.CPU{Model: "Conroe"})), gates(gate))
		if got := pairs(pod.Spec.NodeSelector); pod.Spec.Affinity != nil || strings.Contains(got, "arch") {
			t.Errorf("affinity %v, selectors %s; want none about an architecture", pod.Spec.Affinity, got)
		}
	})
}

// TestNodeSelector_InvalidLabels checks that a name in a VMI must not result in a selector that the API server rejects.
func TestNodeSelector_InvalidLabels(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi   []change
		field string
	}{
		"key of a selector":   {[]change{selectors(map[string]string{"a b": "x"})}, "spec.nodeSelector"},
		"value of a selector": {[]change{selectors(map[string]string{"a": "x y"})}, "spec.nodeSelector[a]"},
		"CPU model":           {[]change{cpuOf(v1.CPU{Model: "Sky/lake"})}, "spec.domain.cpu.model"},
		"CPU feature":         {[]change{cpuOf(v1.CPU{Model: "x", Features: []v1.CPUFeature{{Name: "ok"}, {Name: "a feature"}}})}, "spec.domain.cpu.features[1].name"},
		"forbidden feature":   {[]change{cpuOf(v1.CPU{Features: []v1.CPUFeature{{Name: "-", Policy: "forbid"}}})}, "spec.domain.cpu.features[0].name"},
		"machine":             {[]change{machines("q 35", "")}, "spec.domain.machine.type"},
		"machine of status":   {[]change{machines("q35", "q/35")}, "status.machine.type"},
		"architecture":        {[]change{arch("amd 64")}, "spec.architecture"},
		"long architecture":   {[]change{arch(strings.Repeat("a", 64))}, "spec.architecture"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := template.Default().Launcher(input(newVMI(tc.vmi...)))
			wantError(t, err, tc.field, render.ErrInvalid)
		})
	}
}
