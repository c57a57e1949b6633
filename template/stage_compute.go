// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	// maxTimeoutJitter prevents launchers that start together from timing out together.
	maxTimeoutJitter = 120
	ownVerbosity     = 2 // the log level of a launcher without a setting
)

// compute adds the container that runs the guest. It is the first container: webhooks of device plugins rely on that.
func compute(d *render.Draft) error {
	d.AddContainer(corev1.Container{
		Name:                     computeContainer,
		Image:                    d.Config().LauncherImage,
		ImagePullPolicy:          d.Config().ImagePullPolicy,
		Command:                  computeCommand(d),
		SecurityContext:          computeSecurity(d.VMI()),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		Args:                     make([]string, 0, 32),
		VolumeMounts:             make([]corev1.VolumeMount, 0, 16),
	})
	d.From("Config.LauncherImage").Container(computeContainer).Derived("image")
	d.From("Config.ImagePullPolicy").Container(computeContainer).Derived("imagePullPolicy")
	d.From(runtimeUser).Container(computeContainer).Derived("securityContext")
	computeArgs(d)
	computePorts(d)
	return computeEnv(d)
}

// argument is a flag of the launcher with its source.
type argument struct{ flag, value, from string }

// computeArgs adds the launcher's arguments in KubeVirt's order.
func computeArgs(d *render.Draft) {
	for _, a := range []argument{
		{"--qemu-timeout", qemuTimeout(d), "Config.QEMUTimeout, metadata.uid"},
		{"--name", d.VMI().Name, "metadata.name"},
		{"--uid", string(d.VMI().UID), "metadata.uid"},
		{"--namespace", d.VMI().Namespace, "metadata.namespace"},
		{"--kubevirt-share-dir", shareDir, ""},
		{"--ephemeral-disk-dir", ephemeralDir, ""},
		{"--container-disk-dir", containerDiskDir, ""},
		{"--grace-period-seconds", strconv.FormatInt(graceSeconds(d.VMI())+launcherGraceMargin, 10), "spec.terminationGracePeriodSeconds"},
		{"--hook-sidecars", strconv.Itoa(len(d.Sidecars())), "stage hooks"},
		{"--ovmf-path", ovmfPath(d), "Config.OVMFPath, Config.OVMFPaths, spec.architecture, Config.ClusterArchitecture"},
		{"--disk-memory-limit", strconv.FormatInt(d.Config().DiskMemoryLimit, 10), "Config.DiskMemoryLimit"},
		{"--hypervisor", d.Config().Hypervisor, "Config.Hypervisor"},
	} {
		d.From(a.from).Container(computeContainer).Arg(a.flag, a.value)
	}
	computeFlags(d)
}

// computeFlags adds the optional arguments.
func computeFlags(d *render.Draft) {
	const gates = "Config.FeatureGates"
	for _, f := range []struct {
		argument
		set bool
	}{
		{argument{"--run-as-nonroot", "", runtimeUser}, nonRoot(d.VMI())},
		{argument{"--image-volume", "", gates}, d.Config().GateEnabled(gateImageVolume)},
		{argument{"--upgrade-ordinal-ifaces", "", gates}, d.Config().GateEnabled(gateSecondaryNaming)},
		{argument{"--vgpu-dedicated-hook", "", gates}, d.Config().GateEnabled(gateVGPULiveMigration)},
		{argument{"--vm-stats-collector", "", gates}, d.Config().GateEnabled(gateVMStatsCollector)},
		{argument{"--firmware-auto-selection", "", gates}, d.Config().GateEnabled(gateFirmwareSelection)},
	} {
		if f.set {
			d.From(f.from).Container(computeContainer).Arg(f.flag)
		}
	}
	if filters, ok := d.VMI().Annotations[v1.CustomLibvirtLogFiltersAnnotation]; ok {
		d.From("metadata.annotations").Container(computeContainer).Arg("--libvirt-log-filters", filters)
	}
	behaviourFlags(d)
}

// behaviourFlags adds the optional arguments that temporary Pods have as well.
func behaviourFlags(d *render.Draft) {
	if d.Config().AllowEmulation {
		d.From("Config.AllowEmulation").Container(computeContainer).Arg("--allow-emulation")
	}
	if keepAfterFailure(d.VMI().Annotations) {
		d.From("metadata.annotations").Container(computeContainer).Arg("--keep-after-failure")
	}
	if _, crash := d.VMI().Annotations[v1.FuncTestLauncherFailFastAnnotation]; crash {
		d.From("metadata.annotations").Container(computeContainer).Arg("--simulate-crash")
	}
}

func computeCommand(d *render.Draft) []string {
	command := []string{"/usr/bin/virt-launcher-monitor"}
	if d.Config().GateEnabled(gateCrossArch) && d.Kind() != render.TemporaryPod {
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
func qemuTimeout(d *render.Draft) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(d.VMI().UID)) // never fails
	return fmt.Sprintf("%ds", int64(d.Config().QEMUTimeout.Seconds())+int64(h.Sum32()%maxTimeoutJitter))
}

// ovmfPath returns the folder of the firmware. Architectures without a folder of their own use that of amd64.
func ovmfPath(d *render.Draft) string {
	arch, path := architecture(d.VMI(), d.Config()), "/usr/share/edk2/ovmf"
	switch arch {
	case "arm64":
		path = "/usr/share/AAVMF"
	case archS390x:
		path = ""
	default:
		arch = "amd64"
	}
	if configured := d.Config().OVMFPaths[arch]; configured != "" {
		return configured
	}
	if d.Config().OVMFPath != "" {
		return d.Config().OVMFPath
	}
	return path
}

func computeEnv(d *render.Draft) error {
	set := func(name, value, from string) {
		d.From(from).Container(computeContainer).Env(corev1.EnvVar{Name: name, Value: value})
	}
	if nonRoot(d.VMI()) {
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
	if debug || strings.EqualFold(d.VMI().Labels["debugLogs"], "true") {
		set("LIBVIRT_DEBUG_LOGS", "1", from)
	}
	if debug || strings.EqualFold(d.VMI().Labels["virtiofsdDebugLogs"], "true") {
		set("VIRTIOFSD_DEBUG_LOGS", "1", from)
	}
	d.Container(computeContainer).Env(podNameEnv())
	return nil
}

func podNameEnv() corev1.EnvVar {
	return corev1.EnvVar{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"},
	}}
}

// launcherVerbosity returns the effective log level, and its text if it is not the launcher's own default.
func launcherVerbosity(d *render.Draft) (uint, string, error) {
	const label = "logVerbosity"
	if text, ok := d.VMI().Labels[label]; ok {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return 0, "", render.Invalid("metadata.labels["+label+"]", fmt.Sprintf("%q must be a log level", text), "use a number from 0")
		}
		return uint(n), text, nil
	}
	n := *d.Config().LauncherVerbosity
	if n == ownVerbosity {
		return n, "", nil
	}
	return n, strconv.FormatUint(uint64(n), 10), nil
}

func computePorts(d *render.Draft) {
	from := d.From("spec.domain.devices.interfaces")
	for i := range d.VMI().Spec.Domain.Devices.Interfaces {
		for _, p := range d.VMI().Spec.Domain.Devices.Interfaces[i].Ports {
			protocol := corev1.Protocol(p.Protocol)
			if protocol == "" {
				protocol = corev1.ProtocolTCP
			}
			from.Container(computeContainer).Port(corev1.ContainerPort{Name: p.Name, ContainerPort: p.Port, Protocol: protocol})
		}
	}
}
