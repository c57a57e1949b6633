// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"

	"github.com/google/go-cmp/cmp"

	"github.com/virtloom/virtloom/vm/instancetype"
)

// An applyRow is a VMI, what is applied, and the result as JSON, or the conflicting fields.
type applyRow struct {
	vmi       func(*v1.VirtualMachineInstance)
	kind      func(*typeSpec)
	pref      func(*prefSpec)
	want      string
	conflicts string
	// part selects a part of the VMI by its path; the default is "spec domain".
	part string
}

func (r applyRow) run(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	if r.vmi != nil {
		r.vmi(vmi)
	}
	before := vmi.DeepCopy()
	var d instancetype.Definitions
	if r.kind != nil {
		d.Instancetype = &large(4, "1Gi").Spec
		r.kind(d.Instancetype)
	}
	if r.pref != nil {
		d.Preference = &prefSpec{}
		r.pref(d.Preference)
	}
	kept := d
	kept.Instancetype, kept.Preference = d.Instancetype.DeepCopy(), d.Preference.DeepCopy()
	vm := newVM(func(vm *v1.VirtualMachine) { vm.Spec.Instancetype = nil })
	err := instancetype.ToVMI(vm, vmi, d)
	if diff := cmp.Diff(kept, d); diff != "" {
		t.Errorf("the definitions changed:\n%s", diff)
	}
	if r.conflicts != "" {
		var c *instancetype.Conflicts
		want := "VMI conflicts with instancetype spec in fields: [" + r.conflicts + "]"
		if !errors.As(err, &c) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		if diff := cmp.Diff(before, vmi); diff != "" {
			t.Errorf("it was applied in spite of conflicts:\n%s", diff)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(parsed(t, r.want), pick(t, vmi, r.part)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func parsed(t *testing.T, text string) (value any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return value
}

// pick returns a part of an object as JSON has it.
func pick(t *testing.T, object any, path string) any {
	t.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	if path == "" {
		path = "spec domain"
	}
	value := parsed(t, string(raw))
	for _, name := range strings.Fields(path) {
		value, _ = value.(map[string]any)[name]
	}
	return value
}

func domain(change func(*v1.DomainSpec)) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { change(&vmi.Spec.Domain) }
}

func plain(*typeSpec) {}

func TestToVMI_Conflicts(t *testing.T) {
	yes := new(true)
	for name, row := range map[string]applyRow{
		"6.6 topology, all fields": {kind: plain, vmi: domain(func(d *v1.DomainSpec) { d.CPU = &v1.CPU{Sockets: 1, Cores: 1, Threads: 1} }),
			conflicts: "spec.domain.cpu.sockets, spec.domain.cpu.cores, spec.domain.cpu.threads"},
		"6.6 requests and limits": {kind: plain, vmi: domain(func(d *v1.DomainSpec) {
			d.Resources.Requests, d.Resources.Limits = requests(corev1.ResourceCPU, "1"), requests(corev1.ResourceMemory, "1Gi")
		}), conflicts: "spec.domain.resources.requests.cpu, spec.domain.resources.limits.memory"},
		"6.6 what a CPU is, if both": {vmi: domain(func(d *v1.DomainSpec) {
			d.CPU = &v1.CPU{Model: "a", DedicatedCPUPlacement: true, IsolateEmulatorThread: true, NUMA: &v1.NUMA{}, Realtime: &v1.Realtime{}}
		}), kind: func(s *typeSpec) {
			s.CPU.Model, s.CPU.DedicatedCPUPlacement, s.CPU.IsolateEmulatorThread, s.CPU.NUMA, s.CPU.Realtime = new("b"), yes, yes, &v1.NUMA{}, &v1.Realtime{}
		}, conflicts: "spec.domain.cpu.model, spec.domain.cpu.dedicatedCPUPlacement, spec.domain.cpu.isolateEmulatorThread, spec.domain.cpu.numa, spec.domain.cpu.realtime"},
		"6.6 (better: memory, all fields)": {vmi: domain(func(d *v1.DomainSpec) {
			d.Memory = &v1.Memory{Guest: quantity("1Gi"), Hugepages: &v1.Hugepages{}, MaxGuest: quantity("2Gi")}
		}), kind: func(s *typeSpec) { s.Memory.Hugepages, s.Memory.MaxGuest = &v1.Hugepages{}, quantity("3Gi") },
			conflicts: "spec.domain.memory.guest, spec.domain.memory.hugepages, spec.domain.memory.maxGuest"},
		"6.6 scheduling": {vmi: func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.NodeSelector, vmi.Spec.SchedulerName = map[string]string{"a": "b"}, "s"
		}, kind: func(s *typeSpec) { s.NodeSelector, s.SchedulerName = map[string]string{"c": "d"}, "t" },
			conflicts: "spec.nodeSelector, spec.schedulerName"},
		"6.6 devices": {vmi: domain(func(d *v1.DomainSpec) {
			d.IOThreads, d.IOThreadsPolicy, d.LaunchSecurity = &v1.DiskIOThreads{}, new(v1.IOThreadsPolicyAuto), &v1.LaunchSecurity{}
			d.Devices.GPUs, d.Devices.HostDevices = []v1.GPU{{}}, []v1.HostDevice{{}}
		}), kind: func(s *typeSpec) {
			s.IOThreads, s.IOThreadsPolicy, s.LaunchSecurity = &v1.DiskIOThreads{}, new(v1.IOThreadsPolicyShared), &v1.LaunchSecurity{}
			s.GPUs, s.HostDevices = []v1.GPU{{}}, []v1.HostDevice{{}}
		}, conflicts: "spec.domain.ioThreadsPolicy, spec.domain.ioThreads, spec.domain.launchSecurity, spec.domain.devices.gpus, spec.domain.devices.hostDevices"},
		"6.6 annotations of another value": {vmi: func(vmi *v1.VirtualMachineInstance) { vmi.Annotations = map[string]string{"a": "1", "b": "1"} },
			kind: func(s *typeSpec) { s.Annotations = map[string]string{"a": "2", "b": "1", "c": "1"} }, conflicts: "annotations.a"},
		"6.5 then no preference is applied": {vmi: domain(func(d *v1.DomainSpec) { d.CPU = &v1.CPU{Cores: 1} }), kind: plain,
			pref: func(p *prefSpec) { p.PreferredSubdomain = new("x") }, conflicts: "spec.domain.cpu.cores"},
	} {
		t.Run(name, row.run)
	}
}

func TestToTemplate_Conflicts(t *testing.T) {
	vm := newVM(func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Domain.CPU = &v1.CPU{Sockets: 2} })
	err := instancetype.ToTemplate(vm.Spec.Template, instancetype.Definitions{Instancetype: &large(4, "1Gi").Spec})
	if want := "VM conflicts with instancetype spec in fields: [spec.template.spec.domain.cpu.sockets]"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func topology(t v1beta1.PreferredCPUTopology, across v1beta1.SpreadAcross, ratio uint32) func(*prefSpec) {
	return func(p *prefSpec) {
		p.CPU = &v1beta1.CPUPreferences{PreferredCPUTopology: &t}
		if across != "" || ratio != 0 {
			p.CPU.SpreadOptions = &v1beta1.SpreadOptions{Across: &across, Ratio: &ratio}
		}
	}
}

func TestToVMI_Topology(t *testing.T) {
	cpus := func(n uint32) func(*typeSpec) { return func(s *typeSpec) { s.CPU.Guest = n } }
	old := func(p *prefSpec) {
		topology("preferSpread", "", 0)(p)
		p.PreferSpreadSocketToCoreRatio = 4
	}
	for name, row := range map[string]applyRow{
		"6.7 one vCPU":                   {kind: cpus(1), pref: topology(v1beta1.Cores, "", 0), want: `{"sockets":1,"cores":1,"threads":1}`},
		"6.7 sockets by default":         {kind: cpus(6), want: `{"sockets":6,"cores":1,"threads":1}`},
		"6.7 sockets for any":            {kind: cpus(6), pref: topology("preferAny", "", 0), want: `{"sockets":6,"cores":1,"threads":1}`},
		"6.7 cores":                      {kind: cpus(6), pref: topology(v1beta1.Cores, "", 0), want: `{"sockets":1,"cores":6,"threads":1}`},
		"6.7 cores by the old name":      {kind: cpus(6), pref: topology("preferCores", "", 0), want: `{"sockets":1,"cores":6,"threads":1}`},
		"6.7 threads":                    {kind: cpus(6), pref: topology("preferThreads", "", 0), want: `{"sockets":1,"cores":1,"threads":6}`},
		"6.7 spread":                     {kind: cpus(6), pref: topology(v1beta1.Spread, "", 0), want: `{"sockets":3,"cores":2,"threads":1}`},
		"6.7 spread with the old ratio":  {kind: cpus(8), pref: old, want: `{"sockets":2,"cores":4,"threads":1}`},
		"6.7 spread over cores, threads": {kind: cpus(8), pref: topology(v1beta1.Spread, v1beta1.SpreadAcrossCoresThreads, 2), want: `{"sockets":1,"cores":4,"threads":2}`},
		"6.7 spread over all":            {kind: cpus(16), pref: topology(v1beta1.Spread, v1beta1.SpreadAcrossSocketsCoresThreads, 4), want: `{"sockets":2,"cores":4,"threads":2}`},
		"6.7 all of a CPU": {kind: func(s *typeSpec) {
			s.CPU.Model, s.CPU.DedicatedCPUPlacement, s.CPU.IsolateEmulatorThread, s.CPU.MaxSockets = new("m"), new(true), new(true), new(uint32(9))
		}, want: `{"sockets":4,"cores":1,"threads":1,"maxSockets":9,"model":"m","dedicatedCpuPlacement":true,"isolateEmulatorThread":true}`},
	} {
		row.part = "spec domain cpu"
		t.Run(name, row.run)
	}
}

func TestToVMI_Values(t *testing.T) {
	const cpu = `"cpu":{"sockets":4,"cores":1,"threads":1}`
	for name, row := range map[string]applyRow{
		"6.7 overcommit": {kind: func(s *typeSpec) { s.Memory.OvercommitPercent = 25 },
			want: `{` + cpu + `,"memory":{"guest":"1Gi"},"resources":{"requests":{"memory":"768Mi"}},"devices":{}}`},
		"6.6 memory": {kind: func(s *typeSpec) {
			s.Memory.Hugepages, s.Memory.MaxGuest = &v1.Hugepages{PageSize: "2Mi"}, quantity("4Gi")
		},
			want: `{` + cpu + `,"memory":{"guest":"1Gi","maxGuest":"4Gi","hugepages":{"pageSize":"2Mi"}},"resources":{},"devices":{}}`},
		"6.6 devices": {kind: func(s *typeSpec) {
			s.GPUs, s.HostDevices, s.IOThreadsPolicy = []v1.GPU{{Name: "g"}}, []v1.HostDevice{{Name: "h"}}, new(v1.IOThreadsPolicyAuto)
		}, want: `{` + cpu + `,"memory":{"guest":"1Gi"},"resources":{},"ioThreadsPolicy":"auto","devices":{"gpus":[{"name":"g"}],"hostDevices":[{"name":"h"}]}}`},
		"6.6 scheduling": {part: "spec nodeSelector", kind: func(s *typeSpec) { s.NodeSelector = map[string]string{"a": "b"} }, want: `{"a":"b"}`},
		"6.5 annotations": {part: "metadata annotations", kind: func(s *typeSpec) { s.Annotations = map[string]string{"a": "1"} },
			pref: func(p *prefSpec) { p.Annotations = map[string]string{"a": "2", "b": "2"} }, want: `{"a":"1","b":"2"}`},
	} {
		t.Run(name, row.run)
	}
}

func devices(change func(*v1beta1.DevicePreferences)) func(*prefSpec) {
	return func(p *prefSpec) {
		p.Devices = &v1beta1.DevicePreferences{}
		change(p.Devices)
	}
}

func TestToVMI_Preferences(t *testing.T) {
	virtio := func(d *v1beta1.DevicePreferences) {
		d.PreferredDiskBus, d.PreferredCdromBus, d.PreferredLunBus, d.PreferredDiskDedicatedIoThread = "virtio", "sata", "scsi", new(true)
		d.PreferredDiskCache, d.PreferredDiskIO = "none", "native"
	}
	disks := func(d *v1.DomainSpec) {
		d.Devices.Disks = []v1.Disk{{Name: "a"}, {Name: "b", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: "sata"}}, Cache: "writeback"},
			{Name: "c", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{}}}, {Name: "d", DiskDevice: v1.DiskDevice{LUN: &v1.LunTarget{}}}}
	}
	firmware := func(p *prefSpec) {
		p.Firmware = &v1beta1.FirmwarePreferences{PreferredEfi: &v1.EFI{Persistent: new(true)}, DeprecatedPreferredUseEfi: new(true), DeprecatedPreferredUseSecureBoot: new(true)}
	}
	for name, row := range map[string]applyRow{
		"6.8 disks": {vmi: domain(disks), pref: devices(virtio), part: "spec domain devices disks",
			want: `[{"name":"a","disk":{"bus":"virtio"},"cache":"none","io":"native","dedicatedIOThread":true},
				{"name":"b","disk":{"bus":"sata"},"cache":"writeback","io":"native"},{"name":"c","cdrom":{"bus":"sata"}},{"name":"d","lun":{"bus":"scsi"}}]`},
		"6.8 disableHotplug overwrites": {part: "spec domain devices", vmi: domain(func(d *v1.DomainSpec) { d.Devices.DisableHotplug = true }),
			pref: devices(func(d *v1beta1.DevicePreferences) { d.PreferredDisableHotplug = new(false) }), want: `{}`},
		"6.8 ACPI overwrites, others fill": {part: "spec domain features", vmi: domain(func(d *v1.DomainSpec) {
			d.Features = &v1.Features{ACPI: v1.FeatureState{Enabled: new(true)}, SMM: &v1.FeatureState{Enabled: new(true)}, Hyperv: &v1.FeatureHyperv{VAPIC: &v1.FeatureState{Enabled: new(false)}}}
		}), pref: func(p *prefSpec) {
			on := &v1.FeatureState{Enabled: new(true)}
			off := &v1.FeatureState{Enabled: new(false)}
			p.Features = &v1beta1.FeaturePreferences{PreferredAcpi: off, PreferredSmm: off, PreferredHyperv: &v1.FeatureHyperv{VAPIC: on, Relaxed: on}}
		}, want: `{"acpi":{"enabled":false},"smm":{"enabled":true},"hyperv":{"vapic":{"enabled":false},"relaxed":{"enabled":true}}}`},
		"6.8 EFI suppresses the deprecated ones": {part: "spec domain firmware", pref: firmware, want: `{"bootloader":{"efi":{"persistent":true}}}`},
		"6.8 an own boot loader stays": {part: "spec domain firmware", pref: firmware,
			vmi: domain(func(d *v1.DomainSpec) { d.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{BIOS: &v1.BIOS{}}} }), want: `{"bootloader":{"bios":{}}}`},
		"6.8 deprecated secure boot": {part: "spec domain firmware", pref: func(p *prefSpec) {
			p.Firmware = &v1beta1.FirmwarePreferences{DeprecatedPreferredUseEfi: new(true), DeprecatedPreferredUseSecureBoot: new(true)}
		}, want: `{"bootloader":{"efi":{"secureBoot":true}}}`},
		"6.8 BIOS": {part: "spec domain firmware", pref: func(p *prefSpec) {
			p.Firmware = &v1beta1.FirmwarePreferences{PreferredUseBios: new(true), PreferredUseBiosSerial: new(true)}
		}, want: `{"bootloader":{"bios":{"useSerial":true}}}`},
		"6.8 machine, clock and CPU features": {vmi: domain(func(d *v1.DomainSpec) {
			d.CPU, d.Clock = &v1.CPU{Features: []v1.CPUFeature{{Name: "vmx", Policy: "disable"}}}, &v1.Clock{Timer: &v1.Timer{PIT: &v1.PITTimer{}}}
		}), pref: func(p *prefSpec) {
			p.Machine = &v1beta1.MachinePreferences{PreferredMachineType: "q35"}
			p.Clock = &v1beta1.ClockPreferences{PreferredClockOffset: &v1.ClockOffset{UTC: &v1.ClockOffsetUTC{}}, PreferredTimer: &v1.Timer{PIT: &v1.PITTimer{TickPolicy: "delay"}, KVM: &v1.KVMTimer{}}}
			p.CPU = &v1beta1.CPUPreferences{PreferredCPUFeatures: []v1.CPUFeature{{Name: "vmx", Policy: "require"}, {Name: "x", Policy: "require"}}}
		}, want: `{"cpu":{"features":[{"name":"vmx","policy":"disable"},{"name":"x","policy":"require"}]},"machine":{"type":"q35"},
			"clock":{"utc":{},"timer":{"pit":{},"kvm":{}}},"resources":{},"devices":{}}`},
		"6.8 devices that are there": {part: "spec domain devices", vmi: domain(func(d *v1.DomainSpec) {
			d.Devices = v1.Devices{Inputs: []v1.Input{{Name: "i", Type: "tablet"}}, Interfaces: []v1.Interface{{Name: "n", Model: "e1000"}}, PanicDevices: []v1.PanicDevice{{}},
				Sound: &v1.SoundDevice{Name: "s"}, GPUs: []v1.GPU{{Name: "g"}}}
		}), pref: devices(func(d *v1beta1.DevicePreferences) {
			d.PreferredInputBus, d.PreferredInputType, d.PreferredInterfaceModel, d.PreferredSoundModel = "usb", "mouse", "virtio", "ich9"
			d.PreferredPanicDeviceModel, d.PreferredVirtualGPUOptions, d.PreferredVideoType = new(v1.PanicDeviceModel("isa")), &v1.VGPUOptions{}, new("vga")
			d.PreferredTPM, d.PreferredRng, d.PreferredUseVirtioTransitional = &v1.TPMDevice{}, &v1.Rng{}, new(true)
		}), want: `{"inputs":[{"name":"i","type":"tablet","bus":"usb"}],"interfaces":[{"name":"n","model":"e1000"}],"panicDevices":[{"model":"isa"}],"sound":{"name":"s","model":"ich9"},
			"gpus":[{"name":"g","virtualGPUOptions":{}}],"video":{"type":"vga"},"tpm":{},"rng":{},"useVirtioTransitional":true}`},
		"6.8 masquerade on the Pod network only": {part: "spec domain devices interfaces", vmi: func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "pod"}, {Name: "other"}, {Name: "own", InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}}}
			vmi.Spec.Networks = []v1.Network{*v1.DefaultPodNetwork()}
			vmi.Spec.Networks[0].Name = "pod"
		}, pref: devices(func(d *v1beta1.DevicePreferences) { d.PreferredInterfaceMasquerade = &v1.InterfaceMasquerade{} }),
			want: `[{"name":"pod","masquerade":{}},{"name":"other"},{"name":"own","bridge":{}}]`},
		"6.8 what is set stays": {part: "spec subdomain", vmi: func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Subdomain = "own" },
			pref: func(p *prefSpec) { p.PreferredSubdomain = new("x") }, want: `"own"`},
		"6.8 grace period": {part: "spec terminationGracePeriodSeconds", pref: func(p *prefSpec) { p.PreferredTerminationGracePeriodSeconds = new(int64(7)) }, want: `7`},
		"6.8 architecture": {part: "spec architecture", pref: func(p *prefSpec) { p.PreferredArchitecture = new("arm64") }, want: `"arm64"`},
	} {
		t.Run(name, row.run)
	}
}

