// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// consoleLog adds the container that prints the guest's serial console to the Pod's log. It is a sidecar init container, so
// that it starts before the domain and ends after it.
func consoleLog(d *render.Draft) error {
	if !logsConsole(d) {
		return nil
	}
	verbosity, _, err := launcherVerbosity(d)
	if err != nil {
		return err
	}
	always := corev1.ContainerRestartPolicyAlways
	d.AddInitContainer(corev1.Container{
		Name:            "guest-console-log",
		Image:           d.Config().LauncherImage,
		ImagePullPolicy: d.Config().ImagePullPolicy,
		RestartPolicy:   &always,
		Command:         []string{"/usr/bin/virt-tail"},
		Args:            []string{"--logfile", privateDir + "/" + string(d.VMI().UID) + "/virt-serial0-log"},
		Env:             []corev1.EnvVar{{Name: "VIRT_LAUNCHER_LOG_VERBOSITY", Value: fmt.Sprint(verbosity)}},
		SecurityContext: supportSecurity(),
		VolumeMounts:    []corev1.VolumeMount{{Name: "private", MountPath: privateDir, ReadOnly: true}},
		Resources: supportResources(d, v1.GuestConsoleLog,
			amounts{cpu: "5m", memory: "35M"}, amounts{cpu: "15m", memory: "60M"}),
	})
	return nil
}

func logsConsole(d *render.Draft) bool {
	devices := &d.VMI().Spec.Domain.Devices
	if a := devices.AutoattachSerialConsole; a != nil && !*a {
		return false
	}
	if l := devices.LogSerialConsole; l != nil {
		return *l
	}
	return !d.Config().DisableSerialConsoleLog
}

type amounts struct{ cpu, memory string }

// supportResources returns the resources of a support container: the configured ones, otherwise the defaults. A Pod of
// guaranteed quality of service needs requests equal to limits.
func supportResources(d *render.Draft, kind v1.SupportContainerType, request, limit amounts) corev1.ResourceRequirements {
	r := replacedResources(d, kind, request, limit)
	if d.VMI().IsCPUDedicated() || d.VMI().WantsToHaveQOSGuaranteed() {
		r.Requests = r.Limits.DeepCopy()
	}
	return withinLimits(d, kind, r)
}

// configuredResources returns the resources of a container in a Pod of its own, whose quality of service is independent of
// the VMI's. The Draft may be without a VMI.
func configuredResources(d *render.Draft, kind v1.SupportContainerType, request, limit amounts) corev1.ResourceRequirements {
	return withinLimits(d, kind, replacedResources(d, kind, request, limit))
}

// withinLimits fails the stage if an amount is negative, or a request above its limit: a configuration that overrides one
// of them may contradict the default of the other.
func withinLimits(d *render.Draft, kind v1.SupportContainerType, r corev1.ResourceRequirements) corev1.ResourceRequirements {
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		request, limit := r.Requests[name], r.Limits[name]
		wrong := func(side, reason, remedy string) {
			d.Fail(render.Invalid(fmt.Sprintf("Config.ContainerResources[%s].%s.%s", kind, side, name), reason, remedy))
		}
		switch {
		case limit.Sign() < 0:
			wrong("limits", limit.String()+" must not be negative", "use a positive amount")
		case request.Sign() < 0:
			wrong("requests", request.String()+" must not be negative", "use a positive amount")
		case !limit.IsZero() && request.Cmp(limit) > 0:
			wrong("requests", request.String()+" must not exceed the limit of "+limit.String(), "increase the limit, or reduce the request")
		}
	}
	return r
}

// replacedResources returns the defaults, overridden by the configuration.
func replacedResources(d *render.Draft, kind v1.SupportContainerType, request, limit amounts) corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Requests: request.list(), Limits: limit.list()}
	for _, c := range d.Config().ContainerResources {
		if c.Type != kind {
			continue
		}
		overlay(r.Requests, c.Resources.Requests)
		overlay(r.Limits, c.Resources.Limits)
	}
	return r
}

func overlay(to, from corev1.ResourceList) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q, ok := from[name]; ok && !q.IsZero() {
			to[name] = q.DeepCopy()
		}
	}
}

// list omits empty amounts.
func (a amounts) list() corev1.ResourceList {
	l := corev1.ResourceList{}
	if a.cpu != "" {
		l[corev1.ResourceCPU] = amount(a.cpu)
	}
	if a.memory != "" {
		l[corev1.ResourceMemory] = amount(a.memory)
	}
	return l
}

// parsed caches the quantities of constants.
var parsed sync.Map

// amount returns the quantity of a constant.
func amount(text string) resource.Quantity {
	if q, ok := parsed.Load(text); ok {
		return q.(resource.Quantity).DeepCopy()
	}
	q := resource.MustParse(text)
	parsed.Store(text, q)
	return q.DeepCopy()
}
