// SPDX-License-Identifier: Apache-2.0

package offline_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/template/offline"
	"github.com/virtloom/virtloom/template/render"
)

// parse decodes a part of an object.
func parse[T any](t *testing.T, text string) *T {
	t.Helper()
	v := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), v); err != nil {
		t.Fatal(err)
	}
	return v
}

// complete is a VMI to which no default but the one under test applies.
const complete = `
metadata: {name: testvmi, annotations: {kubevirt.io/pci-topology-version: v2}}
spec:
  architecture: amd64
  domain:
    machine: {type: pc-q35-9.0}
    cpu: {cores: 2, sockets: 3, threads: 1, model: Conroe}
    resources: {requests: {cpu: 250m}}
    devices: {autoattachPodInterface: false}
status: {runtimeUser: 107}
`

func TestDefaults(t *testing.T) {
	const cluster = "{spec: {configuration: {"
	for name, tt := range map[string]struct {
		given, without, kubevirt string // the VMI is complete with given merged into it, without the named fields
		field                    string
		want                     string
	}{
		"architecture: kept":                      {given: "{spec: {architecture: s390x}}", field: "spec.architecture", want: "s390x"},
		"architecture: amd64":                     {without: "spec.architecture", field: "spec.architecture", want: "amd64"},
		"architecture: of the cluster's nodes":    {without: "spec.architecture", kubevirt: "{status: {defaultArchitecture: arm64}}", field: "spec.architecture", want: "arm64"},
		"architecture: configured":                {without: "spec.architecture", kubevirt: cluster + "architectureConfiguration: {defaultArchitecture: s390x}}}, status: {defaultArchitecture: arm64}}", field: "spec.architecture", want: "s390x"},
		"machine: kept":                           {field: "spec.domain.machine", want: "{type: pc-q35-9.0}"},
		"machine: amd64":                          {without: "spec.domain.machine", field: "spec.domain.machine", want: "{type: q35}"},
		"machine: without type":                   {without: "spec.domain.machine.type", field: "spec.domain.machine", want: "{type: q35}"},
		"machine: arm64":                          {given: "{spec: {architecture: arm64}}", without: "spec.domain.machine", field: "spec.domain.machine", want: "{type: virt}"},
		"machine: s390x":                          {given: "{spec: {architecture: s390x}}", without: "spec.domain.machine", field: "spec.domain.machine", want: "{type: s390-ccw-virtio}"},
		"machine: another architecture":           {given: "{spec: {architecture: riscv64}}", without: "spec.domain.machine", field: "spec.domain.machine", want: "{type: q35}"},
		"machine: configured for amd64":           {without: "spec.domain.machine", kubevirt: cluster + "architectureConfiguration: {amd64: {machineType: pc-q35-8.2}, arm64: {machineType: virt-8.2}}}}}", field: "spec.domain.machine", want: "{type: pc-q35-8.2}"},
		"machine: configured for arm64":           {given: "{spec: {architecture: arm64}}", without: "spec.domain.machine", kubevirt: cluster + "architectureConfiguration: {amd64: {machineType: pc-q35-8.2}, arm64: {machineType: virt-8.2}}}}}", field: "spec.domain.machine", want: "{type: virt-8.2}"},
		"machine: configured for s390x":           {given: "{spec: {architecture: s390x}}", without: "spec.domain.machine", kubevirt: cluster + "architectureConfiguration: {s390x: {machineType: s390-ccw-virtio-9.0}}}}}", field: "spec.domain.machine", want: "{type: s390-ccw-virtio-9.0}"},
		"machine: configured for others":          {given: "{spec: {architecture: s390x}}", without: "spec.domain.machine", kubevirt: cluster + "architectureConfiguration: {amd64: {machineType: pc-q35-8.2}}}}}", field: "spec.domain.machine", want: "{type: s390-ccw-virtio}"},
		"machine: configured for all":             {without: "spec.domain.machine", kubevirt: cluster + "machineType: pc-q35-7.2, architectureConfiguration: {amd64: {machineType: pc-q35-8.2}}}}}", field: "spec.domain.machine", want: "{type: pc-q35-7.2}"},
		"CPU request: kept":                       {given: "{spec: {domain: {resources: {limits: {cpu: 2}}}}}", kubevirt: cluster + "cpuRequest: 300m}}}", field: "spec.domain.resources.requests", want: "{cpu: 250m}"},
		"CPU request: none":                       {without: "spec.domain.resources", field: "spec.domain.resources", want: "{}"},
		"CPU request: the limit":                  {given: "{spec: {domain: {resources: {limits: {cpu: 1500m}}}}}", without: "spec.domain.resources.requests", kubevirt: cluster + "cpuRequest: 300m}}}", field: "spec.domain.resources.requests", want: "{cpu: 1500m}"},
		"CPU request: the cluster's":              {without: "spec.domain.resources", kubevirt: cluster + "cpuRequest: 300m}}}", field: "spec.domain.resources", want: "{requests: {cpu: 300m}}"},
		"CPU request: the cluster's is usual":     {without: "spec.domain.resources", kubevirt: cluster + "cpuRequest: 0.1}}}", field: "spec.domain.resources", want: "{}"},
		"CPU request: dedicated CPUs":             {given: "{spec: {domain: {cpu: {dedicatedCpuPlacement: true}}}}", without: "spec.domain.resources", kubevirt: cluster + "cpuRequest: 300m}}}", field: "spec.domain.resources", want: "{}"},
		"topology: kept":                          {field: "spec.domain.cpu", want: "{cores: 2, sockets: 3, maxSockets: 12, threads: 1, model: Conroe}"},
		"topology: kept in part":                  {given: "{spec: {domain: {resources: {limits: {cpu: 5}}}}}", without: "spec.domain.cpu.sockets spec.domain.cpu.threads", field: "spec.domain.cpu", want: "{cores: 2, model: Conroe}"},
		"topology: 1/1/1":                         {without: "spec.domain.cpu spec.domain.resources", field: "spec.domain.cpu", want: "{cores: 1, sockets: 1, maxSockets: 4, threads: 1, model: host-model}"},
		"topology: the limit, rounded up":         {given: "{spec: {domain: {resources: {limits: {cpu: 3200m}}}}}", without: "spec.domain.cpu", field: "spec.domain.cpu", want: "{cores: 1, sockets: 4, maxSockets: 16, threads: 1, model: host-model}"},
		"topology: the request, rounded up":       {without: "spec.domain.cpu", field: "spec.domain.cpu", want: "{cores: 1, sockets: 1, maxSockets: 4, threads: 1, model: host-model}"},
		"topology: the request of the cluster":    {without: "spec.domain.cpu spec.domain.resources", kubevirt: cluster + "cpuRequest: 2500m}}}", field: "spec.domain.cpu", want: "{cores: 1, sockets: 3, maxSockets: 12, threads: 1, model: host-model}"},
		"topology: no limit":                      {given: "{spec: {domain: {resources: {limits: {cpu: 0}, requests: {cpu: 2}}}}}", without: "spec.domain.cpu", field: "spec.domain.cpu.sockets", want: "2"},
		"topology: too many":                      {given: "{spec: {domain: {resources: {limits: {cpu: 8G}}}}}", without: "spec.domain.cpu", field: "spec.domain.cpu.sockets", want: "4294967295"},
		"CPU model: host-model":                   {without: "spec.domain.cpu.model", field: "spec.domain.cpu.model", want: "host-model"},
		"CPU model: the cluster's":                {without: "spec.domain.cpu.model", kubevirt: cluster + "cpuModel: Skylake}}}", field: "spec.domain.cpu.model", want: "Skylake"},
		"firmware: arm64":                         {given: "{spec: {architecture: arm64}}", without: "spec.domain.firmware", field: "spec.domain.firmware", want: "{bootloader: {efi: {secureBoot: false}}}"},
		"firmware: arm64, chosen":                 {given: "{spec: {architecture: arm64, domain: {firmware: {bootloader: {bios: {}}}}}}", field: "spec.domain.firmware.bootloader", want: "{bios: {}}"},
		"CPU model: arm64":                        {given: "{spec: {architecture: arm64}}", without: "spec.domain.cpu.model", kubevirt: cluster + "cpuModel: Skylake}}}", field: "spec.domain.cpu.model", want: "host-passthrough"},
		"pull policy: kept":                       {given: "{spec: {volumes: [{name: a, containerDisk: {image: x, imagePullPolicy: Never}}]}}", field: "spec.volumes", want: "[{name: a, containerDisk: {image: x, imagePullPolicy: Never}}]"},
		"pull policy: no tag":                     {given: "{spec: {volumes: [{name: a, containerDisk: {image: x/y}}]}}", field: "spec.volumes", want: "[{name: a, containerDisk: {image: x/y, imagePullPolicy: Always}}]"},
		"pull policy: latest":                     {given: "{spec: {volumes: [{name: a, containerDisk: {image: 'x:latest'}}]}}", field: "spec.volumes", want: "[{name: a, containerDisk: {image: 'x:latest', imagePullPolicy: Always}}]"},
		"pull policy: tag":                        {given: "{spec: {volumes: [{name: a, containerDisk: {image: 'x:v1'}}]}}", field: "spec.volumes", want: "[{name: a, containerDisk: {image: 'x:v1', imagePullPolicy: IfNotPresent}}]"},
		"pull policy: digest":                     {given: "{spec: {volumes: [{name: a, containerDisk: {image: 'x@sha256:a'}}]}}", field: "spec.volumes", want: "[{name: a, containerDisk: {image: 'x@sha256:a', imagePullPolicy: IfNotPresent}}]"},
		"pull policy: port":                       {given: "{spec: {volumes: [{name: a, containerDisk: {image: 'r:5000/x'}}]}}", field: "spec.volumes", want: "[{name: a, containerDisk: {image: 'r:5000/x', imagePullPolicy: IfNotPresent}}]"},
		"network: not wanted":                     {field: "spec.networks", want: "null"},
		"network: kept":                           {given: "{spec: {networks: [{name: a, multus: {networkName: b}}]}}", without: "spec.domain.devices", field: "spec.domain.devices.interfaces", want: "null"},
		"network: bridge":                         {without: "spec.domain.devices", field: "spec.domain.devices.interfaces", want: "[{name: default, bridge: {}}]"},
		"network: Pod":                            {given: "{spec: {domain: {devices: {autoattachPodInterface: true}}}}", field: "spec.networks", want: "[{name: default, pod: {}}]"},
		"network: masquerade":                     {without: "spec.domain.devices", kubevirt: cluster + "network: {defaultNetworkInterface: masquerade, permitBridgeInterfaceOnPodNetwork: false}}}}", field: "spec.domain.devices.interfaces", want: "[{name: default, masquerade: {}}]"},
		"disks: of volumes without":               {given: "{spec: {volumes: [{name: a}, {name: b}, {name: c}], domain: {devices: {disks: [{name: b, serial: x}], filesystems: [{name: c}]}}}}", field: "spec.domain.devices.disks", want: "[{name: b, serial: x}, {name: a}]"},
		"PCI topology: kept":                      {field: "metadata.annotations", want: "{kubevirt.io/pci-topology-version: v2}"},
		"PCI topology: q35":                       {without: "metadata.annotations", field: "metadata.annotations", want: "{kubevirt.io/pci-topology-version: v3}"},
		"PCI topology: virt":                      {given: "{spec: {architecture: arm64, domain: {machine: {type: virt-9.0}}}}", without: "metadata.annotations", field: "metadata.annotations", want: "{kubevirt.io/pci-topology-version: v3}"},
		"PCI topology: another machine":           {given: "{spec: {domain: {machine: {type: pc-i440fx-9.0}}}}", without: "metadata.annotations", field: "metadata.annotations", want: "null"},
		"PCI topology: another architecture":      {given: "{spec: {architecture: s390x, domain: {machine: {type: virt}}}}", without: "metadata.annotations", field: "metadata.annotations", want: "null"},
		"parity: copied":                          {given: "{spec: {domain: {cpu: {isolateEmulatorThread: true}}}}", kubevirt: "{metadata: {annotations: {alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity: 'x'}}, spec: {configuration: {developerConfiguration: {featureGates: [AlignCPUs]}}}}", field: "metadata.annotations", want: "{alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity: '', kubevirt.io/pci-topology-version: v2}"},
		"parity: gate off":                        {given: "{spec: {domain: {cpu: {isolateEmulatorThread: true}}}}", kubevirt: "{metadata: {annotations: {alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity: ''}}}", field: "metadata.annotations", want: "{kubevirt.io/pci-topology-version: v2}"},
		"parity: no thread isolated":              {kubevirt: "{metadata: {annotations: {alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity: ''}}, spec: {configuration: {developerConfiguration: {featureGates: [AlignCPUs]}}}}", field: "metadata.annotations", want: "{kubevirt.io/pci-topology-version: v2}"},
		"parity: not in the cluster":              {given: "{spec: {domain: {cpu: {isolateEmulatorThread: true}}}}", kubevirt: cluster + "developerConfiguration: {featureGates: [AlignCPUs]}}}}", field: "metadata.annotations", want: "{kubevirt.io/pci-topology-version: v2}"},
		"TDX: configured socket":                  {given: "{spec: {domain: {launchSecurity: {tdx: {}}}}}", kubevirt: cluster + "confidentialCompute: {tdx: {attestation: {qgsSocketPath: /x}}}}}}", field: "metadata.annotations", want: "{kubevirt.io/qgs-socket-path: /x, kubevirt.io/pci-topology-version: v2}"},
		"TDX: usual socket":                       {given: "{spec: {domain: {launchSecurity: {tdx: {}}}}}", kubevirt: cluster + "confidentialCompute: {tdx: {attestation: {}}}}}}", field: "metadata.annotations", want: "{kubevirt.io/qgs-socket-path: /var/run/tdx-qgs/qgs.socket, kubevirt.io/pci-topology-version: v2}"},
		"TDX: of no cluster":                      {given: "{spec: {domain: {launchSecurity: {tdx: {}}}}}", kubevirt: cluster + "confidentialCompute: {tdx: {}}}}}", field: "metadata.annotations", want: "{kubevirt.io/qgs-socket-path: /var/run/tdx-qgs/qgs.socket, kubevirt.io/pci-topology-version: v2}"},
		"TDX: guest of another kind":              {kubevirt: cluster + "confidentialCompute: {tdx: {attestation: {}}}}}}", field: "metadata.annotations", want: "{kubevirt.io/pci-topology-version: v2}"},
		"memory: the request":                     {given: "{spec: {domain: {resources: {requests: {memory: 2Gi}}}}}", field: "spec.domain.memory", want: "{guest: 2Gi, maxGuest: 8Gi}"},
		"user: 107":                               {without: "status", field: "status.runtimeUser", want: "107"},
		"user: gate Root":                         {without: "status", kubevirt: cluster + "developerConfiguration: {featureGates: [Root]}}}}", field: "status.runtimeUser", want: "0"},
		"a guest in the cluster: nothing changes": {given: "{status: {phase: Running, runtimeUser: 0}}", without: "spec.domain.cpu spec.domain.devices", field: "spec.domain", want: "{machine: {type: pc-q35-9.0}, resources: {requests: {cpu: 250m}}, devices: {}}"},
	} {
		t.Run(name, func(t *testing.T) {
			text := merge(t, complete, tt.without, tt.given)
			vmi, before := parse[v1.VirtualMachineInstance](t, text), parse[v1.VirtualMachineInstance](t, text)
			var kv *v1.KubeVirt
			if tt.kubevirt != "" {
				kv = parse[v1.KubeVirt](t, tt.kubevirt)
			}
			got, err := offline.Default(vmi, kv)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tree(t, tt.want), at(tree(t, marshal(t, got)), tt.field)); diff != "" {
				t.Errorf("%s: -want +got\n%s", tt.field, diff)
			}
			if diff := cmp.Diff(before, vmi); diff != "" {
				t.Errorf("the given VMI was modified:\n%s", diff)
			}
			again, err := offline.Default(got, kv)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, again); diff != "" {
				t.Errorf("defaults of defaults differ:\n%s", diff)
			}
		})
	}
}

