// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
)

func ref[T any](v T) *T { return &v }

func runtimeUser(id uint64) change {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Status.RuntimeUser = id }
}

func grace(seconds int64) change {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.TerminationGracePeriodSeconds = &seconds }
}

func affine(a corev1.Affinity) change {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Affinity = &a }
}

func kernelSecret(name string) change {
	return func(vmi *v1.VirtualMachineInstance) {
		kernelBoot("kernel", "/k")(vmi)
		vmi.Spec.Domain.Firmware.KernelBoot.Container.ImagePullSecret = name
	}
}

func securedImage(name, secret string) change {
	return volume(name, v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "i", ImagePullSecret: secret}})
}

func TestSpecPodSecurity(t *testing.T) {
	nonroot := &corev1.PodSecurityContext{RunAsUser: ref(int64(107)), RunAsGroup: ref(int64(107)), RunAsNonRoot: ref(true), FSGroup: ref(int64(107))}
	root := func(change func(*corev1.PodSecurityContext)) *corev1.PodSecurityContext {
		c := &corev1.PodSecurityContext{RunAsUser: ref(int64(0)), FSGroup: ref(int64(107))}
		change(c)
		return c
	}
	config := func(change func(*template.Config)) func(*template.Input) {
		return func(in *template.Input) { change(&in.Config) }
	}
	nothing := func(*template.Input) {}
	for name, tc := range map[string]struct {
		vmi    []change
		config func(*template.Input)
		want   *corev1.PodSecurityContext
	}{
		"24: root":                {nil, nothing, root(func(*corev1.PodSecurityContext) {})},
		"25: runtime user":        {[]change{runtimeUser(107)}, nothing, nonroot},
		"26: annotation alone":    {[]change{annotate("kubevirt.io/nonroot", "")}, nothing, nonroot},
		"26: annotation of false": {[]change{annotate("kubevirt.io/nonroot", "false")}, nothing, nonroot},
		"27: SELinux type":        {nil, config(func(c *template.Config) { c.SELinuxLauncherType = "spc_t" }), root(func(c *corev1.PodSecurityContext) { c.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"} })},
		"seccomp of the runtime":  {nil, config(func(c *template.Config) { c.Seccomp = &v1.CustomProfile{RuntimeDefaultProfile: true} }), root(func(c *corev1.PodSecurityContext) { c.SeccompProfile = &corev1.SeccompProfile{Type: "RuntimeDefault"} })},
		"seccomp of a file wins": {nil, config(func(c *template.Config) {
			c.Seccomp = &v1.CustomProfile{RuntimeDefaultProfile: true, LocalhostProfile: ref("p.json")}
		}), root(func(c *corev1.PodSecurityContext) {
			c.SeccompProfile = &corev1.SeccompProfile{Type: "Localhost", LocalhostProfile: ref("p.json")}
		})},
		"seccomp without a choice": {nil, config(func(c *template.Config) { c.Seccomp = &v1.CustomProfile{} }), root(func(*corev1.PodSecurityContext) {})},
	} {
		t.Run(name, func(t *testing.T) {
			pod := presetLauncher(t, newVMI(tc.vmi...), tc.config)
			if diff := cmp.Diff(tc.want, pod.Spec.SecurityContext); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("26: every container of a nonroot guest", func(t *testing.T) {
		vmi := newVMI(annotate("kubevirt.io/nonroot", ""), volume("a", image("i")), kernelBoot("k", "/k"))
		pod := presetLauncher(t, vmi, config(func(c *template.Config) { c.DisableSerialConsoleLog = false }))
		all := append(pod.Spec.Containers, pod.Spec.InitContainers...)
		if len(all) < 3 {
			t.Fatalf("%d containers, want compute, console log and images", len(all))
		}
		for _, c := range all {
			if s := c.SecurityContext; s == nil || *s.RunAsUser != 107 || !*s.RunAsNonRoot || *s.AllowPrivilegeEscalation {
				t.Errorf("%s: %v", c.Name, s)
			}
		}
	})
}

func TestSpecComputeSecurity(t *testing.T) {
	root := &corev1.SecurityContext{
		RunAsUser: ref(int64(0)), RunAsNonRoot: ref(false),
		Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_BIND_SERVICE", "SYS_NICE"}},
	}
	nonroot := &corev1.SecurityContext{
		RunAsUser: ref(int64(107)), RunAsGroup: ref(int64(107)), RunAsNonRoot: ref(true), AllowPrivilegeEscalation: ref(false),
		Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_BIND_SERVICE"}, Drop: []corev1.Capability{"ALL"}},
	}
	for name, tc := range map[string]struct {
		vmi  []change
		want *corev1.SecurityContext
	}{"24: root": {nil, root}, "25: nonroot": {[]change{runtimeUser(107)}, nonroot}} {
		t.Run(name, func(t *testing.T) {
			pod := presetLauncher(t, newVMI(tc.vmi...))
			if diff := cmp.Diff(tc.want, container(t, pod, "compute").SecurityContext); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSpecPodFields is case 31: the VMI's settings of its Pod are copied.
func TestSpecPodFields(t *testing.T) {
	spread := []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
	}}
	tolerations := []corev1.Toleration{{Key: "test", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: ref(int64(14))}}
	dns := &corev1.PodDNSConfig{Nameservers: []string{"10.0.0.1"}, Searches: []string{"_tcp.example.com.", "."}, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: ref("5")}}}
	pod := presetLauncher(t, newVMI(func(vmi *v1.VirtualMachineInstance) {
		s := &vmi.Spec
		s.SchedulerName, s.Tolerations, s.TopologySpreadConstraints = "test-scheduler", tolerations, spread
		s.PriorityClassName, s.Subdomain, s.DNSPolicy, s.DNSConfig = "important", "sub", corev1.DNSNone, dns
	}))
	for field, diff := range map[string]string{
		"schedulerName":             cmp.Diff("test-scheduler", pod.Spec.SchedulerName),
		"tolerations":               cmp.Diff(tolerations, pod.Spec.Tolerations),
		"topologySpreadConstraints": cmp.Diff(spread, pod.Spec.TopologySpreadConstraints),
		"priorityClassName":         cmp.Diff("important", pod.Spec.PriorityClassName),
		"subdomain":                 cmp.Diff("sub", pod.Spec.Subdomain),
		"dnsPolicy":                 cmp.Diff(corev1.DNSNone, pod.Spec.DNSPolicy),
		"dnsConfig":                 cmp.Diff(dns, pod.Spec.DNSConfig),
	} {
		if diff != "" {
			t.Errorf("31: %s:\n%s", field, diff)
		}
	}
	bare := presetLauncher(t, newVMI()).Spec
	want := corev1.PodSpec{
		RestartPolicy: "Never", Hostname: "testvmi", TerminationGracePeriodSeconds: ref(int64(60)), EnableServiceLinks: ref(false),
		AutomountServiceAccountToken: ref(false),
		ReadinessGates:               []corev1.PodReadinessGate{{ConditionType: "kubevirt.io/virtual-machine-unpaused"}},
	}
	bare.Containers, bare.InitContainers, bare.Volumes, bare.NodeSelector = nil, nil, nil, nil
	bare.ImagePullSecrets, bare.Affinity, bare.SecurityContext = nil, nil, nil
	if diff := cmp.Diff(want, bare); diff != "" {
		t.Errorf("fields of a bare guest:\n%s", diff)
	}
}

func TestSpecRuntimeClass(t *testing.T) {
	class := func(in *template.Input) { in.Config.DefaultRuntimeClass = "customRuntime" }
	if got := presetLauncher(t, newVMI(), class).Spec.RuntimeClassName; got == nil || *got != "customRuntime" {
		t.Errorf("32: got %v", got)
	}
	if got := presetLauncher(t, newVMI()).Spec.RuntimeClassName; got != nil {
		t.Errorf("32: got %q without a default", *got)
	}
}

func TestSpecGracePeriods(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi  []change
		pod  int64
		flag string
	}{
		"default": {nil, 60, "--grace-period-seconds 45"},
		"none":    {[]change{grace(0)}, 30, "--grace-period-seconds 15"},
		"long":    {[]change{grace(180)}, 210, "--grace-period-seconds 195"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := presetLauncher(t, newVMI(tc.vmi...))
			if got := *pod.Spec.TerminationGracePeriodSeconds; got != tc.pod {
				t.Errorf("the Pod gets %d s, want %d", got, tc.pod)
			}
			if args := strings.Join(pod.Spec.Containers[0].Args, " "); !strings.Contains(args, tc.flag+" ") {
				t.Errorf("arguments %s, want %s", args, tc.flag)
			}
		})
	}
}

func TestSpecServiceAccounts(t *testing.T) {
	account := func(name string) change {
		return volume("sa-"+name, v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: name}})
	}
	runAs := func(vmi *v1.VirtualMachineInstance) { vmi.Spec.ServiceAccountName = "own" }
	for name, tc := range map[string]struct {
		vmi     []change
		account string
		mount   bool
	}{
		"none":                {nil, "", false},
		"of the VMI":          {[]change{runAs}, "own", false},
		"of a volume":         {[]change{account("db")}, "db", true},
		"VMI before volume":   {[]change{account("db"), runAs}, "own", true},
		"first of the two":    {[]change{account("db"), account("web")}, "db", true},
		"13: mesh":            {[]change{annotate("sidecar.istio.io/inject", "true")}, "", true},
		"13: mesh, capitals":  {[]change{annotate("sidecar.istio.io/inject", "TRUE")}, "", true},
		"14: mesh, not":       {[]change{annotate("sidecar.istio.io/inject", "false")}, "", false},
		"14: mesh, something": {[]change{annotate("sidecar.istio.io/inject", "1")}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			spec := presetLauncher(t, newVMI(tc.vmi...)).Spec
			if spec.ServiceAccountName != tc.account || *spec.AutomountServiceAccountToken != tc.mount {
				t.Errorf("account %q, mounted %v", spec.ServiceAccountName, *spec.AutomountServiceAccountToken)
			}
		})
	}
}

func TestSpecPullSecrets(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi  []change
		want []string
	}{
		"36: operator's":               {nil, []string{"pull-secret-1"}},
		"37: one of two disks":         {[]change{securedImage("a", "pull-secret-2"), securedImage("b", "pull-secret-2")}, []string{"pull-secret-2", "pull-secret-1"}},
		"37: in the order of volumes":  {[]change{securedImage("a", "z"), securedImage("b", ""), securedImage("c", "y")}, []string{"z", "y", "pull-secret-1"}},
		"37: the operator's on a disk": {[]change{securedImage("a", "pull-secret-1"), securedImage("b", "z")}, []string{"pull-secret-1", "z"}},
		"38: kernel boot":              {[]change{kernelSecret("pull-secret-3"), securedImage("a", "pull-secret-2")}, []string{"pull-secret-2", "pull-secret-3", "pull-secret-1"}},
		"38: kernel boot without":      {[]change{kernelSecret("")}, []string{"pull-secret-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range presetLauncher(t, newVMI(tc.vmi...)).Spec.ImagePullSecrets {
				got = append(got, s.Name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSpecAffinity(t *testing.T) {
	gone := func(label string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpDoesNotExist}
	}
	in := func(key, value string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}
	}
	terms := func(lists ...[]corev1.NodeSelectorRequirement) *corev1.Affinity {
		s := &corev1.NodeSelector{}
		for _, l := range lists {
			s.NodeSelectorTerms = append(s.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: l})
		}
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: s}}
	}
	type list = []corev1.NodeSelectorRequirement
	obsolete, noMMX := gone("node-labeller.kubevirt.io/obsolete-host-model"), gone("cpu-feature.node.kubevirt.io/mmx")
	forbidMMX := []v1.CPUFeature{{Name: "mmx", Policy: "forbid"}, {Name: "sse", Policy: "disable"}}
	pods := corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "zone"}},
	}}
	for name, tc := range map[string]struct {
		vmi  []change
		want *corev1.Affinity
	}{
		"39: named model":               {[]change{cpuOf(v1.CPU{Model: "Conroe"})}, nil},
		"39: passthrough":               {[]change{cpuOf(v1.CPU{Model: "host-passthrough"})}, nil},
		"39: affinity of the VMI stays": {[]change{cpuOf(v1.CPU{Model: "Conroe"}), affine(pods)}, &pods},
		"40: host-model":                {[]change{cpuOf(v1.CPU{Model: "host-model"})}, terms(list{obsolete})},
		"40: no model":                  {[]change{cpuOf(v1.CPU{Cores: 2})}, terms(list{obsolete})},
		"40: no CPU":                    {nil, terms(list{obsolete})},
		"41: two terms": {
			[]change{cpuOf(v1.CPU{Model: "host-model"}), affine(*terms(list{in("a", "1")}, list{in("b", "2"), in("c", "3")}))},
			terms(list{in("a", "1"), obsolete}, list{in("b", "2"), in("c", "3"), obsolete}),
		},
		"41: forbidden feature":          {[]change{cpuOf(v1.CPU{Model: "Conroe", Features: forbidMMX})}, terms(list{noMMX})},
		"41: forbidden and host-model":   {[]change{cpuOf(v1.CPU{Features: forbidMMX})}, terms(list{obsolete, noMMX})},
		"41: forbidden in every term":    {[]change{cpuOf(v1.CPU{Model: "Conroe", Features: forbidMMX}), affine(*terms(list{in("a", "1")}, list{}))}, terms(list{in("a", "1"), noMMX}, list{noMMX})},
		"41: beside affinity of another": {[]change{affine(pods)}, &corev1.Affinity{PodAntiAffinity: pods.PodAntiAffinity, NodeAffinity: terms(list{obsolete}).NodeAffinity}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, presetLauncher(t, newVMI(tc.vmi...)).Spec.Affinity); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSpecResourceClaims is case 46 as far as the Pod is concerned: its claims do not depend on a gate.
func TestSpecResourceClaims(t *testing.T) {
	r, err := preset(t).Remove(template.StageSupported)
	if err != nil {
		t.Fatal(err)
	}
	vmi := newVMI(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.ResourceClaims = []v1.VirtualMachineInstanceResourceClaim{
			{Name: "net-claim", ResourceClaimTemplateName: ref("template")}, {Name: "gpu-claim", ResourceClaimName: ref("claim")},
		}
	})
	want := []corev1.PodResourceClaim{
		{Name: "net-claim", ResourceClaimTemplateName: ref("template")}, {Name: "gpu-claim", ResourceClaimName: ref("claim")},
	}
	for name, change := range map[string]func(*template.Input){
		"46: gates on": func(*template.Input) {}, "46: gates off": gatesOff("GPUsWithDRA", "HostDevicesWithDRA", "NetworkDevicesWithDRA"),
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := r.Launcher(presetInput(vmi, change))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, pod.Spec.ResourceClaims); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got := presetLauncher(t, newVMI()).Spec.ResourceClaims; got != nil {
		t.Errorf("46: a guest without claims has %v", got)
	}
}
