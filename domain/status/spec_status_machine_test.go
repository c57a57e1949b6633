// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// The status of CPU and memory hotplug.
func TestReflect_CPUsAndMemory(t *testing.T) {
	const mib = 1 << 10 // in KiB
	memdev := func(size, requested uint) libvirtxml.DomainMemorydev {
		d := libvirtxml.DomainMemorydev{Model: "virtio-mem", Alias: xmlspec.Alias("virtio-mem-0"), Target: &libvirtxml.DomainMemorydevTarget{Size: &libvirtxml.DomainMemorydevTargetSize{Value: size, Unit: "KiB"}}}
		if requested > 0 {
			d.Target.Requested = &libvirtxml.DomainMemorydevTargetRequested{Value: requested, Unit: "KiB"}
		}
		return d
	}
	trouble := func(op domain.Operation) []action.Failure {
		return []action.Failure{{Action: action.Action{Operation: op}, Err: errors.New("refused")}}
	}
	for name, tt := range map[string]struct {
		edit           func(*v1.VirtualMachineInstance, *Observation)
		cpus, memory   string
		topology       string
		current, given string
		before         bool
	}{
		"as started":            {func(*v1.VirtualMachineInstance, *Observation) {}, "", "", "1/1/1", "64Mi", "", true},
		"CPUs are to be added":  {func(v *v1.VirtualMachineInstance, _ *Observation) { v.Spec.Domain.CPU.Sockets = 2 }, "True", "", "1/1/1", "64Mi", "", true},
		"nobody said it before": {func(v *v1.VirtualMachineInstance, _ *Observation) { v.Spec.Domain.CPU.Sockets = 2 }, "", "", "1/1/1", "64Mi", "", false},
		"CPUs cannot be added": {func(v *v1.VirtualMachineInstance, o *Observation) {
			v.Spec.Domain.CPU.Sockets, o.Failures = 2, trouble(domain.Operation{Verb: domain.SetVCPUs, VCPUs: 2})
		}, "True VCPUHotplugFailed", "", "1/1/1", "64Mi", "", true},
		"CPUs were added": {func(v *v1.VirtualMachineInstance, o *Observation) {
			v.Spec.Domain.CPU.Sockets, v.Spec.Domain.CPU.Cores = 3, 2
			o.State.Domain.VCPU = &libvirtxml.DomainVCPU{Value: 8, Current: 6}
			o.State.Domain.CPU.Topology = &libvirtxml.DomainCPUTopology{Sockets: 4, Cores: 2, Threads: 1}
		}, "", "", "3/2/1", "64Mi", "", true},
		"memory is to be added": {func(v *v1.VirtualMachineInstance, _ *Observation) {
			*v.Spec.Domain.Memory.Guest = resource.MustParse("128Mi")
		},
			"", "True", "1/1/1", "64Mi", "", true},
		"memory cannot be added": {func(v *v1.VirtualMachineInstance, o *Observation) {
			d := memdev(64*mib, 64*mib)
			*v.Spec.Domain.Memory.Guest, o.Failures = resource.MustParse("128Mi"), trouble(domain.Operation{Verb: domain.AttachDevice, Device: &d})
		}, "", "False Memory Hotplug Failed", "1/1/1", "64Mi", "", true},
		"memory was added, and the guest takes it": {func(v *v1.VirtualMachineInstance, o *Observation) {
			*v.Spec.Domain.Memory.Guest = resource.MustParse("128Mi")
			o.State.Domain.Memory.Value = 64*mib + 192*mib
			o.State.Domain.CurrentMemory.Value = 100 * mib
			o.State.Domain.Devices.Memorydevs = []libvirtxml.DomainMemorydev{memdev(192*mib, 64*mib)}
		}, "", "", "1/1/1", "100Mi", "128Mi", true},
		"a module was added": {func(v *v1.VirtualMachineInstance, o *Observation) {
			*v.Spec.Domain.Memory.Guest = resource.MustParse("128Mi")
			o.State.Domain.Memory.Value = 128 * mib
			o.State.Domain.CurrentMemory.Value = 128 * mib
			o.State.Domain.Devices.Memorydevs = []libvirtxml.DomainMemorydev{memdev(64*mib, 0)}
		}, "", "", "1/1/1", "128Mi", "128Mi", true},
		"an odd amount is rounded up by QEMU": {func(v *v1.VirtualMachineInstance, o *Observation) {
			*v.Spec.Domain.Memory.Guest = resource.MustParse("64M")
			v.Status.Memory = &v1.MemoryStatus{GuestRequested: new(resource.MustParse("1Mi"))}
			o.State.Domain.Memory.Value, o.State.Domain.Memory.Unit = 62*mib, "KiB"
		}, "", "", "1/1/1", "64Mi", "64M", true},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := domainfixture.Small()
			vmi.Spec.Domain.CPU = &v1.CPU{Sockets: 1}
			if tt.before {
				setTrue(vmi, v1.VirtualMachineInstanceVCPUChange, "", "", statusNow)
				setTrue(vmi, v1.VirtualMachineInstanceMemoryChange, "", "", statusNow)
			}
			o := seen(domain.StatusRunning, "", plainLive(false))
			tt.edit(vmi, &o)
			out := Reflect(vmi, o, statusNow)
			if got := saying(out, v1.VirtualMachineInstanceVCPUChange); got != tt.cpus {
				t.Errorf("HotVCPUChange is %q, want %q", got, tt.cpus)
			}
			if got := saying(out, v1.VirtualMachineInstanceMemoryChange); got != tt.memory {
				t.Errorf("HotMemoryChange is %q, want %q", got, tt.memory)
			}
			c := out.Status.CurrentCPUTopology
			if got := fmt.Sprintf("%d/%d/%d", c.Sockets, c.Cores, c.Threads); got != tt.topology {
				t.Errorf("the topology is %s, want %s", got, tt.topology)
			}
			m := out.Status.Memory
			if m.GuestCurrent.Cmp(resource.MustParse(tt.current)) != 0 {
				t.Errorf("the guest has %s, want %s", m.GuestCurrent, tt.current)
			}
			if (m.GuestRequested == nil) != (tt.given == "") || m.GuestRequested != nil && m.GuestRequested.Cmp(resource.MustParse(tt.given)) != 0 {
				t.Errorf("it was given %v, want %q", m.GuestRequested, tt.given)
			}
		})
	}
}
