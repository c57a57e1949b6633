// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/vm"
	guests "github.com/virtloom/virtloom/vmi/admit"
)

// dataVolumes checks the DataVolumes that the VM creates.
func (k *checker) dataVolumes() {
	if n := len(k.VM.Spec.DataVolumeTemplates); n > vm.MaxDataVolumeTemplates {
		k.Errors = append(k.Errors, field.TooMany(atDisks, n, vm.MaxDataVolumeTemplates))
		k.Errors[len(k.Errors)-1].Detail += " (use fewer DataVolumes)"
		return
	}
	used := map[string]bool{}
	for _, v := range k.VM.Spec.Template.Spec.Volumes {
		switch {
		case v.DataVolume != nil:
			used[v.DataVolume.Name] = true
		case v.PersistentVolumeClaim != nil:
			used[v.PersistentVolumeClaim.ClaimName] = true
		}
	}
	for i := range k.VM.Spec.DataVolumeTemplates {
		t, at := &k.VM.Spec.DataVolumeTemplates[i], atDisks.Index(i)
		if t.Name == "" {
			k.required(at.Child("name"), "'name' field must not be empty for DataVolumeTemplate entry "+at.String()+".", "name it")
			continue
		}
		if t.Namespace != "" && t.Namespace != k.VM.Namespace {
			k.invalid(at.Child("metadata", "namespace"), t.Namespace,
				fmt.Sprintf("Embedded DataVolume namespace %s differs from VM namespace %s", trimmed(t.Namespace), k.VM.Namespace), "leave it empty")
		}
		if (t.Spec.PVC == nil) == (t.Spec.Storage == nil) {
			k.invalid(at.Child("spec"), "", "exactly one of pvc and storage is required", "keep one of them")
		}
		k.source(&t.Spec, at.Child("spec"))
		if !used[t.Name] {
			k.invalid(at.Child("metadata", "name"), t.Name,
				fmt.Sprintf("DataVolumeTemplate entry %s must be referenced in the VMI template's 'volumes' list", at), "add a volume with this DataVolume, or remove the template")
		}
	}
}

// source checks where the content of a DataVolume comes from: one source, a reference to one, or whoever populates the claim.
func (k *checker) source(spec *cdiv1.DataVolumeSpec, at *field.Path) {
	if count(spec.Source != nil, spec.SourceRef != nil, populated(spec)) != 1 {
		k.invalid(at, "", "exactly one of source, sourceRef and the dataSource of the claim is required", "keep one of them")
		return
	}
	if s := spec.Source; s != nil {
		sources := count(s.HTTP != nil, s.S3 != nil, s.GCS != nil, s.Registry != nil, s.PVC != nil, s.Upload != nil, s.Blank != nil, s.Imageio != nil, s.VDDK != nil, s.Snapshot != nil)
		if sources != 1 {
			k.invalid(at.Child("source"), "", fmt.Sprintf("there are %d sources, and exactly one is required", sources), "keep one of them")
		}
	}
	if r := spec.SourceRef; r != nil && (r.Kind != cdiv1.DataVolumeDataSource || r.Name == "") {
		k.invalid(at.Child("sourceRef"), r.Kind, "kind DataSource and a name are required", "name a DataSource")
	}
}

// populated reports whether the claim itself says what is in it.
func populated(spec *cdiv1.DataVolumeSpec) bool {
	return spec.PVC != nil && (spec.PVC.DataSource != nil || spec.PVC.DataSourceRef != nil) ||
		spec.Storage != nil && (spec.Storage.DataSource != nil || spec.Storage.DataSourceRef != nil)
}

// count returns how many are true.
func count(all ...bool) (n int) {
	for _, is := range all {
		if is {
			n++
		}
	}
	return n
}