func TestDefault_InterfaceNotPermitted(t *testing.T) {
	for name, tt := range map[string]struct{ network, want string }{
		"bridge not permitted": {"{permitBridgeInterfaceOnPodNetwork: false}", "KubeVirt kv/kubevirt: spec.configuration.network.permitBridgeInterfaceOnPodNetwork: is false"},
		"slirp":                {"{defaultNetworkInterface: slirp}", `KubeVirt kv/kubevirt: spec.configuration.network.defaultNetworkInterface: "slirp" must be`},
	} {
		kv := parse[v1.KubeVirt](t, "{metadata: {name: kubevirt, namespace: kv}, spec: {configuration: {network: "+tt.network+"}}}")
		_, err := offline.Default(&v1.VirtualMachineInstance{}, kv)
		if !errors.Is(err, render.ErrInvalid) || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %s", name, err, tt.want)
		}
		if _, err := offline.Default(parse[v1.VirtualMachineInstance](t, complete), kv); err != nil {
			t.Errorf("%s: a VMI without an interface was rejected: %v", name, err)
		}
	}
}

// merge merges one document into another, from which it first removes fields.
func merge(t *testing.T, base, without, over string) string {
	t.Helper()
	fields := tree(t, base).(map[string]any)
	for _, path := range strings.Fields(without) {
		parent, last := "", path
		if i := strings.LastIndex(path, "."); i >= 0 {
			parent, last = path[:i], path[i+1:]
		}
		delete(at(fields, parent).(map[string]any), last)
	}
	if over != "" {
		lay(fields, tree(t, over).(map[string]any))
	}
	return marshal(t, fields)
}

func lay(base, over map[string]any) {
	for key, value := range over {
		below, isMap := base[key].(map[string]any)
		if more, too := value.(map[string]any); isMap && too {
			lay(below, more)
			continue
		}
		base[key] = value
	}
}

func at(v any, path string) any {
	for _, name := range strings.FieldsFunc(path, func(r rune) bool { return r == '.' }) {
		fields, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = fields[name]
	}
	return v
}

func tree(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
