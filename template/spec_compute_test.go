// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// flagsOf returns the arguments from the value of --qemu-timeout on, in which only the value differs between VMIs.
func flagsOf(t *testing.T, pod *corev1.Pod) []string {
	t.Helper()
	args := container(t, pod, "compute").Args
	if len(args) < 2 || args[0] != "--qemu-timeout" {
		t.Fatalf("arguments %v", args)
	}
	return args[2:]
}

// TestSpecArguments is case 49 and the order of all arguments.
func TestSpecArguments(t *testing.T) {
	fixed := []string{
		"--name", "testvmi", "--uid", "1234", "--namespace", "default", "--kubevirt-share-dir", "/var/run/kubevirt",
		"--ephemeral-disk-dir", "/var/run/kubevirt-ephemeral-disks", "--container-disk-dir", "/var/run/kubevirt/container-disks",
		"--grace-period-seconds", "45", "--hook-sidecars", "0", "--ovmf-path", "/usr/share/edk2/ovmf",
		"--disk-memory-limit", "2097152000", "--hypervisor", "kvm",
	}
	t.Run("49: defaults", func(t *testing.T) {
		want := slices.Concat(fixed, []string{"--image-volume", "--upgrade-ordinal-ifaces"})
		if diff := cmp.Diff(want, flagsOf(t, presetLauncher(t, newVMI()))); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("everything at once", func(t *testing.T) {
		vmi := newVMI(runtimeUser(107), annotate("kubevirt.io/libvirt-log-filters", "3:remote 1:*"),
			annotate("kubevirt.io/keep-launcher-alive-after-failure", "true"), annotate("kubevirt.io/func-test-virt-launcher-fail-fast", ""))
		pod := presetLauncher(t, vmi, gates("VGPULiveMigration", "VMStatsCollector", "FirmwareAutoSelection"),
			func(in *template.Input) { in.Config.AllowEmulation = true })
		want := slices.Concat(fixed, []string{
			"--run-as-nonroot", "--image-volume", "--upgrade-ordinal-ifaces", "--vgpu-dedicated-hook", "--vm-stats-collector",
			"--firmware-auto-selection", "--libvirt-log-filters", "3:remote 1:*", "--allow-emulation", "--keep-after-failure",
			"--simulate-crash",
		})
		if diff := cmp.Diff(want, flagsOf(t, pod)); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("container", func(t *testing.T) {
		c := container(t, presetLauncher(t, newVMI()), "compute")
		if c.Image != "kubevirt/virt-launcher" || c.ImagePullPolicy != "Always" || c.TerminationMessagePolicy != "FallbackToLogsOnError" ||
			c.Lifecycle != nil || c.StartupProbe != nil || !slices.Equal(c.Command, []string{"/usr/bin/virt-launcher-monitor"}) {
			t.Errorf("got %+v", c)
		}
	})
}

func TestSpecFlags(t *testing.T) {
	const keep = "kubevirt.io/keep-launcher-alive-after-failure"
	config := func(change func(*template.Config)) []func(*template.Input) {
		return []func(*template.Input){func(in *template.Input) { change(&in.Config) }}
	}
	for name, tc := range map[string]struct {
		vmi     []change
		config  []func(*template.Input)
		want    string // surrounded by spaces
		missing bool
	}{
		"48: firmware of arm64":          {[]change{arm64}, nil, "--ovmf-path /usr/share/AAVMF", false},
		"48: firmware of s390x":          {[]change{arch("s390x")}, nil, "--ovmf-path  --disk-memory-limit", false},
		"48: firmware of amd64":          {[]change{arch("amd64")}, nil, "--ovmf-path /usr/share/edk2/ovmf", false},
		"48: firmware configured":        {[]change{arm64}, config(func(c *template.Config) { c.OVMFPath = "/o" }), "--ovmf-path /o", false},
		"48: configured for arm64":       {[]change{arm64}, config(func(c *template.Config) { c.OVMFPath, c.OVMFPaths = "/o", map[string]string{"arm64": "/a"} }), "--ovmf-path /a", false},
		"48: firmware of the cluster":    {nil, config(func(c *template.Config) { c.ClusterArchitecture = "arm64" }), "--ovmf-path /usr/share/AAVMF", false},
		"48: configured for amd64":       {nil, config(func(c *template.Config) { c.ClusterArchitecture, c.OVMFPaths = "", map[string]string{"amd64": "/a"} }), "--ovmf-path /a", false},
		"49: image volumes off":          {nil, []func(*template.Input){gatesOff("ImageVolume")}, "--image-volume", true},
		"49: naming off":                 {nil, []func(*template.Input){gatesOff("PodSecondaryInterfaceNamingUpgrade")}, "--upgrade-ordinal-ifaces", true},
		"50: emulation":                  {nil, config(func(c *template.Config) { c.AllowEmulation = true }), "--allow-emulation", false},
		"50: no emulation":               {nil, nil, "--allow-emulation", true},
		"64: keep after failure":         {[]change{annotate(keep, "")}, nil, "--keep-after-failure", false},
		"64: keep, truly":                {[]change{annotate(keep, "true-for-debugging")}, nil, "--keep-after-failure", false},
		"64: keep, key of a prefix":      {[]change{annotate(keep+"-once", "")}, nil, "--keep-after-failure", false},
		"64: do not keep":                {[]change{annotate(keep, "false")}, nil, "--keep-after-failure", true},
		"64: nothing said":               {nil, nil, "--keep-after-failure", true},
		"memory limit of image checks":   {nil, config(func(c *template.Config) { c.DiskMemoryLimit = 5 }), "--disk-memory-limit 5", false},
		"hypervisor counts with a gate":  {nil, config(func(c *template.Config) { c.Hypervisor = "hyperv-direct" }), "--hypervisor kvm", false},
		"log filters may be empty":       {[]change{annotate("kubevirt.io/libvirt-log-filters", "")}, nil, "--libvirt-log-filters ", false},
		"no crash":                       {nil, nil, "--simulate-crash", true},
		"26: nonroot by annotation":      {[]change{annotate("kubevirt.io/nonroot", "")}, nil, "--run-as-nonroot", false},
		"24: root":                       {nil, nil, "--run-as-nonroot", true},
		"45: foreign architectures, not": {nil, nil, "--allow-cross-arch-emulation", true},
	} {
		t.Run(name, func(t *testing.T) {
			args := " " + strings.Join(flagsOf(t, presetLauncher(t, newVMI(tc.vmi...), tc.config...)), " ") + " "
			if strings.Contains(args, " "+tc.want+" ") == tc.missing {
				t.Errorf("arguments %q, looked for %q", args, tc.want)
			}
		})
	}
}

func TestSpecEmulation_NoDevices(t *testing.T) {
	emulate := func(in *template.Input) { in.Config.AllowEmulation = true }
	devices := func(pod *corev1.Pod) []string {
		var names []string
		for name := range container(t, pod, "compute").Resources.Limits {
			names = append(names, strings.TrimPrefix(string(name), "devices.kubevirt.io/"))
		}
		slices.Sort(names)
		return names
	}
	if diff := cmp.Diff([]string{"tun"}, devices(presetLauncher(t, newVMI(virtio), emulate))); diff != "" {
		t.Errorf("50: emulation:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"kvm", "tun", "vhost-net"}, devices(presetLauncher(t, newVMI(virtio)))); diff != "" {
		t.Errorf("50: hardware:\n%s", diff)
	}
}

func TestSpecEnvironment(t *testing.T) {
	level := func(n uint) func(*template.Input) {
		return func(in *template.Input) { in.Config.LauncherVerbosity = &n }
	}
	label := func(key, value string) change { return vmiLabels(map[string]string{key: value}) }
	const debug = "LIBVIRT_DEBUG_LOGS=1 VIRTIOFSD_DEBUG_LOGS=1 "
	for name, tc := range map[string]struct {
		vmi    []change
		config []func(*template.Input)
		want   string // before POD_NAME
	}{
		"bare":                           {nil, nil, ""},
		"25: nonroot":                    {[]change{runtimeUser(107)}, nil, "XDG_CACHE_HOME=/var/run/kubevirt-private XDG_CONFIG_HOME=/var/run/kubevirt-private XDG_RUNTIME_DIR=/var/run "},
		"51: debug logs":                 {[]change{label("debugLogs", "TRuE")}, nil, "LIBVIRT_DEBUG_LOGS=1 "},
		"51: no debug logs":              {[]change{label("debugLogs", "false")}, nil, ""},
		"51: debug logs, unclear":        {[]change{label("debugLogs", "1")}, nil, ""},
		"51: virtiofsd":                  {[]change{label("virtiofsdDebugLogs", "true")}, nil, "VIRTIOFSD_DEBUG_LOGS=1 "},
		"52: log level of the VMI":       {[]change{label("logVerbosity", "7")}, nil, "VIRT_LAUNCHER_LOG_VERBOSITY=7 " + debug},
		"52: level below debugging":      {[]change{label("logVerbosity", "5")}, nil, "VIRT_LAUNCHER_LOG_VERBOSITY=5 "},
		"52: default level named":        {[]change{label("logVerbosity", "2")}, nil, "VIRT_LAUNCHER_LOG_VERBOSITY=2 "},
		"52: text is handed on":          {[]change{label("logVerbosity", "07")}, nil, "VIRT_LAUNCHER_LOG_VERBOSITY=07 " + debug},
		"52: level of the cluster":       {nil, []func(*template.Input){level(6)}, "VIRT_LAUNCHER_LOG_VERBOSITY=6 " + debug},
		"52: default of the cluster":     {nil, []func(*template.Input){level(2)}, ""},
		"52: VMI over cluster":           {[]change{label("logVerbosity", "0")}, []func(*template.Input){level(9)}, "VIRT_LAUNCHER_LOG_VERBOSITY=0 "},
		"shared file systems":            {[]change{volume("a", pvc("rwx")), volume("b", pvc("rwo")), volume("c", pvc("rox")), volume("d", pvc("rwx2"))}, claims(), "SHARED_FILESYSTEM_PATHS=/var/run/kubevirt-private/vmi-disks/a:/var/run/kubevirt-private/vmi-disks/d "},
		"shared file systems of nonroot": {[]change{runtimeUser(107), volume("a", pvc("rwx")), label("debugLogs", "true")}, claims(), "XDG_CACHE_HOME=/var/run/kubevirt-private XDG_CONFIG_HOME=/var/run/kubevirt-private XDG_RUNTIME_DIR=/var/run SHARED_FILESYSTEM_PATHS=/var/run/kubevirt-private/vmi-disks/a LIBVIRT_DEBUG_LOGS=1 "},
	} {
		t.Run(name, func(t *testing.T) {
			var got string
			env := container(t, presetLauncher(t, newVMI(tc.vmi...), tc.config...), "compute").Env
			for _, e := range env[:len(env)-1] {
				got += e.Name + "=" + e.Value + " "
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			last := env[len(env)-1]
			if last.Name != "POD_NAME" || last.ValueFrom.FieldRef.FieldPath != "metadata.name" {
				t.Errorf("ends with %v, want POD_NAME", last)
			}
		})
	}
	t.Run("53: no log level", func(t *testing.T) {
		for _, text := range []string{"abc", "-1", ""} {
			_, err := preset(t).Launcher(presetInput(newVMI(label("logVerbosity", text))))
			var e *render.Error
			if !errors.As(err, &e) || e.Field != "metadata.labels[logVerbosity]" || !errors.Is(err, render.ErrInvalid) {
				t.Errorf("%q: got %v", text, err)
			}
		}
	})
}

// claims returns the claims of the environment's rows.
func claims() []func(*template.Input) {
	return []func(*template.Input){
		claim("rwx", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany),
		claim("rwx2", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany),
		claim("rwo", corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce),
		claim("rox", corev1.PersistentVolumeFilesystem, corev1.ReadOnlyMany),
	}
}

func ports(list ...v1.Port) change {
	return func(vmi *v1.VirtualMachineInstance) {
		virtio(vmi)
		vmi.Spec.Domain.Devices.Interfaces[0].Ports = list
	}
}

func TestSpecPorts(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi  []change
		want []corev1.ContainerPort
	}{
		"55: four ports": {[]change{ports(v1.Port{Name: "http", Port: 80}, v1.Port{Protocol: "UDP", Port: 80}, v1.Port{Port: 90}, v1.Port{Name: "other-http", Port: 80})}, []corev1.ContainerPort{
			{Name: "http", ContainerPort: 80, Protocol: "TCP"}, {ContainerPort: 80, Protocol: "UDP"},
			{ContainerPort: 90, Protocol: "TCP"}, {Name: "other-http", ContainerPort: 80, Protocol: "TCP"},
		}},
		"55: interfaces in order": {[]change{ports(v1.Port{Port: 9}), func(vmi *v1.VirtualMachineInstance) {
			second := vmi.Spec.Domain.Devices.Interfaces[0]
			second.Name, second.Ports = "second", []v1.Port{{Port: 1}}
			vmi.Spec.Domain.Devices.Interfaces = append(vmi.Spec.Domain.Devices.Interfaces, second)
			vmi.Spec.Networks = append(vmi.Spec.Networks, v1.Network{Name: "second", NetworkSource: vmi.Spec.Networks[0].NetworkSource})
		}}, []corev1.ContainerPort{{ContainerPort: 9, Protocol: "TCP"}, {ContainerPort: 1, Protocol: "TCP"}}},
		"56: no ports":      {[]change{virtio}, nil},
		"56: no interfaces": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := preset(t).Remove(template.StageNetworkSpec) // two interfaces of the Pod network are a matter of their own
			if err != nil {
				t.Fatal(err)
			}
			pod, err := r.Launcher(presetInput(newVMI(tc.vmi...)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, container(t, pod, "compute").Ports); diff != "" {
				t.Error(diff)
			}
		})
	}
	for name, tc := range map[string]struct {
		ports []v1.Port
		field string
	}{
		"port 0":          {[]v1.Port{{Port: 0}}, "port"},
		"port 65536":      {[]v1.Port{{Port: 65536}}, "port"},
		"protocol":        {[]v1.Port{{Port: 1, Protocol: "ICMP"}}, "protocol"},
		"small protocol":  {[]v1.Port{{Port: 1, Protocol: "tcp"}}, "protocol"},
		"name":            {[]v1.Port{{Port: 1, Name: "HTTP"}}, "name"},
		"long name":       {[]v1.Port{{Port: 1, Name: strings.Repeat("a", 16)}}, "name"},
		"name of numbers": {[]v1.Port{{Port: 1, Name: "80"}}, "name"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := template.Default().Launcher(input(newVMI(ports(tc.ports...))))
			wantError(t, err, "spec.domain.devices.interfaces[0].ports[0]."+tc.field, render.ErrInvalid)
		})
	}
	_, err := template.Default().Launcher(input(newVMI(ports(v1.Port{Name: "a", Port: 1}, v1.Port{Name: "a", Port: 2}))))
	wantError(t, err, "spec.domain.devices.interfaces[0].ports[1].name", render.ErrInvalid)
}

func probed(p v1.Probe) change {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.ReadinessProbe, vmi.Spec.LivenessProbe = &p, p.DeepCopy()
	}
}

func execProbe(timeout int32, command ...string) v1.Probe {
	return v1.Probe{TimeoutSeconds: timeout, Handler: v1.Handler{Exec: &corev1.ExecAction{Command: command}}}
}

// TestSpecProbes is case 62 and section 10: probes of the guest get an additional second.
func TestSpecProbes(t *testing.T) {
	want := func(timeout int32, h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler: h, InitialDelaySeconds: 10, TimeoutSeconds: timeout, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3,
		}
	}
	run := func(words ...string) corev1.ProbeHandler {
		return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: words}}
	}
	get := &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(80), Scheme: "HTTPS", HTTPHeaders: []corev1.HTTPHeader{{Name: "X-A", Value: "b"}}}
	dial := &corev1.TCPSocketAction{Port: intstr.FromString("ssh")}
	ping := v1.Probe{TimeoutSeconds: 5, Handler: v1.Handler{GuestAgentPing: &v1.GuestAgentPing{}}}
	numbers := want(6, corev1.ProbeHandler{TCPSocket: dial})
	numbers.InitialDelaySeconds, numbers.PeriodSeconds, numbers.SuccessThreshold, numbers.FailureThreshold = 12, 7, 1, 9
	for name, tc := range map[string]struct {
		probe v1.Probe
		want  *corev1.Probe
	}{
		"62: agent":            {ping, want(6, run("virt-probe", "--domainName", "default_testvmi", "--timeoutSeconds", "5", "--guestAgentPing"))},
		"command":              {execProbe(0, "cat", "--show", "/tmp/x"), want(2, run("virt-probe", "--domainName", "default_testvmi", "--timeoutSeconds", "1", "--command", "cat", "--", "--show", "/tmp/x"))},
		"command of one word":  {execProbe(4, "true"), want(5, run("virt-probe", "--domainName", "default_testvmi", "--timeoutSeconds", "4", "--command", "true", "--"))},
		"already a virt-probe": {execProbe(4, "virt-probe", "--x"), want(4, run("virt-probe", "--x"))},
		"HTTP":                 {v1.Probe{Handler: v1.Handler{HTTPGet: get}}, want(1, corev1.ProbeHandler{HTTPGet: get})},
		"TCP":                  {v1.Probe{Handler: v1.Handler{TCPSocket: dial}}, want(1, corev1.ProbeHandler{TCPSocket: dial})},
		"numbers are kept":     {v1.Probe{InitialDelaySeconds: 2, TimeoutSeconds: 6, PeriodSeconds: 7, SuccessThreshold: 1, FailureThreshold: 9, Handler: v1.Handler{TCPSocket: dial}}, numbers},
		"numbers below one":    {v1.Probe{TimeoutSeconds: -1, PeriodSeconds: -1, SuccessThreshold: -1, FailureThreshold: -1, Handler: v1.Handler{TCPSocket: dial}}, want(1, corev1.ProbeHandler{TCPSocket: dial})},
	} {
		t.Run(name, func(t *testing.T) {
			in := presetInput(newVMI(probed(tc.probe)))
			for range 2 { // the second rendering must not depend on the first
				pod, err := preset(t).Launcher(in)
				if err != nil {
					t.Fatal(err)
				}
				c := container(t, pod, "compute")
				if diff := cmp.Diff(tc.want, c.ReadinessProbe); diff != "" {
					t.Errorf("readiness:\n%s", diff)
				}
				if diff := cmp.Diff(tc.want, c.LivenessProbe); diff != "" {
					t.Errorf("liveness:\n%s", diff)
				}
			}
		})
	}
}