func TestToVMI_NamesMatchers(t *testing.T) {
	for kind, want := range map[string]string{
		"":                           `{"kubevirt.io/cluster-instancetype-name":"large","kubevirt.io/cluster-preference-name":"linux"}`,
		"VirtualMachineInstancetype": `{"kubevirt.io/instancetype-name":"large","kubevirt.io/cluster-preference-name":"linux"}`,
	} {
		vm, vmi := newVM(withPreference), &v1.VirtualMachineInstance{}
		vm.Spec.Instancetype.Kind = kind
		if err := instancetype.ToVMI(vm, vmi, instancetype.Definitions{}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(parsed(t, want), pick(t, vmi, "metadata annotations")); diff != "" {
			t.Errorf("kind %q (-want +got):\n%s", kind, diff)
		}
	}
}

// Case 86: preferences reach the default devices; those that decide whether there are such devices come first.
func TestComplete(t *testing.T) {
	prefer := func(p *v1beta1.DevicePreferences) {
		p.PreferredDiskBus, p.PreferredInterfaceModel, p.PreferredInputBus, p.PreferredAutoattachInputDevice = "virtio", "e1000", "usb", new(true)
	}
	none := func(p *v1beta1.DevicePreferences) { p.PreferredAutoattachPodInterface = new(false) }
	for name, row := range map[string]struct {
		pref       func(*v1beta1.DevicePreferences)
		given      func(*v1.VirtualMachineInstanceSpec)
		cluster    instancetype.Cluster
		want, says string
	}{
		"86 default disk, input and NIC": {pref: prefer, given: func(s *v1.VirtualMachineInstanceSpec) { s.Volumes = []v1.Volume{{Name: "root"}} },
			want: `{"autoattachInputDevice":true,"disks":[{"name":"root","disk":{"bus":"virtio"}}],"inputs":[{"name":"default-0","bus":"usb","type":""}],"interfaces":[{"name":"default","model":"e1000","bridge":{}}]}`},
		"86 no NIC":            {pref: none, want: `{"autoattachPodInterface":false}`},
		"16 bridge":            {want: `{"interfaces":[{"name":"default","bridge":{}}]}`},
		"16 masquerade":        {cluster: instancetype.Cluster{NetworkInterface: v1.MasqueradeInterface}, want: `{"interfaces":[{"name":"default","masquerade":{}}]}`},
		"16 slirp":             {cluster: instancetype.Cluster{NetworkInterface: v1.DeprecatedSlirpInterface}, says: "slirp interface is deprecated as of v1.3"},
		"16 bridge refused":    {cluster: instancetype.Cluster{ForbidPodBridge: true}, says: "bridge interface is not enabled in kubevirt-config"},
		"16 networks present":  {given: func(s *v1.VirtualMachineInstanceSpec) { s.Networks = []v1.Network{{}} }, want: `{}`},
		"16 interface present": {given: func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Devices.Interfaces = []v1.Interface{{Name: "n"}} }, want: `{"interfaces":[{"name":"n"}]}`},
		"5 file systems and dumps get no disk": {given: func(s *v1.VirtualMachineInstanceSpec) {
			s.Volumes = []v1.Volume{{Name: "fs"}, {Name: "dump", VolumeSource: v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{}}}}
			s.Domain.Devices.Filesystems, s.Networks = []v1.Filesystem{{Name: "fs"}}, []v1.Network{{}}
		}, want: `{"filesystems":[{"name":"fs","virtiofs":null}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			vm, vmi := newVM(), &v1.VirtualMachineInstance{}
			var d instancetype.Definitions
			if row.given != nil {
				row.given(&vmi.Spec)
			}
			if row.pref != nil {
				d.Preference = &prefSpec{Devices: &v1beta1.DevicePreferences{}}
				row.pref(d.Preference.Devices)
			}
			err := instancetype.Complete(&vmi.Spec, d, row.cluster)
			checkError(t, err, "", row.says)
			if err != nil {
				return
			}
			if err := instancetype.ToVMI(vm, vmi, d); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(parsed(t, row.want), pick(t, vmi, "spec domain devices")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
