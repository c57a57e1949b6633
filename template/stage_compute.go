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

// maxTimeoutJitter keeps launchers that start together from timing out together.
const maxTimeoutJitter = 120

// compute adds the container that runs the guest. It is the first container: webhooks of device plugins rely on that.
func compute(d *Draft) error {
	env, err := computeEnv(d)
	if err != nil {
		return err
	}
	d.Container(corev1.Container{
		Name:                     computeContainer,
		Image:                    d.config.LauncherImage,
		ImagePullPolicy:          d.config.ImagePullPolicy,
		Command:                  []string{"/usr/bin/virt-launcher-monitor"},
		Args:                     computeArgs(d),
		Env:                      env,
		Ports:                    computePorts(d.vmi),
		SecurityContext:          computeSecurity(d.vmi),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	})
	return nil
}

// computeArgs lists the launcher's arguments in the order that KubeVirt uses.
func computeArgs(d *Draft) []string {
	args := []string{
		"--qemu-timeout", qemuTimeout(d),
		"--name", d.vmi.Name,
		"--uid", string(d.vmi.UID),
		"--namespace", d.vmi.Namespace,
		"--kubevirt-share-dir", shareDir,
		"--ephemeral-disk-dir", ephemeralDir,
		"--container-disk-dir", containerDiskDir,
		"--grace-period-seconds", strconv.FormatInt(graceSeconds(d.vmi)+launcherGraceMargin, 10),
		"--hook-sidecars", "0",
		"--ovmf-path", ovmfPath(d),
		"--disk-memory-limit", strconv.FormatInt(d.config.DiskMemoryLimit, 10),
		"--hypervisor", "kvm",
	}
	flags := []struct {
		name string
		set  bool
	}{
		{"--run-as-nonroot", nonRoot(d.vmi)},
		{"--image-volume", d.config.GateEnabled(gateImageVolume)},
		{"--upgrade-ordinal-ifaces", d.config.GateEnabled(gateSecondaryNaming)},
		{"--vgpu-dedicated-hook", d.config.GateEnabled(gateVGPULiveMigration)},
		{"--vm-stats-collector", d.config.GateEnabled(gateVMStatsCollector)},
		{"--firmware-auto-selection", d.config.GateEnabled(gateFirmwareSelection)},
	}
	for _, f := range flags {
		if f.set {
			args = append(args, f.name)
		}
	}
	if filters, ok := d.vmi.Annotations[v1.CustomLibvirtLogFiltersAnnotation]; ok {
		args = append(args, "--libvirt-log-filters", filters)
	}
	if d.config.AllowEmulation {
		args = append(args, "--allow-emulation")
	}
	if keepAfterFailure(d.vmi.Annotations) {
		args = append(args, "--keep-after-failure")
	}
	if _, ok := d.vmi.Annotations[v1.FuncTestLauncherFailFastAnnotation]; ok {
		args = append(args, "--simulate-crash")
	}
	return args
}

func keepAfterFailure(annotations map[string]string) bool {
	for key, value := range annotations {
		if strings.HasPrefix(key, v1.KeepLauncherAfterFailureAnnotation) && (value == "" || strings.HasPrefix(value, "true")) {
			return true
		}
	}
	return false
}

// qemuTimeout adds a jitter that is the same each time the same guest is rendered.
func qemuTimeout(d *Draft) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(d.vmi.UID)) // never fails
	return fmt.Sprintf("%ds", int64(d.config.QEMUTimeout.Seconds())+int64(h.Sum32()%maxTimeoutJitter))
}

func ovmfPath(d *Draft) string {
	if d.config.OVMFPath != "" {
		return d.config.OVMFPath
	}
	switch architecture(d.vmi, d.config) {
	case "arm64":
		return "/usr/share/AAVMF"
	case "s390x":
		return ""
	default:
		return "/usr/share/edk2/ovmf"
	}
}

func computeEnv(d *Draft) ([]corev1.EnvVar, error) {
	var env []corev1.EnvVar
	set := func(name, value string) { env = append(env, corev1.EnvVar{Name: name, Value: value}) }
	if nonRoot(d.vmi) {
		set("XDG_CACHE_HOME", privateDir)
		set("XDG_CONFIG_HOME", privateDir)
		set("XDG_RUNTIME_DIR", "/var/run")
	}
	if shared := sharedPaths(d); len(shared) > 0 {
		set("SHARED_FILESYSTEM_PATHS", strings.Join(shared, ":"))
	}
	verbosity, text, err := launcherVerbosity(d)
	if err != nil {
		return nil, err
	}
	if text != "" {
		set("VIRT_LAUNCHER_LOG_VERBOSITY", text)
	}
	debug := verbosity > 5
	if debug || strings.EqualFold(d.vmi.Labels["debugLogs"], "true") {
		set("LIBVIRT_DEBUG_LOGS", "1")
	}
	if debug || strings.EqualFold(d.vmi.Labels["virtiofsdDebugLogs"], "true") {
		set("VIRTIOFSD_DEBUG_LOGS", "1")
	}
	return append(env, podNameEnv()), nil
}

func podNameEnv() corev1.EnvVar {
	return corev1.EnvVar{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"},
	}}
}

// launcherVerbosity returns the effective log level, and the text to hand on if it is not the launcher's own default.
func launcherVerbosity(d *Draft) (uint, string, error) {
	const label = "logVerbosity"
	if text, ok := d.vmi.Labels[label]; ok {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return 0, "", invalid("metadata.labels["+label+"]", fmt.Sprintf("%q is no log level", text), "use a number from 0 to 9")
		}
		return uint(n), text, nil
	}
	n := *d.config.LauncherVerbosity
	if n == defaultVerbosity {
		return n, "", nil
	}
	return n, strconv.FormatUint(uint64(n), 10), nil
}

func computePorts(vmi *v1.VirtualMachineInstance) []corev1.ContainerPort {
	var ports []corev1.ContainerPort
	for _, iface := range vmi.Spec.Domain.Devices.Interfaces {
		for _, p := range iface.Ports {
			protocol := corev1.Protocol(p.Protocol)
			if protocol == "" {
				protocol = corev1.ProtocolTCP
			}
			ports = append(ports, corev1.ContainerPort{Name: p.Name, ContainerPort: p.Port, Protocol: protocol})
		}
	}
	return ports
}
