// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

func TestSpecCPU(t *testing.T) {
	topology := func(sockets, cores, threads int) string {
		return fmt.Sprintf(`<topology sockets="%d" cores="%d" threads="%d"/>`, sockets, cores, threads)
	}
	features := func(list ...v1.CPUFeature) []v1.CPUFeature { return list }
	room := giveCPU(v1.CPU{Cores: 2, Sockets: 2, Threads: 1, MaxSockets: 3})
	runMachineRows(t, map[string]machineRow{
		"C7: CPUs multiply": {
			change: giveCPU(v1.CPU{Cores: 3, Sockets: 2, Threads: 2}), element: "vcpu", want: `<vcpu placement="static">12</vcpu>`,
		},
		"C7: the topology is that of the spec":  {change: giveCPU(v1.CPU{Cores: 3, Sockets: 2, Threads: 2}), element: "topology", want: topology(2, 3, 2)},
		"C8: sockets are what is requested":     {change: resourcesOf(cpuAmount("3"), nil), element: "topology", want: topology(3, 1, 1)},
		"C8: sockets are what it is limited to": {change: resourcesOf(nil, cpuAmount("3")), element: "topology", want: topology(3, 1, 1)},
		"C8: the limit beats the request":       {change: resourcesOf(cpuAmount("2"), cpuAmount("3")), element: "topology", want: topology(3, 1, 1)},
		"C8: a fraction of a CPU is a socket":   {change: resourcesOf(cpuAmount("2500m"), nil), element: "topology", want: topology(3, 1, 1)},
		"cpu: a part of the topology is enough": {
			change: changes(giveCPU(v1.CPU{Cores: 2}), resourcesOf(cpuAmount("3"), nil)), element: "topology", want: topology(1, 2, 1),
		},
		"cpu: one of all by default":                {element: "topology", want: topology(1, 1, 1)},
		"cpu: room for sockets is in the topology":  {change: room, element: "topology", want: topology(3, 2, 1)},
		"cpu: CPUs that come later are not plugged": {change: room, element: "vcpu", want: `<vcpu placement="static" current="4">6</vcpu>`},
		"cpu: those beyond the first socket can be plugged": {change: room, element: "vcpus", want: `<vcpus>` +
			`<vcpu id="0" enabled="yes" hotpluggable="no"/><vcpu id="1" enabled="yes" hotpluggable="no"/>` +
			`<vcpu id="2" enabled="yes" hotpluggable="yes"/><vcpu id="3" enabled="yes" hotpluggable="yes"/>` +
			`<vcpu id="4" enabled="no" hotpluggable="yes"/><vcpu id="5" enabled="no" hotpluggable="yes"/></vcpus>`},
		"cpu: room that is full can be emptied": {change: giveCPU(v1.CPU{Sockets: 2, MaxSockets: 2}), element: "vcpus", want: `<vcpus>` +
			`<vcpu id="0" enabled="yes" hotpluggable="no"/><vcpu id="1" enabled="yes" hotpluggable="yes"/></vcpus>`},
		"cpu: s390x has room too": {
			change: onArch(xmlspec.ArchS390X, room), element: "vcpu", want: `<vcpu placement="static" current="4">6</vcpu>`,
		},
		"cpu: no list without room":                   {change: giveCPU(v1.CPU{Sockets: 2}), element: "vcpus"},
		"C13: no room on arm64":                       {change: onArch(xmlspec.ArchARM, room), element: "vcpus"},
		"C13: the topology on arm64 is what is there": {change: onArch(xmlspec.ArchARM, room), element: "topology", want: topology(2, 2, 1)},
		"C13: CPUs on arm64 are what is there":        {change: onArch(xmlspec.ArchARM, room), element: "vcpu", want: `<vcpu placement="static">4</vcpu>`},
		"cpu: the model is the host's by default":     {element: "cpu", want: `<cpu mode="host-model">` + topology(1, 1, 1) + `</cpu>`},
		"cpu: the host's own": {
			change: giveCPU(v1.CPU{Model: "host-passthrough"}), element: "cpu", want: `<cpu mode="host-passthrough">` + topology(1, 1, 1) + `</cpu>`,
		},
		"C10: a named model loses mpx on amd64": {
			change: giveCPU(v1.CPU{Model: "Conroe"}), element: "cpu",
			want: `<cpu match="exact" mode="custom"><model>Conroe</model>` + topology(1, 1, 1) + `<feature policy="disable" name="mpx"/></cpu>`,
		},
		"C10: a named model keeps mpx on arm64": {change: onArch(xmlspec.ArchARM, giveCPU(v1.CPU{Model: "Conroe"})), element: "feature"},
		"C10: a named model keeps mpx on s390x": {change: onArch(xmlspec.ArchS390X, giveCPU(v1.CPU{Model: "Conroe"})), element: "feature"},
		"C11: mpx of the spec is the only one": {
			change: giveCPU(v1.CPU{Model: "Conroe", Features: features(v1.CPUFeature{Name: "mpx", Policy: "require"})}), element: "cpu",
			want: `<cpu match="exact" mode="custom"><model>Conroe</model>` + topology(1, 1, 1) + `<feature policy="require" name="mpx"/></cpu>`,
		},
		"cpu: features are in the order of the spec, required by default": {
			change:  giveCPU(v1.CPU{Model: "host-model", Features: features(v1.CPUFeature{Name: "x2apic"}, v1.CPUFeature{Name: "aes", Policy: "forbid"})}),
			element: "cpu", want: `<cpu mode="host-model">` + topology(1, 1, 1) + `<feature policy="require" name="x2apic"/><feature policy="forbid" name="aes"/></cpu>`,
		},
	})
	runMachineErrors(t, map[string]machineError{
		"cpu: a feature without a name": {giveCPU(v1.CPU{Features: features(v1.CPUFeature{})}), "spec.domain.cpu.features[0].name", domain.ErrInvalid},
		"cpu: a policy nobody knows": {
			giveCPU(v1.CPU{Features: features(v1.CPUFeature{Name: "aes", Policy: "x"})}), "spec.domain.cpu.features[0].policy", domain.ErrInvalid,
		},
	})
}

func TestSpecQueues_PresentCPUs(t *testing.T) {
	t.Run("C14: queues are for the CPUs that are plugged, not for all there may be", func(t *testing.T) {
		vmi := domainfixture.Small()
		vmi.Spec.Domain.CPU = &v1.CPU{Cores: 2, Threads: 2, Sockets: 2, MaxSockets: 8}
		vmi.Spec.Domain.Devices.BlockMultiQueue = new(true)
		d, err := Convert(vmi, domainfixture.Facts[Facts]())
		if err != nil {
			t.Fatal(err)
		}
		if q := d.Devices.Disks[0].Driver.Queues; q == nil || *q != 8 || d.VCPU.Value != 32 {
			t.Errorf("%v queues for %d CPUs, want 8 for 32", q, d.VCPU.Value)
		}
	})
}
