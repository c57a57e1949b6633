// SPDX-License-Identifier: Apache-2.0

package admit_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/vmi/admit"
)

// given is a VMI, and the default of one of its fields. The row's name is the default's, a colon and a description.
type given struct{ guest, kubevirt, field, want string }

func TestDefaults(t *testing.T) {
	const uuid = "01234567-89ab-cdef-0123-456789abcdef"
	covered := map[string]bool{}
	for name, tt := range defaultRows {
		step, _, _ := strings.Cut(name, ":")
		covered[step] = true
		t.Run(name, func(t *testing.T) {
			vmi := parse[v1.VirtualMachineInstance](t, merge(t, plainGuest, tt.guest))
			c := admit.ConfigFrom(parse[v1.KubeVirt](t, "{"+tt.kubevirt+"}"))
			c.Request = admit.Request{Now: metav1.Unix(0, 0), FirmwareUUID: uuid}
			admit.Default(vmi, c)
			if diff := cmp.Diff(*parse[any](t, tt.want), fieldOf(t, vmi, tt.field)); diff != "" {
				t.Errorf("%s: -want +got\n%s", tt.field, diff)
			}
			judge(t, vmi, c)
		})
	}
	for _, step := range admit.Steps() {
		if !covered[step] {
			t.Errorf("no row for %s", step)
		}
		delete(covered, step)
	}
	for step := range covered {
		t.Errorf("unknown default %s", step)
	}
}

// fieldOf returns a field of a VMI in its serialized form.
func fieldOf(t *testing.T, vmi *v1.VirtualMachineInstance, path string) any {
	t.Helper()
	text, err := yaml.Marshal(vmi)
	if err != nil {
		t.Fatal(err)
	}
	v := *parse[any](t, string(text))
	for name := range strings.SplitSeq(path, ".") {
		fields, _ := v.(map[string]any)
		v = fields[name]
	}
	return v
}

func cluster(settings string) string { return "spec: {configuration: {" + settings + "}}" }

