// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// maxTimeoutJitter prevents launchers that start together from timing out together.
const maxTimeoutJitter = 120

// compute adds the container that runs the guest. It is the first container: webhooks of device plugins rely on that.
func compute(d *Draft) error {
	d.Container(corev1.Container{
		Name:                     computeContainer,
		Image:                    d.config.LauncherImage,
		ImagePullPolicy:          d.config.ImagePullPolicy,
		Command:                  computeCommand(d),
		SecurityContext:          computeSecurity(d.vmi),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		Args:                     make([]string, 0, 32),
		VolumeMounts:             make([]corev1.VolumeMount, 0, 16),
	})
	for _, part := range []struct{ name, from string }{
		{".image", "Config.LauncherImage"}, {".imagePullPolicy", "Config.ImagePullPolicy"}, {".securityContext", runtimeUser},
	} {
		d.From(part.from).claim(field{base: fieldContainers, name: computeContainer, sub: part.name})
	}
	computeArgs(d)
	computePorts(d)
	return computeEnv(d)
}

// argument is a flag of the launcher with its source.
type argument struct{ flag, value, from string }

// computeArgs adds the launcher's arguments in KubeVirt's order.
func computeArgs(d *Draft) {
	for _, a := range []argument{
		{"--qemu-timeout", qemuTimeout(d), "Config.QEMUTimeout, metadata.uid"},
		{"--name", d.vmi.Name, "metadata.name"},
		{"--uid", string(d.vmi.UID), "metadata.uid"},
		{"--namespace", d.vmi.Namespace, "metadata.namespace"},
		{"--kubevirt-share-dir", shareDir, ""},
		{"--ephemeral-disk-dir", ephemeralDir, ""},
		{"--container-disk-dir", containerDiskDir, ""},
		{"--grace-period-seconds", strconv.FormatInt(graceSeconds(d.vmi)+launcherGraceMargin, 10), "spec.terminationGracePeriodSeconds"},
		{"--hook-sidecars", strconv.Itoa(len(d.sidecars)), "stage hooks"},
		{"--ovmf-path", ovmfPath(d), "Config.OVMFPath, Config.OVMFPaths, spec.architecture, Config.ClusterArchitecture"},
		{"--disk-memory-limit", strconv.FormatInt(d.config.DiskMemoryLimit, 10), "Config.DiskMemoryLimit"},
		{"--hypervisor", d.config.Hypervisor, "Config.Hypervisor"},
	} {
		d.From(a.from).Arg(computeContainer, a.flag, a.value)
	}
	computeFlags(d)
}

// computeFlags adds the optional arguments.
func computeFlags(d *Draft) {
	const gates = "Config.FeatureGates"
	for _, f := range []struct {
		argument
		set bool
	}{
		{argument{"--run-as-nonroot", "", runtimeUser}, nonRoot(d.vmi)},
		{argument{"--image-volume", "", gates}, d.config.GateEnabled(gateImageVolume)},
		{argument{"--upgrade-ordinal-ifaces", "", gates}, d.config.GateEnabled(gateSecondaryNaming)},
		{argument{"--vgpu-dedicated-hook", "", gates}, d.config.GateEnabled(gateVGPULiveMigration)},
		{argument{"--vm-stats-collector", "", gates}, d.config.GateEnabled(gateVMStatsCollector)},
		{argument{"--firmware-auto-selection", "", gates}, d.config.GateEnabled(gateFirmwareSelection)},
	} {
		if f.set {
			d.From(f.from).Arg(computeContainer, f.flag)
		}
	}
	if filters, ok := d.vmi.Annotations[v1.CustomLibvirtLogFiltersAnnotation]; ok {
		d.From("metadata.annotations").Arg(computeContainer, "--libvirt-log-filters", filters)
	}
	behaviourFlags(d)
}

// behaviourFlags adds the optional arguments that temporary Pods have as well.
func behaviourFlags(d *Draft) {
	if d.config.AllowEmulation {
		d.From("Config.AllowEmulation").Arg(computeContainer, "--allow-emulation")
	}
	if keepAfterFailure(d.vmi.Annotations) {
		d.From("metadata.annotations").Arg(computeContainer, "--keep-after-failure")
	}
	if _, crash := d.vmi.Annotations[v1.FuncTestLauncherFailFastAnnotation]; crash {
		d.From("metadata.annotations").Arg(computeContainer, "--simulate-crash")
	}
}

