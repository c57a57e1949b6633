// SPDX-License-Identifier: Apache-2.0

package status

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	k8sv1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/convert/assume"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
	"github.com/virtloom/virtloom/internal/refguest"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// fill sets everything in a value to something, as deep as it goes.
func fill(v reflect.Value) {
	switch v.Interface().(type) {
	case metav1.Time:
		v.Set(reflect.ValueOf(metav1.NewTime(statusNow.Add(-time.Hour))))
		return
	case resource.Quantity:
		v.Set(reflect.ValueOf(resource.MustParse("3Gi")))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint32, reflect.Uint64, reflect.Uint8:
		v.SetUint(7)
	}
}

// differing lists the fields of two structs that are not the same.
func differing(a, b any) []string {
	var out []string
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		if !equality.Semantic.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			out = append(out, x.Type().Field(i).Name)
		}
	}
	return out
}

// busyObservation returns an observation that changes every field that a node owns.
func busyObservation() Observation {
	live := plainLive(true)
	live.Type = "qemu"
	live.Devices.Disks = append(live.Devices.Disks, liveDisk("x", "vdb"))
	live.Devices.Interfaces = append(live.Devices.Interfaces, liveNIC("x", mac2))
	live.SecLabel = []libvirtxml.DomainSecLabel{{Model: "selinux", Label: "system_u:object_r:svirt_t"}}
	o := seen(domain.StatusPaused, domain.ReasonUser, live)
	o.Guest = &guestagent.Info{OS: guestagent.OS{Name: "Debian"}, AgentVersion: "1.0", Interfaces: []guestagent.Interface{{Name: "eth0", MAC: mac2, IPs: []string{"192.0.2.7"}}}}
	o.Facts = domainfixture.Facts[convert.Facts]()
	o.Credentials = &CredentialSync{Message: "no such user"}
	o.Failures = []action.Failure{{Action: action.Action{Operation: domain.Operation{Verb: domain.SetVCPUs}}}, {Action: action.Action{Operation: domain.Operation{Verb: domain.AttachDevice, Device: &libvirtxml.DomainMemorydev{Alias: xmlspec.Alias("virtio-mem-0")}}}}}
	return o
}

// filledGuest returns a VMI whose status has all fields set.
func filledGuest() *v1.VirtualMachineInstance {
	vmi := domainfixture.Small()
	vmi.Spec.Domain.CPU = &v1.CPU{Sockets: 1}
	fill(reflect.ValueOf(&vmi.Status).Elem())
	vmi.Status.Phase = v1.Scheduled
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "x"})
	vmi.Status.VolumeStatus[0].MemoryDumpVolume = nil
	vmi.Status.MigratedVolumes = nil
	return vmi
}

func TestReflect_OwnedFields(t *testing.T) {
	vmi := filledGuest()
	before := vmi.DeepCopy()
	out := Reflect(vmi, busyObservation(), statusNow)
	if diff := cmp.Diff(before, vmi); diff != "" {
		t.Fatalf("Reflect changed its input:\n%s", diff)
	}
	if got := differing(*vmi, *out); !slices.Equal(got, []string{"Status"}) {
		t.Errorf("it changes %v, want the status alone", got)
	}
	for name, tt := range map[string]struct {
		was, is any
		owned   []string
	}{
		"status": {vmi.Status, out.Status, []string{
			"Conditions", "Phase", "PhaseTransitionTimestamps", "Interfaces", "GuestOSInfo", "MigrationMethod", "VolumeStatus",
			"FSFreezeStatus", "SelinuxContext", "Machine", "CurrentCPUTopology", "Memory",
		}},
		"memory":       {*vmi.Status.Memory, *out.Status.Memory, []string{"GuestCurrent", "GuestRequested"}},
		"volumeStatus": {vmi.Status.VolumeStatus[0], named(out.Status.VolumeStatus, "x"), []string{"Target", "Phase", "Reason", "Message"}},
		"interfaces": {vmi.Status.Interfaces[0], cardNamed(out.Status.Interfaces, "x"), []string{
			"IP", "MAC", "IPs", "InterfaceName", "InfoSource", "QueueCount", "LinkState"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.owned, differing(tt.was, tt.is)); diff != "" {
				t.Errorf("fields that changed (-want +got):\n%s", diff)
			}
		})
	}
}