var defaultRows = map[string]given{
	"architecture: none":             {field: "spec.architecture", want: "amd64"},
	"architecture: kept":             {guest: "{spec: {architecture: arm64}}", field: "spec.architecture", want: "arm64"},
	"architecture: of the cluster":   {kubevirt: cluster("architectureConfiguration: {defaultArchitecture: s390x}"), field: "spec.architecture", want: "s390x"},
	"architecture: of its nodes":     {kubevirt: "status: {defaultArchitecture: arm64}", field: "spec.architecture", want: "arm64"},
	"machine: amd64":                 {field: "spec.domain.machine.type", want: "q35"},
	"machine: arm64":                 {guest: "{spec: {architecture: arm64}}", field: "spec.domain.machine.type", want: "virt"},
	"machine: s390x":                 {guest: "{spec: {architecture: s390x}}", field: "spec.domain.machine.type", want: "s390-ccw-virtio"},
	"machine: kept":                  {guest: "{spec: {domain: {machine: {type: pc-q35-9.0}}}}", field: "spec.domain.machine.type", want: "pc-q35-9.0"},
	"machine: of the architecture":   {kubevirt: cluster("architectureConfiguration: {amd64: {machineType: pc-q35-9.0}}"), field: "spec.domain.machine.type", want: "pc-q35-9.0"},
	"machine: of the cluster":        {kubevirt: cluster("machineType: odd, architectureConfiguration: {amd64: {machineType: x}}"), field: "spec.domain.machine.type", want: "odd"},
	"cpu-request: the limit":         {guest: "{spec: {domain: {resources: {limits: {cpu: 1500m}}}}}", kubevirt: cluster("cpuRequest: 300m"), field: "spec.domain.resources.requests", want: "{cpu: 1500m}"},
	"cpu-request: of the cluster":    {kubevirt: cluster("cpuRequest: 300m"), field: "spec.domain.resources.requests", want: "{cpu: 300m}"},
	"cpu-request: the usual one":     {kubevirt: cluster("cpuRequest: 0.1"), field: "spec.domain.resources.requests", want: "null"},
	"cpu-request: dedicated CPUs":    {guest: "{spec: {domain: {cpu: {dedicatedCpuPlacement: true}}}}", kubevirt: cluster("cpuRequest: 300m"), field: "spec.domain.resources.requests", want: "null"},
	"cpu-topology: one CPU":          {field: "spec.domain.cpu", want: "{cores: 1, sockets: 1, maxSockets: 4, threads: 1, model: host-model}"},
	"cpu-topology: as many as asked": {guest: "{spec: {domain: {resources: {requests: {cpu: 2500m}}}}}", field: "spec.domain.cpu.sockets", want: "3"},
	"cpu-topology: in part":          {guest: "{spec: {domain: {cpu: {cores: 2}}}}", field: "spec.domain.cpu", want: "{cores: 2, model: host-model}"},
	"cpu-model: arm64":               {guest: "{spec: {architecture: arm64}}", kubevirt: cluster("cpuModel: x"), field: "spec.domain.cpu.model", want: "host-passthrough"},
	"cpu-model: of the cluster":      {kubevirt: cluster("cpuModel: Skylake"), field: "spec.domain.cpu.model", want: "Skylake"},
	"guest-memory: kept":             {guest: "{spec: {domain: {resources: {requests: {memory: 2Gi}}}}}", field: "spec.domain.memory.guest", want: "1Gi"},
	"guest-memory: the request":      {guest: "{spec: {domain: {memory: null, resources: {requests: {memory: 2Gi}, limits: {memory: 3Gi}}}}}", field: "spec.domain.memory.guest", want: "2Gi"},
	"guest-memory: the limit":        {guest: "{spec: {domain: {memory: null, resources: {limits: {memory: 3Gi}}}}}", field: "spec.domain.memory.guest", want: "3Gi"},
	"guest-memory: a page":           {guest: "{spec: {domain: {memory: {guest: null, hugepages: {pageSize: 1Gi}}}}}", field: "spec.domain.memory.guest", want: "1Gi"},
	"guest-memory: none":             {guest: "{spec: {domain: {memory: null}}}", field: "spec.domain.memory", want: "null"},
	"pull-policies: each": {guest: volumes("{name: a, containerDisk: {image: x}}, {name: b, containerDisk: {image: 'x:v1'}}, {name: c, containerDisk: {image: 'x:latest', imagePullPolicy: Never}}"), field: "spec.volumes",
		want: "[{name: a, containerDisk: {image: x, imagePullPolicy: Always}}, {name: b, containerDisk: {image: 'x:v1', imagePullPolicy: IfNotPresent}}, {name: c, containerDisk: {image: 'x:latest', imagePullPolicy: Never}}]"},
	"pod-network: bridge":      {field: "spec.domain.devices.interfaces", want: "[{name: default, bridge: {}}]"},
	"pod-network: its network": {field: "spec.networks", want: "[{name: default, pod: {}}]"},
	"pod-network: masquerade":  {kubevirt: cluster("network: {defaultNetworkInterface: masquerade}"), field: "spec.domain.devices.interfaces", want: "[{name: default, masquerade: {}}]"},
	"pod-network: not wanted":  {guest: devices("autoattachPodInterface: false"), field: "spec.networks", want: "null"},
	"pod-network: forbidden":   {kubevirt: cluster("network: {permitBridgeInterfaceOnPodNetwork: false}"), field: "spec.networks", want: "null"},
	"pod-network: kept":        {guest: network("{name: a, sriov: {}}", "{name: a, multus: {networkName: net}}"), field: "spec.domain.devices.interfaces", want: "[{name: a, sriov: {}}]"},
	"bindings: bridge":         {guest: network("{name: a}", "{name: a, pod: {}}"), field: "spec.domain.devices.interfaces", want: "[{name: a, bridge: {}}]"},
	"volume-disks: of those unused": {guest: "{spec: {volumes: [{name: a}, {name: b}, {name: c}, {name: d, memoryDump: {claimName: x}}], domain: {devices: {disks: [{name: b, serial: x}], filesystems: [{name: c, virtiofs: {}}]}}}}",
		field: "spec.domain.devices.disks", want: "[{name: b, serial: x, disk: {bus: sata}}, {name: a, disk: {bus: sata}}]"},
	"disk-buses: amd64": {guest: both("{name: a}, {name: b, cdrom: {}}, {name: c, lun: {}}, {name: d, disk: {bus: virtio}}", "{name: m, downwardMetrics: {}}"), field: "spec.domain.devices.disks",
		want: "[{name: a, disk: {bus: sata}}, {name: b, cdrom: {bus: sata, readonly: true, tray: closed}}, {name: c, lun: {bus: scsi}}, {name: d, disk: {bus: virtio}}, {name: m, disk: {bus: virtio}}]"},
	"disk-buses: arm64": {guest: on("arm64", "disks: [{name: a}, {name: b, cdrom: {}}]"), field: "spec.domain.devices.disks",
		want: "[{name: a, disk: {bus: virtio}}, {name: b, cdrom: {readonly: true, tray: closed}}]"},
	"bootloader: arm64":        {guest: "{spec: {architecture: arm64}}", field: "spec.domain.firmware.bootloader", want: "{efi: {secureBoot: false}}"},
	"bootloader: kept":         {guest: "{spec: {architecture: arm64, domain: {firmware: {bootloader: {bios: {}}}}}}", field: "spec.domain.firmware.bootloader", want: "{bios: {}}"},
	"acpi: s390x":              {guest: "{spec: {architecture: s390x}}", field: "spec.domain.features.acpi", want: "{enabled: false}"},
	"acpi: kept":               {guest: "{spec: {architecture: s390x, domain: {features: {acpi: {enabled: true}}}}}", field: "spec.domain.features.acpi", want: "{enabled: true}"},
	"watchdog: amd64":          {guest: devices("watchdog: {name: w}"), field: "spec.domain.devices.watchdog", want: "{name: w, i6300esb: {action: reset}}"},
	"watchdog: s390x":          {guest: on("s390x", "watchdog: {name: w}"), field: "spec.domain.devices.watchdog", want: "{name: w, diag288: {action: reset}}"},
	"api: ACPI":                {field: "spec.domain.features.acpi", want: "{enabled: true}"},
	"api: probe":               {guest: "{spec: {livenessProbe: {guestAgentPing: {}}}}", field: "spec.livenessProbe", want: "{guestAgentPing: {}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}"},
	"api: firmware UUID":       {field: "spec.domain.firmware", want: "{uuid: 01234567-89ab-cdef-0123-456789abcdef}"},
	"api: UUID kept":           {guest: "{spec: {domain: {firmware: {uuid: 11111111-89ab-cdef-0123-456789abcdef}}}}", field: "spec.domain.firmware.uuid", want: "11111111-89ab-cdef-0123-456789abcdef"},
	"hyperv: dependencies":     {guest: "{spec: {domain: {features: {hyperv: {synictimer: {}}}}}}", field: "spec.domain.features.hyperv", want: "{synictimer: {enabled: true}, synic: {enabled: true}, vpindex: {enabled: true}}"},
	"hyperv: not of the off":   {guest: "{spec: {domain: {features: {hyperv: {ipi: {enabled: false}}}}}}", field: "spec.domain.features.hyperv", want: "{ipi: {enabled: false}}"},
	"hyperv: vmx":              {guest: "{spec: {domain: {features: {hyperv: {evmcs: {}}}}}}", field: "spec.domain.cpu.features", want: "[{name: vmx, policy: require}]"},
	"annotations: a guest's":   {field: "metadata.annotations", want: "{kubevirt.io/latest-observed-api-version: v1, kubevirt.io/storage-observed-api-version: v1, kubevirt.io/pci-topology-version: v3}"},
	"versions: alone on s390x": {guest: "{spec: {architecture: s390x}}", field: "metadata.annotations", want: "{kubevirt.io/latest-observed-api-version: v1, kubevirt.io/storage-observed-api-version: v1}"},
	"annotations: of the cluster": {guest: "{metadata: {annotations: {kubevirt.io/pci-topology-version: v2}}, spec: {domain: {cpu: {isolateEmulatorThread: true}, launchSecurity: {tdx: {}}}}}",
		kubevirt: "metadata: {annotations: {alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity: ''}}, " + cluster("developerConfiguration: {featureGates: [AlignCPUs]}, confidentialCompute: {tdx: {attestation: {}}}"),
		field:    "metadata.annotations", want: "{kubevirt.io/latest-observed-api-version: v1, kubevirt.io/storage-observed-api-version: v1, kubevirt.io/pci-topology-version: v2, alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity: '', kubevirt.io/qgs-socket-path: /var/run/tdx-qgs/qgs.socket}"},
	"annotations: another socket": {guest: "{spec: {architecture: s390x, domain: {launchSecurity: {tdx: {}}}}}", kubevirt: cluster("confidentialCompute: {tdx: {attestation: {qgsSocketPath: /x}}}"),
		field: "metadata.annotations", want: "{kubevirt.io/latest-observed-api-version: v1, kubevirt.io/storage-observed-api-version: v1, kubevirt.io/qgs-socket-path: /x}"},
	"live-update: CPUs":                 {guest: "{spec: {domain: {cpu: {sockets: 3}}}}", field: "spec.domain.cpu.maxSockets", want: "12"},
	"live-update: at most 512 CPUs":     {guest: "{spec: {domain: {cpu: {sockets: 20, cores: 4, threads: 2}}}}", field: "spec.domain.cpu.maxSockets", want: "64"},
	"live-update: more than 512":        {guest: "{spec: {domain: {cpu: {sockets: 3, cores: 600}}}}", field: "spec.domain.cpu.maxSockets", want: "3"},
	"live-update: cores alone":          {guest: "{spec: {domain: {cpu: {cores: 2}}}}", field: "spec.domain.cpu.maxSockets", want: "null"},
	"live-update: no overflow":          {guest: "{spec: {domain: {cpu: {sockets: 2000000000}}}}", field: "spec.domain.cpu.maxSockets", want: "2e9"},
	"live-update: sockets kept":         {guest: "{spec: {domain: {cpu: {maxSockets: 9}}}}", field: "spec.domain.cpu.maxSockets", want: "9"},
	"live-update: sockets of all":       {kubevirt: cluster("liveUpdateConfiguration: {maxCpuSockets: 7, maxHotplugRatio: 2}"), field: "spec.domain.cpu.maxSockets", want: "7"},
	"live-update: more than of all":     {guest: "{spec: {domain: {cpu: {sockets: 8}}}}", kubevirt: cluster("liveUpdateConfiguration: {maxCpuSockets: 7}"), field: "spec.domain.cpu.maxSockets", want: "8"},
	"live-update: ratio of all, CPUs":   {kubevirt: cluster("liveUpdateConfiguration: {maxHotplugRatio: 2}"), field: "spec.domain.cpu.maxSockets", want: "2"},
	"live-update: ratio of all, memory": {kubevirt: cluster("liveUpdateConfiguration: {maxHotplugRatio: 2}"), field: "spec.domain.memory.maxGuest", want: "2Gi"},
	"live-update: memory":               {field: "spec.domain.memory", want: "{guest: 1Gi, maxGuest: 4Gi}"},
	"live-update: memory by request":    {guest: "{spec: {domain: {memory: null, resources: {requests: {memory: 2Gi}}}}}", field: "spec.domain.memory", want: "{guest: 2Gi, maxGuest: 8Gi}"},
	"live-update: memory kept":          {guest: "{spec: {domain: {memory: {maxGuest: 2Gi}}}}", field: "spec.domain.memory.maxGuest", want: "2Gi"},
	"live-update: memory of all":        {kubevirt: cluster("liveUpdateConfiguration: {maxGuest: 6Gi}"), field: "spec.domain.memory.maxGuest", want: "6Gi"},
	"live-update: less for all":         {kubevirt: cluster("liveUpdateConfiguration: {maxGuest: 512Mi}"), field: "spec.domain.memory.maxGuest", want: "null"},
	"live-update: odd memory":           {guest: "{spec: {domain: {memory: {guest: 1025Mi}}}}", field: "spec.domain.memory.maxGuest", want: "null"},
	"live-update: odd memory of all":    {kubevirt: cluster("liveUpdateConfiguration: {maxGuest: 6G}"), field: "spec.domain.memory.maxGuest", want: "null"},
	"live-update: huge pages":           {guest: "{spec: {domain: {memory: {guest: 1026Mi, hugepages: {pageSize: 1Gi}}}}}", field: "spec.domain.memory.maxGuest", want: "null"},
	"live-update: real time":            {guest: "{spec: {domain: {cpu: {realtime: {}}}}}", field: "spec.domain.memory.maxGuest", want: "null"},
	"live-update: mapped NUMA":          {guest: "{spec: {domain: {cpu: {numa: {guestMappingPassthrough: {}}}}}}", field: "spec.domain.memory.maxGuest", want: "null"},
	"live-update: encrypted":            {guest: "{spec: {domain: {launchSecurity: {sev: {}}}}}", field: "spec.domain.memory.maxGuest", want: "null"},
	"live-update: s390x, CPUs":          {guest: "{spec: {architecture: s390x}}", field: "spec.domain.cpu.maxSockets", want: "4"},
	"live-update: s390x, memory":        {guest: "{spec: {architecture: s390x}}", field: "spec.domain.memory.maxGuest", want: "null"},
	"live-update: not on arm64, CPUs":   {guest: "{spec: {architecture: arm64}}", field: "spec.domain.cpu.maxSockets", want: "null"},
	"live-update: not on arm64, memory": {guest: "{spec: {architecture: arm64}}", field: "spec.domain.memory.maxGuest", want: "null"},
	"live-update: staged, CPUs":         {kubevirt: cluster("vmRolloutStrategy: Stage"), field: "spec.domain.cpu.maxSockets", want: "null"},
	"live-update: staged, memory":       {kubevirt: cluster("vmRolloutStrategy: Stage"), field: "spec.domain.memory.maxGuest", want: "null"},
	"finalizer: added":                  {guest: "{metadata: {finalizers: [example.com/a]}}", field: "metadata.finalizers", want: "[example.com/a, kubevirt.io/foregroundDeleteVirtualMachine]"},
	"status: Pending":                   {field: "status.phase", want: "Pending"},
	"status: since":                     {field: "status.phaseTransitionTimestamps", want: "[{phase: Pending, phaseTransitionTimestamp: '1970-01-01T00:00:00Z'}]"},
	"status: a past is kept":            {guest: "{status: {phase: Running}}", field: "status.phaseTransitionTimestamps", want: "null"},
	"runtime-user: qemu's":              {field: "status.runtimeUser", want: "107"},
	"runtime-user: gate Root":           {kubevirt: cluster(gates("Root")), field: "status.runtimeUser", want: "0"},
}

