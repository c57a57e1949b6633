// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	api "kubevirt.io/api/instancetype"
)

// Conflicts are the fields that both the template and the instance type set, in order.
type Conflicts struct {
	// Subject is the kind of the object: VMI or VM.
	Subject string
	// Fields are the paths of the fields.
	Fields []string
}

// Error names all fields.
func (c *Conflicts) Error() string {
	return fmt.Sprintf("%s conflicts with instancetype spec in fields: [%s]", c.Subject, strings.Join(c.Fields, ", "))
}

// target is what an instance type and a preference are applied to: the annotations and the spec of a VMI, or those of
// the template of a VM.
type target struct {
	Annotations map[string]string
	Spec        *v1.VirtualMachineInstanceSpec
}

// ToTemplate applies the definitions to a template in place. The error is of type *[Conflicts]; then the target
// is left as it was.
func ToTemplate(template *v1.VirtualMachineInstanceTemplateSpec, d Definitions) error {
	t := target{Annotations: template.ObjectMeta.Annotations, Spec: &template.Spec}
	err := t.apply("VM", "spec.template.spec", d)
	if err == nil {
		template.ObjectMeta.Annotations = t.Annotations
	}
	return err
}

// ToVMI applies the definitions to a VMI in place, and records the names of the matchers of its VM in annotations. The error is
// of type *[Conflicts]; then the VMI is left as it was.
func ToVMI(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, d Definitions) error {
	t := target{Annotations: maps.Clone(vmi.Annotations), Spec: &vmi.Spec}
	t.nameMatchers(vm)
	if err := t.apply("VMI", "spec", d); err != nil {
		return err
	}
	vmi.Annotations = t.Annotations
	return nil
}

// annotate sets an annotation.
func (t *target) annotate(key, value string) {
	if t.Annotations == nil {
		t.Annotations = map[string]string{}
	}
	t.Annotations[key] = value
}

// nameMatchers records the names of instance type and preference.
func (t *target) nameMatchers(vm *v1.VirtualMachine) {
	if m := vm.Spec.Instancetype; m != nil {
		key := v1.ClusterInstancetypeAnnotation
		if is(m.Kind, api.SingularResourceName, api.PluralResourceName) {
			key = v1.InstancetypeAnnotation
		}
		t.annotate(key, m.Name)
	}
	if m := vm.Spec.Preference; m != nil {
		key := v1.ClusterPreferenceAnnotation
		if is(m.Kind, api.SingularPreferenceResourceName, api.PluralPreferenceResourceName) {
			key = v1.PreferenceAnnotation
		}
		t.annotate(key, m.Name)
	}
}

// apply applies both, the instance type first.
func (t *target) apply(subject, base string, d Definitions) error {
	if d.Instancetype != nil {
		a := &application{target: t, base: base, spec: d.Instancetype.DeepCopy(), preference: d.Preference}
		a.conflicts()
		if len(a.fields) > 0 {
			return &Conflicts{Subject: subject, Fields: a.fields}
		}
		a.apply()
	}
	if d.Preference != nil {
		(&preferring{target: t, p: d.Preference.DeepCopy()}).apply()
	}
	return nil
}

// conflicts collects the fields that both sides set.
func (a *application) conflicts() {
	s, d := a.target.Spec, &a.target.Spec.Domain
	a.clash("nodeSelector", s.NodeSelector != nil && a.spec.NodeSelector != nil)
	a.clash("schedulerName", s.SchedulerName != "" && a.spec.SchedulerName != "")
	a.cpuConflicts()
	a.memoryConflicts()
	a.clash("domain.ioThreadsPolicy", d.IOThreadsPolicy != nil && a.spec.IOThreadsPolicy != nil)
	a.clash("domain.ioThreads", d.IOThreads != nil && a.spec.IOThreads != nil)
	a.clash("domain.launchSecurity", d.LaunchSecurity != nil && a.spec.LaunchSecurity != nil)
	a.clash("domain.devices.gpus", len(d.Devices.GPUs) > 0 && len(a.spec.GPUs) > 0)
	a.clash("domain.devices.hostDevices", len(d.Devices.HostDevices) > 0 && len(a.spec.HostDevices) > 0)
	for _, key := range slices.Sorted(maps.Keys(a.spec.Annotations)) {
		if value, set := a.Annotations[key]; set && value != a.spec.Annotations[key] {
			a.fields = append(a.fields, "annotations."+key)
		}
	}
}

// clash adds a field if it conflicts.
func (a *application) clash(field string, conflict bool) {
	if conflict {
		a.fields = append(a.fields, a.base+"."+field)
	}
}

// cpuConflicts adds those of the CPU; the topology is the instance type's alone.
func (a *application) cpuConflicts() {
	if cpu, given := a.target.Spec.Domain.CPU, a.spec.CPU; cpu != nil {
		a.clash("domain.cpu.sockets", cpu.Sockets != 0)
		a.clash("domain.cpu.cores", cpu.Cores != 0)
		a.clash("domain.cpu.threads", cpu.Threads != 0)
		a.clash("domain.cpu.model", cpu.Model != "" && given.Model != nil)
		a.clash("domain.cpu.dedicatedCPUPlacement", cpu.DedicatedCPUPlacement && given.DedicatedCPUPlacement != nil)
		a.clash("domain.cpu.isolateEmulatorThread", cpu.IsolateEmulatorThread && given.IsolateEmulatorThread != nil)
		a.clash("domain.cpu.numa", cpu.NUMA != nil && given.NUMA != nil)
		a.clash("domain.cpu.realtime", cpu.Realtime != nil && given.Realtime != nil)
	}
	a.resourceConflicts(corev1.ResourceCPU)
}

// memoryConflicts adds those of the memory; its size is the instance type's alone.
func (a *application) memoryConflicts() {
	if m, given := a.target.Spec.Domain.Memory, a.spec.Memory; m != nil {
		a.clash("domain.memory.guest", m.Guest != nil)
		a.clash("domain.memory.hugepages", m.Hugepages != nil && given.Hugepages != nil)
		a.clash("domain.memory.maxGuest", m.MaxGuest != nil && given.MaxGuest != nil)
	}
	a.resourceConflicts(corev1.ResourceMemory)
}

func (a *application) resourceConflicts(name corev1.ResourceName) {
	resources := a.target.Spec.Domain.Resources
	_, requested := resources.Requests[name]
	_, limited := resources.Limits[name]
	a.clash("domain.resources.requests."+string(name), requested)
	a.clash("domain.resources.limits."+string(name), limited)
}
