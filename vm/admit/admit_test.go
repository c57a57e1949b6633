// SPDX-License-Identifier: Apache-2.0

package admit_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/vm"
	"github.com/virtloom/virtloom/vm/admit"
	"github.com/virtloom/virtloom/vm/instancetype"
)

// newVM returns a valid VM.
func newVM(edit ...func(*v1.VirtualMachine)) *v1.VirtualMachine {
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm"}, Spec: v1.VirtualMachineSpec{
		RunStrategy: ptr.To(v1.RunStrategyAlways),
		Template: &v1.VirtualMachineInstanceTemplateSpec{Spec: v1.VirtualMachineInstanceSpec{
			Domain: v1.DomainSpec{Memory: &v1.Memory{Guest: ptr.To(resource.MustParse("64Mi"))}}}},
	}}
	for _, e := range edit {
		e(vm)
	}
	return vm
}

var (
	two = &v1beta1.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "two"},
		Spec: v1beta1.VirtualMachineInstancetypeSpec{CPU: v1beta1.CPUInstancetype{Guest: 2}, Memory: v1beta1.MemoryInstancetype{Guest: resource.MustParse("64Mi")}}}
	picky = &v1beta1.VirtualMachineClusterPreference{ObjectMeta: metav1.ObjectMeta{Name: "picky"}, Spec: v1beta1.VirtualMachinePreferenceSpec{
		Machine:      &v1beta1.MachinePreferences{PreferredMachineType: "q35-picky"},
		Volumes:      &v1beta1.VolumePreferences{PreferredStorageClassName: "fast"},
		Requirements: &v1beta1.PreferenceRequirements{CPU: &v1beta1.CPUPreferenceRequirement{Guest: 4}}}}
	labelled = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "root", Labels: map[string]string{
		"instancetype.kubevirt.io/default-instancetype": "two", "instancetype.kubevirt.io/default-instancetype-kind": "VirtualMachineInstancetype"}}}
	objects = instancetype.Objects{
		{Kind: instancetype.KindInstancetype, Namespace: "ns", Name: "two"}:  two,
		{Kind: instancetype.KindInstancetype, Namespace: "ns", Name: "gone"}: nil,
		{Kind: instancetype.KindClusterPreference, Name: "picky"}:            picky,
		{Kind: instancetype.KindClaim, Namespace: "ns", Name: "root"}:        labelled,
	}
)

func typed(name string) func(*v1.VirtualMachine) {
	return func(vm *v1.VirtualMachine) {
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: name, Kind: "VirtualMachineInstancetype"}
		vm.Spec.Template.Spec.Domain.Memory = nil
	}
}

func preferred(vm *v1.VirtualMachine) {
	vm.Spec.Preference = &v1.PreferenceMatcher{Name: "picky", Kind: "VirtualMachineClusterPreference"}
}

func strategy(s v1.VirtualMachineRunStrategy) func(*v1.VirtualMachine) {
	return func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = &s }
}

// withDisk gives the VM a DataVolume of a template.
func withDisk(edit ...func(*v1.DataVolumeTemplateSpec)) func(*v1.VirtualMachine) {
	return func(vm *v1.VirtualMachine) {
		t := v1.DataVolumeTemplateSpec{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: cdiv1.DataVolumeSpec{
			Source: &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}}, Storage: &cdiv1.StorageSpec{}}}
		for _, e := range edit {
			e(&t)
		}
		vm.Spec.DataVolumeTemplates = append(vm.Spec.DataVolumeTemplates, t)
		if len(vm.Spec.Template.Spec.Volumes) == 0 {
			vm.Spec.Template.Spec.Volumes = []v1.Volume{{Name: "disk", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "disk"}}}}
		}
	}
}

func adds(name, claim string) v1.VirtualMachineVolumeRequest {
	source := &v1.PersistentVolumeClaimVolumeSource{}
	source.ClaimName = claim
	return v1.VirtualMachineVolumeRequest{AddVolumeOptions: &v1.AddVolumeOptions{Name: name, Disk: &v1.Disk{DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSCSI}}},
		VolumeSource: &v1.HotplugVolumeSource{PersistentVolumeClaim: source}}}
}

func requests(all ...v1.VirtualMachineVolumeRequest) func(*v1.VirtualMachine) {
	return func(vm *v1.VirtualMachine) { vm.Status.VolumeRequests = all }
}

