// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Set writes a field for which there is no other setter. path is the field's path in the Pod, such as
// spec.runtimeClassName or spec.containers[compute].image; write is called if the stage may own it and must change
// nothing else.
func (d *Draft) Set(path string, write func(*corev1.Pod)) {
	if d.claim(path) {
		write(d.pod)
	}
}

// Label sets one label. A value that is already there is no conflict, here and for Annotation and NodeSelector.
func (d *Draft) Label(key, value string) {
	d.setKey("metadata.labels", &d.pod.Labels, key, value)
}

// Annotation sets one annotation.
func (d *Draft) Annotation(key, value string) {
	d.setKey("metadata.annotations", &d.pod.Annotations, key, value)
}

// NodeSelector asks for one node label.
func (d *Draft) NodeSelector(key, value string) {
	d.setKey("spec.nodeSelector", &d.pod.Spec.NodeSelector, key, value)
}

func (d *Draft) setKey(field string, m *map[string]string, key, value string) {
	if old, ok := (*m)[key]; ok && old == value {
		return
	}
	if !d.claim(field + "[" + key + "]") {
		return
	}
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
}

// Volume adds a volume, or replaces the one of that name. The same volume added twice is there once.
func (d *Draft) Volume(v corev1.Volume) {
	setItem(d, &d.pod.Spec.Volumes, item[corev1.Volume]{
		path: "spec.volumes[" + v.Name + "]", value: v,
		same: func(o corev1.Volume) bool { return o.Name == v.Name },
	})
}