// requests checks the open requests to add and remove volumes, and the VMI as they would make it.
func (k *checker) requests(vmi *v1.VirtualMachineInstance) {
	all := k.VM.Status.VolumeRequests
	if len(all) == 0 || k.Old != nil && equality.Semantic.DeepEqual(all, k.Old.Status.VolumeRequests) {
		return
	}
	if m := k.VMI; m != nil && m.Status.MigrationState != nil && m.Status.MigrationState.EndTimestamp == nil {
		k.forbidden(atRequests, "Cannot handle volume requests while VMI migration is in progress", "repeat them after the migration")
		return
	}
	names := map[string]bool{}
	for i, r := range all {
		k.request(vmi, r, atRequests.Index(i), names)
	}
	if len(k.Errors) > 0 {
		return
	}
	next := vmi.DeepCopy()
	for _, r := range all {
		vm.ApplyVolumeRequest(&next.Spec, r)
	}
	for _, e := range guests.Validate(next, k.Config.VMIs) {
		k.invalid(atRequests, e.Field, "the VMI would be invalid: "+e.Detail, "withdraw the request")
	}
}

// request checks one request; names are those of the requests before it.
func (k *checker) request(vmi *v1.VirtualMachineInstance, r v1.VirtualMachineVolumeRequest, at *field.Path, names map[string]bool) {
	if (r.AddVolumeOptions == nil) == (r.RemoveVolumeOptions == nil) {
		k.invalid(at, "", "VolumeRequests require one of either AddVolumeOptions or RemoveVolumeOptions", "keep one of them")
		return
	}
	name := nameOf(r)
	if names[name] {
		k.invalid(at, name, fmt.Sprintf("Duplicate volume requests for volume %s exist", trimmed(name)), "wait until the first is done")
	}
	names[name] = true
	if r.AddVolumeOptions != nil && (taken(vmi.Spec.Volumes, r.AddVolumeOptions) || k.VMI != nil && taken(k.VMI.Spec.Volumes, r.AddVolumeOptions)) {
		k.invalid(at, name, fmt.Sprintf("AddVolume request for [%s] conflicts with an existing volume of the same name that is another one", trimmed(name)), "choose another name")
	}
}

func nameOf(r v1.VirtualMachineVolumeRequest) string {
	if r.AddVolumeOptions != nil {
		return r.AddVolumeOptions.Name
	}
	return r.RemoveVolumeOptions.Name
}

// taken reports whether there is another volume of the name that is to be added.
func taken(volumes []v1.Volume, o *v1.AddVolumeOptions) bool {
	for _, v := range volumes {
		if v.Name != o.Name || o.VolumeSource == nil {
			continue
		}
		claim, dv := o.VolumeSource.PersistentVolumeClaim, o.VolumeSource.DataVolume
		same := claim != nil && v.PersistentVolumeClaim != nil && claim.ClaimName == v.PersistentVolumeClaim.ClaimName ||
			dv != nil && v.DataVolume != nil && dv.Name == v.DataVolume.Name
		return !same
	}
	return false
}

// interrupted checks what must not change while a snapshot or a restore is in progress.
func (k *checker) interrupted() {
	old := k.Old
	if s := old.Status.SnapshotInProgress; s != nil {
		if old.Spec.Template != nil && (!equality.Semantic.DeepEqual(old.Spec.Template.Spec.Volumes, k.VM.Spec.Template.Spec.Volumes) ||
			!equality.Semantic.DeepEqual(old.Spec.Template.Spec.Domain.Devices.Disks, k.VM.Spec.Template.Spec.Domain.Devices.Disks)) {
			k.forbidden(atTemplate.Child("spec", "volumes"), fmt.Sprintf("Cannot update vm disks or volumes until snapshot %q completes", trimmed(*s)), "wait for it, or delete it")
		}
		if !equality.Semantic.DeepEqual(old.Spec.Running, k.VM.Spec.Running) || !equality.Semantic.DeepEqual(old.Spec.RunStrategy, k.VM.Spec.RunStrategy) {
			k.forbidden(atSpec.Child("runStrategy"), fmt.Sprintf("Cannot update vm running state until snapshot %q completes", trimmed(*s)), "wait for it, or delete it")
		}
	}
	if r := old.Status.RestoreInProgress; r != nil {
		was, err := old.RunStrategy()
		is, errNow := k.VM.RunStrategy()
		if err == nil && errNow == nil && was != is {
			k.forbidden(atSpec.Child("runStrategy"), fmt.Sprintf("Cannot update VM runStrategy until restore %q completes", trimmed(*r)), "wait for it, or delete it")
		}
	}
}
