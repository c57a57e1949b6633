// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/vm/instancetype"
)

var defaults = map[string]string{
	"instancetype.kubevirt.io/default-instancetype": "large", "instancetype.kubevirt.io/default-instancetype-kind": "virtualmachineinstancetype",
	"instancetype.kubevirt.io/default-preference": "linux",
}

// from returns a VM that infers both from a volume.
func from(source v1.VolumeSource, change ...func(*v1.VirtualMachine)) *v1.VirtualMachine {
	vm := newVM(func(vm *v1.VirtualMachine) {
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{InferFromVolume: "root"}
		vm.Spec.Preference = &v1.PreferenceMatcher{InferFromVolume: "root"}
		vm.Spec.Template.Spec.Domain.Memory = &v1.Memory{Guest: quantity("1Gi")}
		vm.Spec.Template.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: source}}
	})
	for _, c := range change {
		c(vm)
	}
	return vm
}

func ignore(vm *v1.VirtualMachine) {
	p := v1.IgnoreInferFromVolumeFailure
	vm.Spec.Instancetype.InferFromVolumeFailurePolicy, vm.Spec.Preference.InferFromVolumeFailurePolicy = &p, &p
}

func template(spec cdiv1.DataVolumeSpec) func(*v1.VirtualMachine) {
	return func(vm *v1.VirtualMachine) {
		vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: spec}}
	}
}

type inferRow struct {
	vm      *v1.VirtualMachine
	objects objects
	// want are instance type, its kind, and preference.
	want, needs, says string
	// memory reports whether the template keeps its memory.
	memory bool
}

const both = "large virtualmachineinstancetype linux"

func labelled(labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Labels: labels}
}

// The rules of section 10 of the specification for inference.
func TestInfer(t *testing.T) {
	for _, rows := range []map[string]inferRow{inferFromClaims(), inferFromDataVolumes(), inferFromSources()} {
		for name, row := range rows {
			t.Run(name, func(t *testing.T) {
				vm, needs, err := instancetype.Infer(row.vm, row.objects)
				if got := spell(needs); got != row.needs {
					t.Errorf("needs %q, want %q", got, row.needs)
				}
				checkError(t, err, "", row.says)
				if row.says != "" || row.needs != "" {
					return
				}
				got := "- -"
				if m := vm.Spec.Instancetype; m != nil {
					got = m.Name + " " + m.Kind
				}
				if m := vm.Spec.Preference; m != nil {
					got = fmt.Sprint(got, " ", m.Name)
				} else {
					got += " -"
				}
				if has := vm.Spec.Template.Spec.Domain.Memory != nil; got != row.want || has != row.memory {
					t.Errorf("inferred %q with memory %t, want %q with memory %t", got, has, row.want, row.memory)
				}
			})
		}
	}
}

func inferFromClaims() map[string]inferRow {
	claim := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}
	claim.PersistentVolumeClaim.ClaimName = "disk"
	at := ref{Kind: instancetype.KindClaim, Namespace: "ns", Name: "disk"}
	of := func(labels map[string]string) objects {
		return objects{at: &corev1.PersistentVolumeClaim{ObjectMeta: labelled(labels)}}
	}
	return map[string]inferRow{
		"claim":                                          {vm: from(claim), needs: "PersistentVolumeClaim ns/disk, PersistentVolumeClaim ns/disk"},
		"claim: labels name both":                        {vm: from(claim), objects: of(defaults), want: both, memory: true},
		"claim: under Ignore the memory goes":            {vm: from(claim, ignore), objects: of(defaults), want: both},
		"claim: no labels":                               {vm: from(claim), objects: of(nil), says: "unable to find required instancetype.kubevirt.io/default-instancetype label on the volume"},
		"claim: no labels, ignored":                      {vm: from(claim, ignore), objects: of(nil), want: "- - -", memory: true},
		"claim does not exist, which Ignore excuses not": {vm: from(claim, ignore), objects: objects{at: nil}, says: "PersistentVolumeClaim ns/disk not found"},
		"volume type":                                    {vm: from(v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}}), says: "unable to infer defaults from volume root as type is not supported"},
		"volume type, ignored":                           {vm: from(v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}}, ignore), want: "- - -", memory: true},
		"no such volume": {vm: from(claim, ignore, func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Volumes = nil }),
			says: "spec.instancetype.inferFromVolume: unable to find volume root to infer defaults"},
		"name given too": {vm: from(claim, func(vm *v1.VirtualMachine) { vm.Spec.Instancetype.Name = "x" }), says: "Name already set, should be cleared before setting inferFromVolume"},
		"kind given too": {vm: from(claim, func(vm *v1.VirtualMachine) { vm.Spec.Instancetype.Kind = "x" }), says: "Kind already set, should be cleared before setting inferFromVolume"},
		"neither": {vm: from(claim, func(vm *v1.VirtualMachine) { vm.Spec.Instancetype = &v1.InstancetypeMatcher{} }),
			says: "Either Name or InferFromVolume should be provided within the InstancetypeMatcher"},
		"neither of a preference": {vm: newVM(func(vm *v1.VirtualMachine) { vm.Spec.Preference = &v1.PreferenceMatcher{} }),
			says: "Either Name or InferFromVolume should be provided within the PreferenceMatcher"},
	}
}