// EmptyDir adds an empty folder that lives as long as the Pod.
func (d *Draft) EmptyDir(name string) {
	d.Volume(corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
}

// Container appends a container, or replaces the one of that name.
func (d *Draft) Container(c corev1.Container) {
	d.addContainer("spec.containers", &d.pod.Spec.Containers, c)
}

// InitContainer appends an init container, or replaces the one of that name.
func (d *Draft) InitContainer(c corev1.Container) {
	d.addContainer("spec.initContainers", &d.pod.Spec.InitContainers, c)
}

func (d *Draft) addContainer(field string, list *[]corev1.Container, c corev1.Container) {
	path := field + "[" + c.Name + "]"
	setItem(d, list, item[corev1.Container]{
		path: path, value: c,
		same: func(o corev1.Container) bool { return o.Name == c.Name },
	})
	if d.owners[path] != d.stage.Name {
		return
	}
	d.claimParts(path, &c)
}

// claimParts makes the stage that adds a container the owner of what it has filled in; the rest stays free for others.
func (d *Draft) claimParts(path string, c *corev1.Container) {
	parts := []struct {
		name   string
		filled bool
	}{
		{"image", c.Image != ""}, {"imagePullPolicy", c.ImagePullPolicy != ""},
		{"restartPolicy", c.RestartPolicy != nil},
		{"command", len(c.Command) > 0}, {"args", len(c.Args) > 0}, {"ports", len(c.Ports) > 0},
		{"securityContext", c.SecurityContext != nil},
		{"terminationMessagePolicy", c.TerminationMessagePolicy != ""},
		{"readinessProbe", c.ReadinessProbe != nil}, {"livenessProbe", c.LivenessProbe != nil},
		{"lifecycle", c.Lifecycle != nil}, {"workingDir", c.WorkingDir != ""},
	}
	for _, part := range parts {
		if part.filled {
			d.claim(path + "." + part.name)
		}
	}
	for _, e := range c.Env {
		d.claim(path + ".env[" + e.Name + "]")
	}
	for _, m := range c.VolumeMounts {
		d.claim(path + ".volumeMounts[" + m.MountPath + "]")
	}
	for name := range c.Resources.Requests {
		d.claim(path + ".resources.requests[" + string(name) + "]")
	}
	for name := range c.Resources.Limits {
		d.claim(path + ".resources.limits[" + string(name) + "]")
	}
}

// Mount adds a volume mount to a container, or replaces the one at that path.
func (d *Draft) Mount(container string, m corev1.VolumeMount) {
	if c, path := d.container(container); c != nil {
		setItem(d, &c.VolumeMounts, item[corev1.VolumeMount]{
			path: path + ".volumeMounts[" + m.MountPath + "]", value: m,
			same: func(o corev1.VolumeMount) bool { return o.MountPath == m.MountPath },
		})
	}
}

// Device adds a block device to a container, or replaces the one at that path.
func (d *Draft) Device(container string, v corev1.VolumeDevice) {
	if c, path := d.container(container); c != nil {
		setItem(d, &c.VolumeDevices, item[corev1.VolumeDevice]{
			path: path + ".volumeDevices[" + v.DevicePath + "]", value: v,
			same: func(o corev1.VolumeDevice) bool { return o.DevicePath == v.DevicePath },
		})
	}
}

// Env adds an environment variable to a container, or replaces the one of that name.
func (d *Draft) Env(container string, e corev1.EnvVar) {
	if c, path := d.container(container); c != nil {
		setItem(d, &c.Env, item[corev1.EnvVar]{
			path: path + ".env[" + e.Name + "]", value: e,
			same: func(o corev1.EnvVar) bool { return o.Name == e.Name },
		})
	}
}

// Request sets one resource request of a container.
func (d *Draft) Request(container string, name corev1.ResourceName, q resource.Quantity) {
	if c, path := d.container(container); c != nil && d.claim(path+".resources.requests["+string(name)+"]") {
		if c.Resources.Requests == nil {
			c.Resources.Requests = corev1.ResourceList{}
		}
		c.Resources.Requests[name] = q
	}
}

// Limit sets one resource limit of a container.
func (d *Draft) Limit(container string, name corev1.ResourceName, q resource.Quantity) {
	if c, path := d.container(container); c != nil && d.claim(path+".resources.limits["+string(name)+"]") {
		if c.Resources.Limits == nil {
			c.Resources.Limits = corev1.ResourceList{}
		}
		c.Resources.Limits[name] = q
	}
}

// PullSecret adds an image pull secret once. The empty name adds nothing.
func (d *Draft) PullSecret(name string) {
	if name == "" {
		return
	}
	ref := corev1.LocalObjectReference{Name: name}
	setItem(d, &d.pod.Spec.ImagePullSecrets, item[corev1.LocalObjectReference]{
		path: "spec.imagePullSecrets[" + name + "]", value: ref,
		same: func(o corev1.LocalObjectReference) bool { return o == ref },
	})
}

// container finds a container or init container by name. A stage that names one which is not there ends with an error.
func (d *Draft) container(name string) (*corev1.Container, string) {
	for i := range d.pod.Spec.Containers {
		if d.pod.Spec.Containers[i].Name == name {
			return &d.pod.Spec.Containers[i], "spec.containers[" + name + "]"
		}
	}
	for i := range d.pod.Spec.InitContainers {
		if d.pod.Spec.InitContainers[i].Name == name {
			return &d.pod.Spec.InitContainers[i], "spec.initContainers[" + name + "]"
		}
	}
	d.fail(invalid("spec.containers["+name+"]", fmt.Sprintf("stage %q needs a container that is not there", d.stage.Name),
		"put the stage after the one that adds the container"))
	return nil, ""
}

// item is one element of a list whose elements have a merge key.
type item[T any] struct {
	path  string
	value T
	same  func(T) bool // has the same key
}

func setItem[T any](d *Draft, list *[]T, it item[T]) {
	for i, old := range *list {
		if !it.same(old) {
			continue
		}
		switch {
		case equality.Semantic.DeepEqual(old, it.value):
		case d.owners[it.path] == d.stage.Name && !d.overrides(it.path):
			d.fail(invalid(it.path, fmt.Sprintf("stage %q sets it twice, each time differently", d.stage.Name),
				"rename the volume of the guest that leads to one of them"))
		case d.claim(it.path):
			(*list)[i] = it.value
		}
		return
	}
	if d.claim(it.path) {
		*list = append(*list, it.value)
	}
}
