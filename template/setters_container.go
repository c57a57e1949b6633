// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Container appends a container, or replaces the one of that name. The stage owns the fields that are set; other stages may
// set the rest.
func (d Draft) Container(c corev1.Container) {
	d.addContainer(fieldContainers, &d.pod.Spec.Containers, c)
}

// InitContainer appends an init container, or replaces the one of that name, like Container.
func (d Draft) InitContainer(c corev1.Container) {
	d.addContainer(fieldInitContainers, &d.pod.Spec.InitContainers, c)
}

func (d Draft) addContainer(base string, list *[]corev1.Container, c corev1.Container) {
	at := field{base: base, name: c.Name}
	other := field{base: fieldContainers, name: c.Name}
	if base == fieldContainers {
		other.base = fieldInitContainers
	}
	if o := d.ledger.owners.get(other); o.stage != "" { // names are unique across both lists
		d.owned(at, o)
		return
	}
	var parts []field
	if i := find(d.rendering, *list, at.list(), c.Name, containerKey); i >= 0 {
		parts = d.ledger.inside(at, d.stage.Name)
		if equality.Semantic.DeepEqual((*list)[i], c) || !d.mayReplace(parts) {
			return
		}
	}
	if setItem(d, list, at, c, containerKey) {
		d.claimContents(at, &c)
		for _, part := range parts {
			d.ledger.replaced(part, at)
		}
	}
}

// claimContents claims the fields that the added container sets.
func (d Draft) claimContents(at field, c *corev1.Container) {
	claim := func(sub, item string) {
		f := at
		f.sub, f.item = sub, item
		d.claim(f)
	}
	for _, part := range [...]struct {
		name   string
		filled bool
	}{
		{".image", c.Image != ""}, {".imagePullPolicy", c.ImagePullPolicy != ""},
		{".restartPolicy", c.RestartPolicy != nil}, {".workingDir", c.WorkingDir != ""},
		{".command", len(c.Command) > 0}, {".securityContext", c.SecurityContext != nil},
		{".terminationMessagePolicy", c.TerminationMessagePolicy != ""},
		{".readinessProbe", c.ReadinessProbe != nil}, {".livenessProbe", c.LivenessProbe != nil},
		{".startupProbe", c.StartupProbe != nil}, {".lifecycle", c.Lifecycle != nil},
	} {
		if part.filled {
			claim(part.name, "")
		}
	}
	for _, arg := range c.Args {
		claim(".args", arg)
	}
	for i := range c.Ports {
		claim(".ports", portKey(&c.Ports[i]))
	}
	for i := range c.Env {
		claim(".env", c.Env[i].Name)
	}
	for i := range c.VolumeMounts {
		claim(".volumeMounts", c.VolumeMounts[i].MountPath)
	}
	for i := range c.VolumeDevices {
		claim(".volumeDevices", c.VolumeDevices[i].DevicePath)
	}
	for name := range c.Resources.Requests {
		claim(".resources.requests", string(name))
	}
	for name := range c.Resources.Limits {
		claim(".resources.limits", string(name))
	}
	for _, use := range c.Resources.Claims {
		claim(".resources.claims", containerClaimKey(&use))
	}
}

// Mount adds a volume mount to a container, or replaces the one at that path.
func (d Draft) Mount(container string, m corev1.VolumeMount) {
	if c, at := d.container(container, ".volumeMounts", m.MountPath); c != nil {
		setItem(d, &c.VolumeMounts, at, m, mountKey)
	}
}

// Device adds a block device to a container, or replaces the one at that path.
func (d Draft) Device(container string, v corev1.VolumeDevice) {
	if c, at := d.container(container, ".volumeDevices", v.DevicePath); c != nil {
		setItem(d, &c.VolumeDevices, at, v, deviceKey)
	}
}

// Env adds an environment variable to a container, or replaces the one of that name.
func (d Draft) Env(container string, e corev1.EnvVar) {
	if c, at := d.container(container, ".env", e.Name); c != nil {
		setItem(d, &c.Env, at, e, envKey)
	}
}

// Port adds a port to a container.
func (d Draft) Port(container string, p corev1.ContainerPort) {
	if c, at := d.container(container, ".ports", portKey(&p)); c != nil {
		setItem(d, &c.Ports, at, p, portKey)
	}
}

// Arg adds an argument of the form "--flag value...", or replaces the values of an existing flag. A value must not begin
// with --, which would make it a flag.
func (d Draft) Arg(container, flag string, values ...string) {
	c, at := d.container(container, ".args", flag)
	if c == nil {
		return
	}
	for _, value := range values {
		if strings.HasPrefix(value, "--") {
			d.fail(invalid(at.String(), fmt.Sprintf("value %q must not begin with --", value), "use another value"))
			return
		}
	}
	if !d.claim(at) {
		return
	}
	i := slices.Index(c.Args, flag)
	if i < 0 {
		c.Args = append(append(c.Args, flag), values...)
		return
	}
	end := i + 1
	for end < len(c.Args) && !strings.HasPrefix(c.Args[end], "--") {
		end++
	}
	c.Args = slices.Replace(c.Args, i+1, end, values...)
}

// Request sets one resource request of a container.
func (d Draft) Request(container string, name corev1.ResourceName, q resource.Quantity) {
	if c, at := d.container(container, ".resources.requests", string(name)); c != nil && d.claim(at) {
		if c.Resources.Requests == nil {
			c.Resources.Requests = corev1.ResourceList{}
		}
		c.Resources.Requests[name] = q
	}
}

// Limit sets one resource limit of a container.
func (d Draft) Limit(container string, name corev1.ResourceName, q resource.Quantity) {
	if c, at := d.container(container, ".resources.limits", string(name)); c != nil && d.claim(at) {
		if c.Resources.Limits == nil {
			c.Resources.Limits = corev1.ResourceList{}
		}
		c.Resources.Limits[name] = q
	}
}

// Claim lets a container use one request of a claim of the Pod (see ResourceClaim).
func (d Draft) Claim(container string, use corev1.ResourceClaim) {
	if c, at := d.container(container, ".resources.claims", containerClaimKey(&use)); c != nil {
		setItem(d, &c.Resources.Claims, at, use, containerClaimKey)
	}
}

// containerOf returns a container that Draft.container has found, in the Pod that is passed to a write.
func containerOf(p *corev1.Pod, name string) *corev1.Container {
	i := slices.IndexFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == name })
	return &p.Spec.Containers[i]
}

// container returns a container or init container by name, and the path of one of its parts. A missing container fails the
// stage.
func (d Draft) container(name, sub, item string) (*corev1.Container, field) {
	if i := find(d.rendering, d.pod.Spec.Containers, field{base: fieldContainers}, name, containerKey); i >= 0 {
		return &d.pod.Spec.Containers[i], field{fieldContainers, name, sub, item}
	}
	if i := find(d.rendering, d.pod.Spec.InitContainers, field{base: fieldInitContainers}, name, containerKey); i >= 0 {
		return &d.pod.Spec.InitContainers[i], field{fieldInitContainers, name, sub, item}
	}
	d.fail(invalid("spec.containers["+name+"]", fmt.Sprintf("stage %q requires a missing container", d.stage.Name),
		"put the stage after the one that adds the container"))
	return nil, field{}
}