// TestDefault_NoSharedMemory fails if a VMI points to the API's shared defaults.
func TestDefault_NoSharedMemory(t *testing.T) {
	first, second := parse[v1.VirtualMachineInstance](t, plainGuest), parse[v1.VirtualMachineInstance](t, plainGuest)
	admit.Default(first, admit.Config{})
	*first.Spec.Domain.Features.ACPI.Enabled = false
	admit.Default(second, admit.Config{})
	if !*second.Spec.Domain.Features.ACPI.Enabled {
		t.Error("changing one VMI changed the defaults of the next")
	}
}

func TestDefault_NoRandomUUID(t *testing.T) {
	vmi := parse[v1.VirtualMachineInstance](t, plainGuest)
	admit.Default(vmi, admit.Config{})
	if got := vmi.Spec.Domain.Firmware.UUID; got != "" {
		t.Errorf("UUID %q", got)
	}
}

// A VMI that is not created gets its shape, and no field that marks it as created.
func TestDefaultShape_SubsetOfDefault(t *testing.T) {
	c := admit.ConfigFrom(nil)
	shaped, all := parse[v1.VirtualMachineInstance](t, plainGuest), parse[v1.VirtualMachineInstance](t, plainGuest)
	admit.DefaultShape(shaped, c)
	if len(shaped.Finalizers) > 0 || shaped.Status.Phase != "" || shaped.Annotations[v1.ControllerAPILatestVersionObservedAnnotation] != "" {
		t.Errorf("marked as created: %+v, phase %q", shaped.ObjectMeta, shaped.Status.Phase)
	}
	if shaped.Spec.Architecture == "" || shaped.Spec.Domain.Machine == nil || shaped.Spec.Domain.CPU == nil {
		t.Errorf("shape not set: %+v", shaped.Spec)
	}
	admit.Default(all, c)
	admit.Default(shaped, c)
	if diff := cmp.Diff(all, shaped); diff != "" {
		t.Errorf("Default changes more than DefaultShape, want equal specs:\n%s", diff)
	}
}
