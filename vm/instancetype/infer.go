// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"errors"
	"fmt"
	"slices"

	v1 "kubevirt.io/api/core/v1"
	api "kubevirt.io/api/instancetype"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// longestChain bounds the number of DataSources that refer to each other.
const longestChain = 8

// ignorable is a failure that the policy Ignore covers: a missing label or an unsupported source.
type ignorable struct{ error }

// inferred is what a volume names.
type inferred struct{ name, kind string }

// Infer replaces inferFromVolume of both matchers by the names that the labels of the volume, or of what it was made from,
// have as default. With the policy Ignore, a matcher for which there is none is removed. The VM is a copy; it does not
// count until no ref is left to be read.
func Infer(vm *v1.VirtualMachine, objects Objects) (*v1.VirtualMachine, []Ref, error) {
	vm = vm.DeepCopy()
	r := &reading{objects: objects}
	for _, m := range matchers(vm) {
		if err := r.infer(vm, m); err != nil {
			return nil, r.missing, err
		}
	}
	return vm, r.missing, nil
}

func (r *reading) infer(vm *v1.VirtualMachine, m matcher) error {
	if m.infer == "" {
		return checkNamed(m)
	}
	if err := checkAlone(m); err != nil {
		return err
	}
	w := walk{reading: r, vm: vm, nameLabel: api.DefaultInstancetypeLabel, kindLabel: api.DefaultInstancetypeKindLabel}
	if !m.forInstancetype() {
		w.nameLabel, w.kindLabel = api.DefaultPreferenceLabel, api.DefaultPreferenceKindLabel
	}
	ignore := m.policy != nil && *m.policy == v1.IgnoreInferFromVolumeFailure
	found, err := w.volume(m.infer)
	switch {
	case ignore && errors.As(err, &ignorable{}):
		if m.forInstancetype() {
			vm.Spec.Instancetype = nil
		} else {
			vm.Spec.Preference = nil
		}
		return nil
	case err != nil:
		return fmt.Errorf("%s.inferFromVolume: %w", m.field, err)
	case found == nil:
		return nil // something must be read first
	}
	m.settle(vm, *found, ignore)
	return nil
}

// settle stores what was inferred. Under Ignore, the memory of the template gives way to that of the instance type.
func (m matcher) settle(vm *v1.VirtualMachine, found inferred, ignore bool) {
	if m.forInstancetype() {
		t := vm.Spec.Instancetype
		t.Name, t.Kind, t.InferFromVolume, t.InferFromVolumeFailurePolicy = found.name, found.kind, "", nil
		if ignore && vm.Spec.Template != nil {
			vm.Spec.Template.Spec.Domain.Memory = nil
		}
		return
	}
	t := vm.Spec.Preference
	t.Name, t.Kind, t.InferFromVolume, t.InferFromVolumeFailurePolicy = found.name, found.kind, "", nil
}

// checkNamed requires a name of a matcher that infers none.
func checkNamed(m matcher) error {
	if m.name == "" {
		return fmt.Errorf("%s: Either Name or InferFromVolume should be provided within the %s", m.field, m.what)
	}
	return nil
}

// checkAlone requires that a matcher that infers names nothing.
func checkAlone(m matcher) error {
	if m.name != "" {
		return fmt.Errorf("%s.name: Name already set, should be cleared before setting inferFromVolume", m.field)
	}
	if m.kind != "" {
		return fmt.Errorf("%s.kind: Kind already set, should be cleared before setting inferFromVolume", m.field)
	}
	return nil
}

// walk follows a volume to the object whose labels count.
type walk struct {
	*reading
	vm                   *v1.VirtualMachine
	nameLabel, kindLabel string
}