func inferFromDataVolumes() map[string]inferRow {
	volume := v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "disk"}}
	at := ref{Kind: instancetype.KindDataVolume, Namespace: "ns", Name: "disk"}
	claim := ref{Kind: instancetype.KindClaim, Namespace: "ns", Name: "disk"}
	gold := ref{Kind: instancetype.KindClaim, Namespace: "images", Name: "gold"}
	snap := ref{Kind: instancetype.KindSnapshot, Namespace: "images", Name: "gold"}
	clone := cdiv1.DataVolumeSpec{Source: &cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: "images", Name: "gold"}}}
	ofSnapshot := cdiv1.DataVolumeSpec{Source: &cdiv1.DataVolumeSource{Snapshot: &cdiv1.DataVolumeSourceSnapshot{Namespace: "images", Name: "gold"}}}
	http := cdiv1.DataVolumeSpec{Source: &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{}}}
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: labelled(defaults)}
	return map[string]inferRow{
		"DataVolume":                        {vm: from(volume), needs: "DataVolume ns/disk, DataVolume ns/disk"},
		"DataVolume: its own labels":        {vm: from(volume), objects: objects{at: &cdiv1.DataVolume{ObjectMeta: labelled(defaults)}}, want: both, memory: true},
		"DataVolume: its source claim":      {vm: from(volume), objects: objects{at: &cdiv1.DataVolume{Spec: clone}, gold: pvc}, want: both, memory: true},
		"DataVolume: its snapshot":          {vm: from(volume), objects: objects{at: &cdiv1.DataVolume{Spec: ofSnapshot}, snap: &metav1.PartialObjectMetadata{ObjectMeta: labelled(defaults)}}, want: both, memory: true},
		"DataVolume collected: the claim":   {vm: from(volume), objects: objects{at: nil, claim: pvc}, want: both, memory: true},
		"DataVolume: another source":        {vm: from(volume), objects: objects{at: &cdiv1.DataVolume{Spec: http}}, says: "unable to infer defaults from DataVolumeSpec as DataVolumeSource is not supported"},
		"template first":                    {vm: from(volume, template(clone)), needs: "PersistentVolumeClaim images/gold, PersistentVolumeClaim images/gold"},
		"template: another source, ignored": {vm: from(volume, template(http), ignore), want: "- - -", memory: true},
	}
}

func inferFromSources() map[string]inferRow {
	volume := v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "disk"}}
	sourceRef := func(kind string) func(*v1.VirtualMachine) {
		return template(cdiv1.DataVolumeSpec{SourceRef: &cdiv1.DataVolumeSourceRef{Kind: kind, Name: "gold", Namespace: new("images")}})
	}
	at := func(name string) ref { return ref{Kind: instancetype.KindDataSource, Namespace: "images", Name: name} }
	source := func(name, next string) *cdiv1.DataSource {
		s := &cdiv1.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: "images", Name: name}}
		if next != "" {
			s.Spec.Source.DataSource = &cdiv1.DataSourceRefSourceDataSource{Namespace: "images", Name: next}
		}
		return s
	}
	ofClaim := source("gold", "")
	ofClaim.Spec.Source.PVC = &cdiv1.DataVolumeSourcePVC{Name: "gold"}
	named := source("gold", "")
	named.Labels = defaults
	claim := ref{Kind: instancetype.KindClaim, Namespace: "images", Name: "gold"}
	return map[string]inferRow{
		"DataSource":                 {vm: from(volume, sourceRef("DataSource")), needs: "DataSource images/gold, DataSource images/gold"},
		"DataSource: its own labels": {vm: from(volume, sourceRef("DataSource")), objects: objects{at("gold"): named}, want: both, memory: true},
		"DataSource: its claim, in its namespace": {vm: from(volume, sourceRef("DataSource")),
			objects: objects{at("gold"): ofClaim, claim: &corev1.PersistentVolumeClaim{ObjectMeta: labelled(defaults)}}, want: both, memory: true},
		"DataSource of a DataSource": {vm: from(volume, sourceRef("DataSource")), objects: objects{at("gold"): source("gold", "next")},
			needs: "DataSource images/next, DataSource images/next"},
		"DataSource of itself": {vm: from(volume, sourceRef("DataSource")), objects: objects{at("gold"): source("gold", "gold")}, says: "more than 8 DataSources refer to each other"},
		"DataSource of nothing": {vm: from(volume, sourceRef("DataSource")), objects: objects{at("gold"): source("gold", "")},
			says: "unable to infer defaults from DataSource that doesn't provide DataVolumeSourcePVC"},
		"DataSource does not exist": {vm: from(volume, sourceRef("DataSource"), ignore), objects: objects{at("gold"): nil}, says: "DataSource images/gold not found"},
		"reference of another kind": {vm: from(volume, sourceRef("foo")), says: "unable to infer defaults from DataVolumeSourceRef as Kind foo is not supported"},
	}
}