func named(all []v1.VolumeStatus, name string) v1.VolumeStatus {
	return all[slices.IndexFunc(all, func(s v1.VolumeStatus) bool { return s.Name == name })]
}

func cardNamed(all []v1.VirtualMachineInstanceNetworkInterface, name string) v1.VirtualMachineInstanceNetworkInterface {
	return all[slices.IndexFunc(all, func(s v1.VirtualMachineInstanceNetworkInterface) bool { return s.Name == name })]
}

// conditionsOfOthers are those that a node never writes.
var conditionsOfOthers = []v1.VirtualMachineInstanceConditionType{
	v1.VirtualMachineInstanceProvisioning, v1.VirtualMachineInstanceReady, v1.VirtualMachineInstanceVolumesChange,
	v1.VirtualMachineInstanceDataVolumesReady, v1.VirtualMachineInstanceDecentralizedLiveMigrationFailure,
	v1.VirtualMachineInstanceMigrationRequired, v1.VirtualMachineInstanceEvictionRequested, "PodScheduled", "RestartRequired",
}

// conditionsOfNodes are those it does.
var conditionsOfNodes = []v1.VirtualMachineInstanceConditionType{
	v1.VirtualMachineInstanceSynchronized, v1.VirtualMachineInstancePaused, v1.VirtualMachineInstanceAgentConnected,
	v1.VirtualMachineInstanceAccessCredentialsSynchronized, v1.VirtualMachineInstanceUnsupportedAgent,
	v1.VirtualMachineInstanceIsMigratable, v1.VirtualMachineInstanceVCPUChange, v1.VirtualMachineInstanceMemoryChange,
	v1.VirtualMachineInstanceIsStorageLiveMigratable, v1.VirtualMachineInstanceSoftwareEmulation,
}

func TestReflect_OwnedConditions(t *testing.T) {
	vmi := domainfixture.Small()
	for _, c := range slices.Concat(conditionsOfOthers, conditionsOfNodes) {
		vmi.Status.Conditions = append(vmi.Status.Conditions, v1.VirtualMachineInstanceCondition{Type: c, Status: k8sv1.ConditionUnknown, Reason: "x"})
	}
	out := Reflect(vmi, busyObservation(), statusNow)
	for _, c := range conditionsOfOthers {
		if diff := cmp.Diff(vmistatus.Condition(vmi, c), vmistatus.Condition(out, c)); diff != "" {
			t.Errorf("%s is not the node's (-was +is):\n%s", c, diff)
		}
	}
	for _, c := range conditionsOfNodes {
		if cmp.Equal(vmistatus.Condition(vmi, c), vmistatus.Condition(out, c)) {
			t.Errorf("%s says nothing of what was seen", c)
		}
	}
	quiet := Reflect(vmi, seen(domain.StatusRunning, "", plainLive(false)), statusNow)
	for _, c := range []v1.VirtualMachineInstanceConditionType{
		v1.VirtualMachineInstanceSynchronized, v1.VirtualMachineInstancePaused, v1.VirtualMachineInstanceAgentConnected,
		v1.VirtualMachineInstanceUnsupportedAgent, v1.VirtualMachineInstanceSoftwareEmulation,
		v1.VirtualMachineInstanceVCPUChange, v1.VirtualMachineInstanceMemoryChange,
	} {
		if vmistatus.Condition(quiet, c) != nil {
			t.Errorf("%s stays although there is nothing to say", c)
		}
	}
}