func TestValidate_Texts(t *testing.T) {
	snapshot := func(vm *v1.VirtualMachine) { vm.Status.SnapshotInProgress = ptr.To("s") }
	restore := func(vm *v1.VirtualMachine) { vm.Status.RestoreInProgress = ptr.To("r") }
	reserved := func(vm *v1.VirtualMachine) {
		vm.Spec.Template.ObjectMeta.Annotations = map[string]string{"virtloom.dev/lease": "{}"}
	}
	for name, tc := range map[string]struct {
		vm, old *v1.VirtualMachine
		vmi     *v1.VirtualMachineInstance
		gates   []string
		// want are fields and parts of their errors, one for each.
		want     []string
		warnings int
	}{
		"valid":                         {vm: newVM()},
		"valid with an instance type":   {vm: newVM(typed("two"))},
		"running instead of a strategy": {vm: newVM(func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy, vm.Spec.Running = nil, ptr.To(true) }), warnings: 1},
		"no template":                   {vm: newVM(func(vm *v1.VirtualMachine) { vm.Spec.Template = nil }), want: []string{"spec.template: Required value: missing virtual machine template."}},
		"both running and a strategy": {vm: newVM(func(vm *v1.VirtualMachine) { vm.Spec.Running = ptr.To(true) }), warnings: 1,
			want: []string{`spec.running: Invalid value: true: Running and RunStrategy are mutually exclusive`}},
		"no strategy":       {vm: newVM(func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = nil }), want: []string{"spec.runStrategy: Required value: RunStrategy must be specified"}},
		"unknown strategy":  {vm: newVM(strategy("Sometimes")), want: []string{"Invalid RunStrategy (Sometimes)"}},
		"receiver, no gate": {vm: newVM(strategy(v1.RunStrategyWaitAsReceiver)), want: []string{"spec.runStrategy: Forbidden: Invalid RunStrategy (WaitAsReceiver) (it needs the feature gate DecentralizedLiveMigration)"}},
		"receiver":          {vm: newVM(strategy(v1.RunStrategyWaitAsReceiver)), gates: []string{"DecentralizedLiveMigration"}},
		"the template is no valid VMI": {vm: newVM(func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Hostname = "not a name" }),
			want: []string{"spec.template.spec.hostname: Invalid value"}},
		"a reserved annotation":                {vm: newVM(reserved), want: []string{"spec.template.metadata.annotations[virtloom.dev/lease]: Forbidden"}},
		"a reserved annotation that was there": {vm: newVM(reserved), old: newVM(reserved)},
		"no such instance type":                {vm: newVM(typed("gone")), want: []string{"spec.instancetype: Invalid value"}},
		"a conflict with the instance type": {vm: newVM(typed("two"), func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Domain.CPU = &v1.CPU{Sockets: 3} }),
			want: []string{"spec.template.spec.domain.cpu.sockets: Invalid value: \"\": VM field conflicts with selected instance type"}},
		"a requirement of the preference": {vm: newVM(typed("two"), preferred), want: []string{"spec.instancetype: Invalid value: \"\": failure checking preference requirements: insufficient CPU resources of 2 vCPU"}},
		"more sockets than there is room for": {vm: newVM(func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Domain.CPU = &v1.CPU{Sockets: 4, MaxSockets: 2} }),
			want: []string{"spec.template.spec.domain.cpu.maxSockets", "Number of sockets in CPU topology is greater than the maximum sockets allowed"}},
		"a DataVolume": {vm: newVM(withDisk())},
		"more DataVolumes than disks": {vm: newVM(func(vm *v1.VirtualMachine) {
			vm.Spec.DataVolumeTemplates = make([]v1.DataVolumeTemplateSpec, 257)
		}), want: []string{"spec.dataVolumeTemplates: Too many: 257: must have at most 256 items"}},
		"a DataVolume without name":  {vm: newVM(withDisk(func(d *v1.DataVolumeTemplateSpec) { d.Name = "" })), want: []string{"spec.dataVolumeTemplates[0].name: Required value"}},
		"a DataVolume of elsewhere":  {vm: newVM(withDisk(func(d *v1.DataVolumeTemplateSpec) { d.Namespace = "other" })), want: []string{"Embedded DataVolume namespace other differs from VM namespace ns"}},
		"a DataVolume without claim": {vm: newVM(withDisk(func(d *v1.DataVolumeTemplateSpec) { d.Spec.Storage = nil })), want: []string{"exactly one of pvc and storage is required"}},
		"a DataVolume with two sources": {vm: newVM(withDisk(func(d *v1.DataVolumeTemplateSpec) { d.Spec.Source.HTTP = &cdiv1.DataVolumeSourceHTTP{} })),
			want: []string{"spec.dataVolumeTemplates[0].spec.source: Invalid value: \"\": there are 2 sources"}},
		"a DataVolume from nowhere": {vm: newVM(withDisk(func(d *v1.DataVolumeTemplateSpec) { d.Spec.Source = nil })), want: []string{"exactly one of source, sourceRef and the dataSource"}},
		"a DataVolume that nobody uses": {vm: newVM(withDisk(), withDisk(func(d *v1.DataVolumeTemplateSpec) { d.Name = "other" })),
			want: []string{"DataVolumeTemplate entry spec.dataVolumeTemplates[1] must be referenced"}},
		"a request that is none":                   {vm: newVM(requests(v1.VirtualMachineVolumeRequest{})), want: []string{"status.volumeRequests[0]: Invalid value: \"\": VolumeRequests require one of"}},
		"a request":                                {vm: newVM(requests(adds("a", "c")))},
		"the same request twice":                   {vm: newVM(requests(adds("a", "c"), adds("a", "d"))), want: []string{"Duplicate volume requests for volume a exist"}},
		"a request for another volume of the name": {vm: newVM(withDisk(), requests(adds("disk", "c"))), want: []string{"conflicts with an existing volume"}},
		"a request of a VMI that moves": {vm: newVM(requests(adds("a", "c"))), vmi: &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{MigrationState: &v1.VirtualMachineInstanceMigrationState{}}},
			want: []string{"Cannot handle volume requests while VMI migration is in progress"}},
		"an old request of a VMI that moves": {vm: newVM(requests(adds("a", "c"))), old: newVM(requests(adds("a", "c"))),
			vmi: &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{MigrationState: &v1.VirtualMachineInstanceMigrationState{}}}},
		"stopped during a snapshot":                            {vm: newVM(snapshot, strategy(v1.RunStrategyHalted)), old: newVM(snapshot), want: []string{`Cannot update vm running state until snapshot "s" completes`}},
		"a disk more during a snapshot":                        {vm: newVM(snapshot, withDisk()), old: newVM(snapshot), want: []string{`Cannot update vm disks or volumes until snapshot "s" completes`}},
		"94 stopped during a restore":                          {vm: newVM(restore, strategy(v1.RunStrategyHalted)), old: newVM(restore), want: []string{`Cannot update VM runStrategy until restore "r" completes`}},
		"94 the same strategy in other words during a restore": {vm: newVM(restore), old: newVM(restore, func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy, vm.Spec.Running = nil, ptr.To(true) })},
		"a VM that is being deleted":                           {vm: newVM(func(vm *v1.VirtualMachine) { vm.DeletionTimestamp, vm.Spec.Template = &metav1.Time{}, nil })},
	} {
		t.Run(name, func(t *testing.T) {
			in := admit.Input{VM: tc.vm, Old: tc.old, VMI: tc.vmi, Objects: objects}
			in.Config.VMIs.FeatureGates = tc.gates
			before := tc.vm.DeepCopy()
			got := admit.Validate(in)
			if len(got.Need) > 0 || len(got.Warnings) != tc.warnings || len(got.Errors) != len(tc.want) {
				t.Fatalf("%+v, want %d errors and %d warnings", got, len(tc.want), tc.warnings)
			}
			for i, want := range tc.want {
				if !strings.Contains(got.Errors[i].Error(), want) || !strings.HasSuffix(got.Errors[i].Error(), ")") {
					t.Errorf("error %q, want %q and a remedy", got.Errors[i], want)
				}
			}
			if !equality.Semantic.DeepEqual(before, tc.vm) {
				t.Error("the VM is modified")
			}
		})
	}
}