// TestSpecRendering_Twice is case 152: both parts of quirk Q2, and the timeouts of case 153.
func TestSpecRendering_Twice(t *testing.T) {
	probe := execProbe(3, "cat", "/tmp/x")
	in := presetInput(newVMI(probed(probe), virtio, guest("1Gi"), volume("a", image("i"))))
	first, err := preset(t).Launcher(in)
	if err != nil {
		t.Fatal(err)
	}
	second, err := preset(t).Launcher(in)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("152: another rendering differs:\n%s", diff)
	}
	if diff := cmp.Diff(&probe, in.VMI.Spec.ReadinessProbe); diff != "" {
		t.Errorf("152: the VMI was changed:\n%s", diff)
	}
}

func TestSpecTimeouts(t *testing.T) {
	timeout := func(uid string, changes ...func(*template.Input)) int {
		t.Helper()
		vmi := newVMI(func(vmi *v1.VirtualMachineInstance) { vmi.UID = types.UID(uid) })
		args := container(t, presetLauncher(t, vmi, changes...), "compute").Args
		seconds, err := strconv.Atoi(strings.TrimSuffix(args[1], "s"))
		if err != nil || args[0] != "--qemu-timeout" {
			t.Fatalf("arguments %v", args)
		}
		return seconds
	}
	seen := map[int]bool{}
	for i := range 300 {
		n := timeout(fmt.Sprint("guest-", i))
		if n < 240 || n >= 360 {
			t.Errorf("153: %d s", n)
		}
		seen[n] = true
	}
	if len(seen) < 60 {
		t.Errorf("153: 300 guests share %d timeouts: %v", len(seen), slices.Sorted(maps.Keys(seen)))
	}
	ten := func(in *template.Input) { in.Config.QEMUTimeout = 10 * time.Second }
	if a, b := timeout("x"), timeout("x", ten); a-b != 230 {
		t.Errorf("153: %d s with 240 s, %d s with 10 s; want the same jitter", a, b)
	}
}