// volume infers from a volume of the template.
func (w walk) volume(name string) (*inferred, error) {
	if w.vm.Spec.Template == nil {
		return nil, fmt.Errorf("unable to find volume %s to infer defaults", name)
	}
	volumes := w.vm.Spec.Template.Spec.Volumes
	i := slices.IndexFunc(volumes, func(v v1.Volume) bool { return v.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("unable to find volume %s to infer defaults", name)
	}
	switch v := volumes[i]; {
	case v.PersistentVolumeClaim != nil:
		return w.labelled(Ref{KindClaim, w.vm.Namespace, v.PersistentVolumeClaim.ClaimName})
	case v.DataVolume != nil:
		return w.dataVolume(v.DataVolume.Name)
	default:
		return nil, ignorable{fmt.Errorf("unable to infer defaults from volume %s as type is not supported", name)}
	}
}

// labels returns what a set of labels names.
func (w walk) labels(labels map[string]string) (*inferred, error) {
	name := labels[w.nameLabel]
	if name == "" {
		return nil, ignorable{fmt.Errorf("unable to find required %s label on the volume", w.nameLabel)}
	}
	return &inferred{name: name, kind: labels[w.kindLabel]}, nil
}

// labelled infers from the labels of an object.
func (w walk) labelled(ref Ref) (*inferred, error) {
	object, read := w.get(ref)
	switch {
	case !read:
		return nil, nil
	case object == nil:
		return nil, fmt.Errorf("%s not found", ref)
	default:
		return w.labels(object.GetLabels())
	}
}

// dataVolume infers from the template of a DataVolume, else from the DataVolume, else from its claim: CDI may have
// collected the DataVolume.
func (w walk) dataVolume(name string) (*inferred, error) {
	for i := range w.vm.Spec.DataVolumeTemplates {
		if t := &w.vm.Spec.DataVolumeTemplates[i]; t.Name == name {
			return w.source(&t.Spec)
		}
	}
	object, read := w.get(Ref{KindDataVolume, w.vm.Namespace, name})
	if !read {
		return nil, nil
	}
	dv, ok := as[cdiv1.DataVolume](object)
	if !ok {
		return w.labelled(Ref{KindClaim, w.vm.Namespace, name})
	}
	if found, err := w.labels(dv.Labels); err == nil {
		return found, nil
	}
	return w.source(&dv.Spec)
}

// source infers from what a DataVolume is made from.
func (w walk) source(spec *cdiv1.DataVolumeSpec) (*inferred, error) {
	switch {
	case spec.Source != nil && spec.Source.PVC != nil:
		return w.labelled(Ref{KindClaim, w.in(spec.Source.PVC.Namespace), spec.Source.PVC.Name})
	case spec.Source != nil && spec.Source.Snapshot != nil:
		return w.labelled(Ref{KindSnapshot, w.in(spec.Source.Snapshot.Namespace), spec.Source.Snapshot.Name})
	case spec.Source == nil && spec.SourceRef != nil && spec.SourceRef.Kind == KindDataSource:
		namespace := ""
		if spec.SourceRef.Namespace != nil {
			namespace = *spec.SourceRef.Namespace
		}
		return w.dataSource(Ref{KindDataSource, w.in(namespace), spec.SourceRef.Name})
	case spec.Source == nil && spec.SourceRef != nil:
		return nil, ignorable{fmt.Errorf("unable to infer defaults from DataVolumeSourceRef as Kind %s is not supported", spec.SourceRef.Kind)}
	default:
		return nil, ignorable{errors.New("unable to infer defaults from DataVolumeSpec as DataVolumeSource is not supported")}
	}
}

// in returns a namespace, by default that of the VM.
func (w walk) in(namespace string) string {
	if namespace == "" {
		return w.vm.Namespace
	}
	return namespace
}

// dataSource infers from a DataSource, else from what it refers to.
func (w walk) dataSource(ref Ref) (*inferred, error) {
	for range longestChain {
		object, read := w.get(ref)
		if !read {
			return nil, nil
		}
		source, ok := as[cdiv1.DataSource](object)
		if !ok {
			return nil, fmt.Errorf("%s not found", ref)
		}
		if found, err := w.labels(source.Labels); err == nil {
			return found, nil
		}
		switch from := source.Spec.Source; {
		case from.PVC != nil:
			return w.labelled(Ref{KindClaim, within(from.PVC.Namespace, source.Namespace), from.PVC.Name})
		case from.Snapshot != nil:
			return w.labelled(Ref{KindSnapshot, within(from.Snapshot.Namespace, source.Namespace), from.Snapshot.Name})
		case from.DataSource != nil:
			ref = Ref{KindDataSource, within(from.DataSource.Namespace, source.Namespace), from.DataSource.Name}
		default:
			return nil, ignorable{errors.New("unable to infer defaults from DataSource that doesn't provide DataVolumeSourcePVC")}
		}
	}
	return nil, fmt.Errorf("%s: more than %d DataSources refer to each other", ref, longestChain)
}

// within returns a namespace, by default that of the object that names it.
func within(namespace, fallback string) string {
	if namespace == "" {
		return fallback
	}
	return namespace
}