func computeCommand(d *Draft) []string {
	command := []string{"/usr/bin/virt-launcher-monitor"}
	if d.config.GateEnabled(gateCrossArch) && d.kind != TemporaryPod {
		command = append(command, "--allow-cross-arch-emulation")
	}
	return command
}

func keepAfterFailure(annotations map[string]string) bool {
	for key, value := range annotations {
		if strings.HasPrefix(key, v1.KeepLauncherAfterFailureAnnotation) && (value == "" || strings.HasPrefix(value, "true")) {
			return true
		}
	}
	return false
}

// qemuTimeout adds a jitter that is constant for a VMI.
func qemuTimeout(d *Draft) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(d.vmi.UID)) // never fails
	return fmt.Sprintf("%ds", int64(d.config.QEMUTimeout.Seconds())+int64(h.Sum32()%maxTimeoutJitter))
}

// ovmfPath returns the folder of the firmware. Architectures without a folder of their own use that of amd64.
func ovmfPath(d *Draft) string {
	arch, path := architecture(d.vmi, d.config), "/usr/share/edk2/ovmf"
	switch arch {
	case "arm64":
		path = "/usr/share/AAVMF"
	case archS390x:
		path = ""
	default:
		arch = "amd64"
	}
	if configured := d.config.OVMFPaths[arch]; configured != "" {
		return configured
	}
	if d.config.OVMFPath != "" {
		return d.config.OVMFPath
	}
	return path
}

func computeEnv(d *Draft) error {
	set := func(name, value, from string) {
		d.From(from).Env(computeContainer, corev1.EnvVar{Name: name, Value: value})
	}
	if nonRoot(d.vmi) {
		set("XDG_CACHE_HOME", privateDir, runtimeUser)
		set("XDG_CONFIG_HOME", privateDir, runtimeUser)
		set("XDG_RUNTIME_DIR", "/var/run", runtimeUser)
	}
	if shared := sharedPaths(d); len(shared) > 0 {
		set("SHARED_FILESYSTEM_PATHS", strings.Join(shared, ":"), "Facts.Claims")
	}
	verbosity, text, err := launcherVerbosity(d)
	if err != nil {
		return err
	}
	const from = "metadata.labels, Config.LauncherVerbosity"
	if text != "" {
		set("VIRT_LAUNCHER_LOG_VERBOSITY", text, from)
	}
	debug := verbosity > 5
	if debug || strings.EqualFold(d.vmi.Labels["debugLogs"], "true") {
		set("LIBVIRT_DEBUG_LOGS", "1", from)
	}
	if debug || strings.EqualFold(d.vmi.Labels["virtiofsdDebugLogs"], "true") {
		set("VIRTIOFSD_DEBUG_LOGS", "1", from)
	}
	d.Env(computeContainer, podNameEnv())
	return nil
}

func podNameEnv() corev1.EnvVar {
	return corev1.EnvVar{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"},
	}}
}

// launcherVerbosity returns the effective log level, and its text if it is not the launcher's own default.
func launcherVerbosity(d *Draft) (uint, string, error) {
	const label = "logVerbosity"
	if text, ok := d.vmi.Labels[label]; ok {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return 0, "", invalid("metadata.labels["+label+"]", fmt.Sprintf("%q must be a log level", text), "use a number from 0")
		}
		return uint(n), text, nil
	}
	n := *d.config.LauncherVerbosity
	if n == defaultVerbosity {
		return n, "", nil
	}
	return n, strconv.FormatUint(uint64(n), 10), nil
}

func computePorts(d *Draft) {
	from := d.From("spec.domain.devices.interfaces")
	for i := range d.vmi.Spec.Domain.Devices.Interfaces {
		for _, p := range d.vmi.Spec.Domain.Devices.Interfaces[i].Ports {
			protocol := corev1.Protocol(p.Protocol)
			if protocol == "" {
				protocol = corev1.ProtocolTCP
			}
			from.Port(computeContainer, corev1.ContainerPort{Name: p.Name, ContainerPort: p.Port, Protocol: protocol})
		}
	}
}