// TestReflect_Idempotent reflects every VMI of the corpus twice.
func TestReflect_Idempotent(t *testing.T) {
	guests, err := refguest.Corpus()
	if err != nil {
		t.Fatal(err)
	}
	converted := 0
	for name, vmi := range guests {
		t.Run(name, func(t *testing.T) {
			f := assume.Facts(vmi)
			live, err := convert.Convert(vmi, f)
			if err != nil {
				return // reported by TestConvert_Corpus
			}
			converted++
			vmi.Status.Phase = v1.Scheduled
			o := seen(domain.StatusRunning, "", live)
			o.Facts, o.Guest = f, &guestagent.Info{AgentVersion: "7.2", OS: guestagent.OS{Name: "Debian"}}
			for i := range vmi.Spec.Domain.Devices.Interfaces {
				o.Guest.Interfaces = append(o.Guest.Interfaces, guestagent.Interface{Name: "eth", MAC: mac2, IPs: []string{"fe80::1", "192.0.2.1"}[i%2:]})
			}
			first := Reflect(vmi, o, statusNow)
			if first.Status.Phase != v1.Running || first.Status.Machine == nil {
				t.Errorf("the status is %+v", first.Status)
			}
			if diff := cmp.Diff(first, Reflect(first, o, statusNow.Add(time.Hour))); diff != "" {
				t.Errorf("a second look changes (-first +second):\n%s", diff)
			}
		})
	}
	if converted < 50 {
		t.Errorf("%d guests were looked at", converted)
	}
}

func TestReflect_UnknownParts(t *testing.T) {
	empty := func(vmi *v1.VirtualMachineInstance) Observation {
		return Observation{State: &domain.State{Status: domain.StatusRunning, Domain: &libvirtxml.Domain{}}, Facts: convert.Facts{Dir: "/x"}, Guest: &guestagent.Info{}}
	}
	final := domainfixture.Small()
	final.Status.Phase = v1.Succeeded
	for name, tt := range map[string]struct {
		vmi  *v1.VirtualMachineInstance
		o    func(*v1.VirtualMachineInstance) Observation
		same bool
	}{
		"no domain":             {filledGuest(), func(*v1.VirtualMachineInstance) Observation { return Observation{} }, true},
		"a final guest":         {final, func(*v1.VirtualMachineInstance) Observation { return busyObservation() }, true},
		"no XML":                {domainfixture.Small(), func(*v1.VirtualMachineInstance) Observation { return seen(domain.StatusRunning, "", nil) }, false},
		"an empty domain":       {domainfixture.Small(), empty, false},
		"an empty one, busy":    {filledGuest(), empty, false},
		"an empty object":       {&v1.VirtualMachineInstance{}, func(*v1.VirtualMachineInstance) Observation { return busyObservation() }, false},
		"devices without parts": {domainfixture.Small(), func(*v1.VirtualMachineInstance) Observation { return seen(domain.StatusRunning, "", hollow()) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			out := Reflect(tt.vmi, tt.o(tt.vmi), statusNow)
			if got := cmp.Equal(tt.vmi, out); got != tt.same {
				t.Errorf("the same: %t, want %t", got, tt.same)
			}
		})
	}
	if Reflect(nil, busyObservation(), statusNow) != nil {
		t.Error("nothing has a status")
	}
}

// hollow is a domain whose devices lack what they may lack.
func hollow() *libvirtxml.Domain {
	return &libvirtxml.Domain{
		OS: &libvirtxml.DomainOS{}, CPU: &libvirtxml.DomainCPU{}, VCPU: &libvirtxml.DomainVCPU{}, Memory: &libvirtxml.DomainMemory{},
		Devices: &libvirtxml.DomainDeviceList{
			Disks: []libvirtxml.DomainDisk{{}, {Alias: xmlspec.Alias("root")}}, Interfaces: []libvirtxml.DomainInterface{{}, {Alias: xmlspec.Alias("default")}},
			Hostdevs: []libvirtxml.DomainHostdev{{}, {Alias: xmlspec.Alias("sriov-x")}}, Channels: []libvirtxml.DomainChannel{{}, {Target: &libvirtxml.DomainChannelTarget{}}},
			Memorydevs: []libvirtxml.DomainMemorydev{{}, {Target: &libvirtxml.DomainMemorydevTarget{}}},
		},
	}
}
