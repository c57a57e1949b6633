// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"

	"github.com/virtloom/virtloom/vm/instancetype"
)

// 6.9: requirements of preferences.
func TestCheck(t *testing.T) {
	needs := func(cpu uint32, memory, arch string) func(*prefSpec) {
		return func(p *prefSpec) {
			p.Requirements = &v1beta1.PreferenceRequirements{}
			if cpu > 0 {
				p.Requirements.CPU = &v1beta1.CPUPreferenceRequirement{Guest: cpu}
			}
			if memory != "" {
				p.Requirements.Memory = &v1beta1.MemoryPreferenceRequirement{Guest: *quantity(memory)}
			}
			if arch != "" {
				p.Requirements.Architecture = &arch
			}
		}
	}
	topo := func(t v1beta1.PreferredCPUTopology, across v1beta1.SpreadAcross) func(*prefSpec) {
		return func(p *prefSpec) {
			needs(8, "", "")(p)
			topology(t, across, 2)(p)
		}
	}
	cpu := func(sockets, cores, threads uint32) func(*v1.VirtualMachineInstanceSpec) {
		return func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.CPU = &v1.CPU{Sockets: sockets, Cores: cores, Threads: threads}
		}
	}
	memory := func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Memory = &v1.Memory{Guest: quantity("1Gi")} }
	for name, row := range map[string]struct {
		pref          func(*prefSpec)
		kind          *typeSpec
		spec          func(*v1.VirtualMachineInstanceSpec)
		fields, wants string
	}{
		"no preference":                       {},
		"no requirements":                     {pref: func(*prefSpec) {}},
		"instance type, enough":               {pref: needs(4, "1Gi", ""), kind: &large(4, "1Gi").Spec},
		"instance type, all that is missing":  {pref: needs(5, "2Gi", ""), kind: &large(4, "1Gi").Spec, fields: "spec.instancetype;spec.instancetype", wants: "insufficient CPU resources of 4 vCPU provided by instance type, preference requires 5 vCPU;insufficient Memory resources of 1Gi provided by instance type, preference requires 2Gi"},
		"no CPU":                              {pref: needs(4, "", ""), fields: "spec.template.spec.domain.cpu", wants: "no CPU resources provided by VirtualMachine, preference requires 4 vCPU"},
		"sockets":                             {pref: needs(4, "", ""), spec: cpu(2, 2, 1), fields: "spec.template.spec.domain.cpu.sockets", wants: "insufficient CPU resources of 2 vCPU provided by VirtualMachine, preference requires 4 vCPU provided as sockets"},
		"sockets, enough":                     {pref: needs(4, "", ""), spec: cpu(4, 0, 0)},
		"cores":                               {pref: topo("preferCores", ""), spec: cpu(8, 7, 1), fields: "spec.template.spec.domain.cpu.cores", wants: "insufficient CPU resources of 7 vCPU provided by VirtualMachine, preference requires 8 vCPU provided as cores"},
		"threads":                             {pref: topo("threads", ""), spec: cpu(8, 8, 2), fields: "spec.template.spec.domain.cpu.threads", wants: "insufficient CPU resources of 2 vCPU provided by VirtualMachine, preference requires 8 vCPU provided as threads"},
		"spread":                              {pref: topo("spread", "SocketsCores"), spec: cpu(2, 2, 4), fields: "spec.template.spec.domain.cpu.sockets spec.template.spec.domain.cpu.cores", wants: "insufficient CPU resources of 4 vCPU provided by VirtualMachine, preference requires 8 vCPU provided as SocketsCores"},
		"spread over all, enough":             {pref: topo("spread", "SocketsCoresThreads"), spec: cpu(2, 2, 2)},
		"any, enough":                         {pref: topo("any", ""), spec: cpu(0, 4, 2)},
		"no overflow":                         {pref: topo("any", ""), spec: cpu(1<<31, 2, 1)},
		"spread, not divisible":               {pref: topology("spread", "SocketsCoresThreads", 2), kind: &large(6, "1Gi").Spec, fields: "spec.instancetype spec.preference", wants: "6 vCPUs provided by the instance type are not divisible by 4, as the preference spreads them across SocketsCoresThreads with a ratio of 2; use an instance type with a multiple of 4 vCPUs, or another preference"},
		"spread, divisible":                   {pref: topology("spread", "SocketsCores", 2), kind: &large(6, "1Gi").Spec},
		"no memory":                           {pref: needs(0, "2Gi", ""), fields: "spec.template.spec.domain.memory", wants: "no Memory resources provided by VirtualMachine, preference requires 2Gi"},
		"memory":                              {pref: needs(0, "2Gi", ""), spec: memory, fields: "spec.template.spec.domain.memory.guest", wants: "insufficient Memory resources of 1Gi provided by VirtualMachine, preference requires 2Gi"},
		"memory, enough":                      {pref: needs(0, "1Gi", ""), spec: memory},
		"architecture":                        {pref: needs(0, "", "arm64"), spec: func(s *v1.VirtualMachineInstanceSpec) { s.Architecture = "amd64" }, fields: "spec.template.spec.architecture", wants: "preference requires architecture arm64 but amd64 is being requested"},
		"architecture of the preference":      {pref: func(p *prefSpec) { needs(0, "", "arm64")(p); p.PreferredArchitecture = new("arm64") }},
		"architecture of another, overridden": {pref: needs(0, "", "arm64"), spec: func(s *v1.VirtualMachineInstanceSpec) { s.Architecture = "arm64" }},
	} {
		t.Run(name, func(t *testing.T) {
			spec, d := &v1.VirtualMachineInstanceSpec{}, instancetype.Definitions{Instancetype: row.kind}
			if row.spec != nil {
				row.spec(spec)
			}
			if row.pref != nil {
				d.Preference = &prefSpec{}
				row.pref(d.Preference)
			}
			var fields, messages []string
			for _, u := range instancetype.Check(spec, d) {
				fields, messages = append(fields, strings.Join(u.Fields, " ")), append(messages, u.Message)
			}
			if got := strings.Join(fields, ";"); got != row.fields {
				t.Errorf("fields %q, want %q", got, row.fields)
			}
			if got := strings.Join(messages, ";"); got != row.wants {
				t.Errorf("messages %q, want %q", got, row.wants)
			}
		})
	}
}