// What has to be read is asked for, and nothing is decided before it is there.
func TestValidate_Needs(t *testing.T) {
	vm := newVM(typed("two"))
	want := []instancetype.Ref{{Kind: instancetype.KindInstancetype, Namespace: "ns", Name: "two"}}
	if got := admit.Validate(admit.Input{VM: vm}); len(got.Errors) > 0 || !cmp.Equal(got.Need, want) {
		t.Errorf("%+v", got)
	}
	if _, got, err := admit.Default(admit.Input{VM: vm}); err != nil || !cmp.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestDefault_Fields(t *testing.T) {
	c := admit.Config{SerialNumber: "serial"}
	c.VMIs.Request.FirmwareUUID = types.UID("uuid")
	infer := func(vm *v1.VirtualMachine) {
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{InferFromVolume: "root"}
		source := &v1.PersistentVolumeClaimVolumeSource{}
		source.ClaimName = "root"
		vm.Spec.Template.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: source}}}
	}
	for name, tc := range map[string]struct {
		vm, old *v1.VirtualMachine
		check   func(*v1.VirtualMachine) bool
		err     string
	}{
		"a new VM": {vm: newVM(), check: func(vm *v1.VirtualMachine) bool {
			s := &vm.Spec.Template.Spec
			return s.Domain.Firmware.UUID == "uuid" && s.Domain.Firmware.Serial == "serial" && s.Architecture == "amd64" && s.Domain.Machine.Type == "q35" &&
				vm.Spec.Template.ObjectMeta.Annotations[v1.PciTopologyVersionAnnotation] == v1.PciTopologyVersionV3 &&
				slices.Equal(vm.Finalizers, []string{v1.VirtualMachineControllerFinalizer}) &&
				vm.Annotations[v1.ControllerAPILatestVersionObservedAnnotation] == v1.ApiLatestVersion
		}},
		"an old VM": {vm: newVM(), old: newVM(), check: func(vm *v1.VirtualMachine) bool {
			return vm.Spec.Template.Spec.Domain.Firmware == nil && len(vm.Spec.Template.ObjectMeta.Annotations) == 0 &&
				len(vm.Finalizers) == 0 && len(vm.Annotations) == 0
		}},
		"what is set stays": {vm: newVM(func(vm *v1.VirtualMachine) {
			d := &vm.Spec.Template.Spec.Domain
			d.Firmware, d.Machine = &v1.Firmware{UUID: "mine", Serial: "s"}, &v1.Machine{Type: "pc-q35-9"}
			vm.Finalizers = []string{v1.VirtualMachineControllerFinalizer, "example.test/hold"}
		}), check: func(vm *v1.VirtualMachine) bool {
			d := vm.Spec.Template.Spec.Domain
			return len(vm.Finalizers) == 2 && d.Firmware.UUID == "mine" && d.Firmware.Serial == "s" && d.Machine.Type == "pc-q35-9"
		}},
		"a preference": {vm: newVM(preferred, withDisk()), check: func(vm *v1.VirtualMachine) bool {
			return vm.Spec.Template.Spec.Domain.Machine.Type == "q35-picky" && *vm.Spec.DataVolumeTemplates[0].Spec.Storage.StorageClassName == "fast"
		}},
		"inferred": {vm: newVM(infer), check: func(vm *v1.VirtualMachine) bool {
			return vm.Spec.Instancetype.Name == "two" && vm.Spec.Instancetype.InferFromVolume == ""
		}},
		"inferred from a volume that is not there": {vm: newVM(infer, func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Volumes = nil }), err: "root"},
		"another name with the old revision": {vm: newVM(typed("two"), func(vm *v1.VirtualMachine) { vm.Spec.Instancetype.RevisionName = "r" }),
			old: newVM(typed("gone"), func(vm *v1.VirtualMachine) { vm.Spec.Instancetype.RevisionName = "r" }), err: "the Matcher Name has been updated without updating the RevisionName"},
		"no template": {vm: newVM(func(vm *v1.VirtualMachine) { vm.Spec.Template = nil }), check: func(vm *v1.VirtualMachine) bool { return vm.Spec.Template == nil }},
	} {
		t.Run(name, func(t *testing.T) {
			before := tc.vm.DeepCopy()
			got, missing, err := admit.Default(admit.Input{VM: tc.vm, Old: tc.old, Objects: objects, Config: c})
			switch {
			case len(missing) > 0:
				t.Fatalf("%v must be read", missing)
			case tc.err != "":
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
			case err != nil || !tc.check(got):
				t.Errorf("%+v, %v", got, err)
			}
			if !equality.Semantic.DeepEqual(before, tc.vm) {
				t.Error("the VM is modified")
			}
			if err == nil {
				if again, _, err := admit.Default(admit.Input{VM: got, Old: tc.old, Objects: objects, Config: c}); err != nil || !equality.Semantic.DeepEqual(again, got) {
					t.Errorf("a second time the defaults are others: %s %v", cmp.Diff(got, again), err)
				}
			}
		})
	}
}

// A VM with its defaults costs its controller no update before it is started.
func TestDefault_SavesUpdate(t *testing.T) {
	for name, tc := range map[string]struct {
		defaulted bool
		want      []vm.Verb
	}{
		"with the webhook":    {true, []vm.Verb{vm.CreateRevision, vm.CreateVMI}},
		"without the webhook": {false, []vm.Verb{vm.UpdateVM}},
	} {
		t.Run(name, func(t *testing.T) {
			c := admit.Config{SerialNumber: "serial"}
			c.VMIs.Request.FirmwareUUID = types.UID("uuid")
			machine := newVM()
			if tc.defaulted {
				var err error
				if machine, _, err = admit.Default(admit.Input{VM: machine, Config: c}); err != nil {
					t.Fatal(err)
				}
			}
			machine.UID, machine.Generation = "uid", 1 // as it is stored
			var got []vm.Verb
			for _, a := range vm.Decide(vm.Snapshot{VM: machine}, time.Unix(1e9, 0)).Actions {
				got = append(got, a.Verb)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
