// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// AddContainer appends a container, or replaces the one of that name. The stage owns the fields that are set; other stages
// may set the rest.
func (d Draft) AddContainer(c corev1.Container) {
	d.addContainer(fieldContainers, &d.pod.Spec.Containers, c)
}

// AddInitContainer appends an init container, or replaces the one of that name, like AddContainer.
func (d Draft) AddInitContainer(c corev1.Container) {
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

// Container is a container or init container of the Pod whose parts a stage sets. A missing one fails the stage.
type Container struct {
	draft Draft
	name  string
}

// Container returns the container or init container of a name.
func (d Draft) Container(name string) Container { return Container{d, name} }

// Mount adds a volume mount, or replaces the one at that path.
func (c Container) Mount(m corev1.VolumeMount) {
	if box, at := c.part(".volumeMounts", m.MountPath); box != nil {
		setItem(c.draft, &box.VolumeMounts, at, m, mountKey)
	}
}

// Device adds a block device, or replaces the one at that path.
func (c Container) Device(v corev1.VolumeDevice) {
	if box, at := c.part(".volumeDevices", v.DevicePath); box != nil {
		setItem(c.draft, &box.VolumeDevices, at, v, deviceKey)
	}
}

// Env adds an environment variable, or replaces the one of that name.
func (c Container) Env(e corev1.EnvVar) {
	if box, at := c.part(".env", e.Name); box != nil {
		setItem(c.draft, &box.Env, at, e, envKey)
	}
}

// Port adds a port.
func (c Container) Port(p corev1.ContainerPort) {
	if box, at := c.part(".ports", portKey(&p)); box != nil {
		setItem(c.draft, &box.Ports, at, p, portKey)
	}
}

// Arg adds an argument of the form "--flag value...", or replaces the values of an existing flag. A value must not begin
// with --, which would make it a flag.
func (c Container) Arg(flag string, values ...string) {
	box, at := c.part(".args", flag)
	if box == nil {
		return
	}
	for _, value := range values {
		if strings.HasPrefix(value, "--") {
			c.draft.Fail(Invalid(at.String(), fmt.Sprintf("value %q must not begin with --", value), "use another value"))
			return
		}
	}
	if !c.draft.claim(at) {
		return
	}
	i := slices.Index(box.Args, flag)
	if i < 0 {
		box.Args = append(append(box.Args, flag), values...)
		return
	}
	end := i + 1
	for end < len(box.Args) && !strings.HasPrefix(box.Args[end], "--") {
		end++
	}
	box.Args = slices.Replace(box.Args, i+1, end, values...)
}

// Request sets one resource request.
func (c Container) Request(name corev1.ResourceName, q resource.Quantity) {
	if box, at := c.part(".resources.requests", string(name)); box != nil && c.draft.claim(at) {
		if box.Resources.Requests == nil {
			box.Resources.Requests = corev1.ResourceList{}
		}
		box.Resources.Requests[name] = q
	}
}

// Limit sets one resource limit.
func (c Container) Limit(name corev1.ResourceName, q resource.Quantity) {
	if box, at := c.part(".resources.limits", string(name)); box != nil && c.draft.claim(at) {
		if box.Resources.Limits == nil {
			box.Resources.Limits = corev1.ResourceList{}
		}
		box.Resources.Limits[name] = q
	}
}

// Claim lets the container use one request of a claim of the Pod (see Draft.ResourceClaim).
func (c Container) Claim(use corev1.ResourceClaim) {
	if box, at := c.part(".resources.claims", containerClaimKey(&use)); box != nil {
		setItem(c.draft, &box.Resources.Claims, at, use, containerClaimKey)
	}
}

// Set writes a part of the container without a setter of its own, such as securityContext.runAsUser, by the rules of
// Draft.Set.
func (c Container) Set(part string, write func(*corev1.Container)) {
	box, at := c.part("", "")
	if box == nil {
		return
	}
	c.draft.Set(at.base+"["+at.name+"]."+part, func(p *corev1.Pod) {
		list := p.Spec.Containers
		if at.base == fieldInitContainers {
			list = p.Spec.InitContainers
		}
		for i := range list {
			if list[i].Name == c.name {
				write(&list[i])
			}
		}
	})
}

// Derived records the source of a part that the stage has set with the container: the one of the Draft.
func (c Container) Derived(part string) {
	if box, at := c.part("."+part, ""); box != nil {
		c.draft.claim(at)
	}
}

// View returns the container as rendered so far, nil if it is missing. It must not be changed.
func (c Container) View() *corev1.Container {
	box, _ := c.part("", "")
	return box
}

// part returns the container, and the path of one of its parts. A missing container fails the stage.
func (c Container) part(sub, item string) (*corev1.Container, field) {
	d := c.draft
	if i := find(d.rendering, d.pod.Spec.Containers, field{base: fieldContainers}, c.name, containerKey); i >= 0 {
		return &d.pod.Spec.Containers[i], field{fieldContainers, c.name, sub, item}
	}
	if i := find(d.rendering, d.pod.Spec.InitContainers, field{base: fieldInitContainers}, c.name, containerKey); i >= 0 {
		return &d.pod.Spec.InitContainers[i], field{fieldInitContainers, c.name, sub, item}
	}
	d.Fail(Invalid("spec.containers["+c.name+"]", fmt.Sprintf("stage %q requires a missing container", d.stage.Name),
		"put the stage after the one that adds the container"))
	return nil, field{}
}
