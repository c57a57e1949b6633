// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vm"
	"github.com/virtloom/virtloom/vm/admit"
	"github.com/virtloom/virtloom/vm/instancetype"
	guests "github.com/virtloom/virtloom/vmi/admit"
)

// rounds bounds how often a VM turns out to need further objects.
const rounds = 16

// Start makes VMI the one that the controller would start VM with, as if it were not halted: by the code of KubeVirt's
// webhooks, unless raw is set, and of the controller, with the instance type, preference and ControllerRevisions of the
// manifests. One that VM names and no manifest has is an error that wraps render.ErrMissingFact. Without a VM, Start does nothing.
func (c *Cluster) Start(raw bool) error {
	if c.VM == nil {
		return nil
	}
	s := &starting{c: c, object: c.object(c.VM), objects: instancetype.Objects{}, vm: c.VM}
	if err := s.admit(raw); err != nil {
		return err
	}
	if err := s.resolve(); err != nil {
		return err
	}
	vmi, err := vm.NewVMI(s.vm, s.definitions, s.config().Cluster)
	if err != nil {
		return s.invalid("", err.Error(), "correct the VirtualMachine")
	}
	vmi.TypeMeta = metav1.TypeMeta{APIVersion: v1.VirtualMachineInstanceGroupVersionKind.GroupVersion().String(), Kind: v1.VirtualMachineInstanceGroupVersionKind.Kind}
	vmi.UID = standIn(objectName(vmi.Kind, vmi.Namespace, vmi.Name))
	c.VMI, c.vmi = vmi, Object{Source: s.object.Source, Kind: vmi.Kind, Value: vmi, StandIn: true}
	return nil
}

// starting is the VMI of a VM in the making.
type starting struct {
	c *Cluster
	// object is the VM as it was read, vm with what it has got since.
	object Object
	vm     *v1.VirtualMachine
	// objects are those that were looked for, absent those of them that no manifest has.
	objects instancetype.Objects
	absent  []instancetype.Ref
	// definitions are instance type and preference.
	definitions instancetype.Definitions
}

func (s *starting) config() vm.Config { return vm.Config{}.With(s.c.KubeVirt) }

// invalid returns an error about a field of the VM.
func (s *starting) invalid(field, reason, remedy string) *Error {
	if at, what, found := strings.Cut(reason, ": "); field == "" && found && strings.HasPrefix(at, "spec.") && !strings.Contains(at, " ") {
		field, reason = at, what
	}
	return s.object.fault(field, reason, remedy)
}

// look asks a question of package instancetype until no object is left to be looked for.
func (s *starting) look(question func() ([]instancetype.Ref, error)) error {
	for range rounds {
		missing, err := question()
		if err != nil || len(missing) == 0 {
			return err
		}
		for _, ref := range missing {
			s.objects[ref] = s.c.find(ref)
			if s.objects[ref] == nil {
				s.absent = append(s.absent, ref)
			}
		}
	}
	return s.invalid("spec", "leads to more objects than are looked for", "use fewer DataSources that refer to each other")
}

// admit sets the defaults of a new VM, and records what sets them.
func (s *starting) admit(raw bool) error {
	s.c.record("the template of "+s.object.String(), ofTemplate(s.vm))
	if s.vm.Spec.Template == nil {
		return s.invalid("spec.template", "missing virtual machine template", "add the template of the VirtualMachineInstance")
	}
	if raw {
		return nil
	}
	plain := s.vm.DeepCopy()
	plain.Spec.Instancetype, plain.Spec.Preference = nil, nil
	if without, err := s.defaulted(plain); err == nil {
		s.c.record("a default of new VirtualMachines", ofTemplate(without))
	}
	full, err := s.defaulted(s.vm)
	if err != nil {
		return s.unresolved(err)
	}
	s.vm = full
	return nil
}

// defaulted returns a VM with the defaults of the webhooks.
func (s *starting) defaulted(of *v1.VirtualMachine) (out *v1.VirtualMachine, err error) {
	config := admit.Config{VMIs: guests.ConfigFrom(s.c.KubeVirt.DeepCopy())}
	err = s.look(func() (missing []instancetype.Ref, err error) {
		out, missing, err = admit.Default(admit.Input{VM: of, Objects: s.objects, Config: config})
		return missing, err
	})
	return out, err
}

// resolve finds instance type and preference, and checks that they fit the template.
func (s *starting) resolve() error {
	if err := s.revisions(); err != nil {
		return err
	}
	var change instancetype.Change
	unresolved := s.look(func() (missing []instancetype.Ref, err error) {
		change, missing, err = instancetype.Sync(s.vm, s.objects, s.config().Policy, s.config().Cluster)
		return missing, err
	})
	s.definitions = change.Definitions
	if err := s.conflicts(); err != nil {
		return err
	}
	if unresolved != nil {
		return s.unresolved(unresolved)
	}
	s.recordSteps()
	if change.Expanded != nil { // what the cluster stores in place of the VM
		s.vm, s.definitions = change.Expanded, instancetype.Definitions{}
	}
	return nil
}

// revisions requires the ControllerRevisions that the status names: without them, the current objects would be used, which
// may differ.
func (s *starting) revisions() error {
	var errs []error
	if m, ref := s.vm.Spec.Instancetype, s.vm.Status.InstancetypeRef; m != nil && ref != nil && m.RevisionName == "" && m.Name == ref.Name && m.Kind == ref.Kind {
		errs = append(errs, s.revision("status.instancetypeRef", ref))
	}
	if m, ref := s.vm.Spec.Preference, s.vm.Status.PreferenceRef; m != nil && ref != nil && m.RevisionName == "" && m.Name == ref.Name && m.Kind == ref.Kind {
		errs = append(errs, s.revision("status.preferenceRef", ref))
	}
	return errors.Join(errs...)
}

func (s *starting) revision(at string, of *v1.InstancetypeStatusRef) error {
	if of.ControllerRevisionRef == nil || of.ControllerRevisionRef.Name == "" {
		return nil
	}
	ref := instancetype.Ref{Kind: instancetype.KindRevision, Namespace: s.vm.Namespace, Name: of.ControllerRevisionRef.Name}
	if s.c.find(ref) != nil {
		return nil
	}
	return s.missing(at+".controllerRevisionRef", ref, "add its manifest with -f, or remove the status to use the current object")
}

// unresolved returns the error for an object that could not be found or used.
func (s *starting) unresolved(err error) error {
	field := "spec"
	var e *instancetype.Error
	switch {
	case errors.As(err, &e) && e.Reason == instancetype.ReasonFailedFindInstancetype:
		field = "spec.instancetype"
	case errors.As(err, &e) && e.Reason == instancetype.ReasonFailedFindPreference:
		field = "spec.preference"
	}
	for _, ref := range s.absent {
		if strings.Contains(err.Error(), ref.String()+" not found") {
			if at, _, found := strings.Cut(err.Error(), ": "); found && strings.HasPrefix(at, "spec.") {
				field = at
			}
			return s.missing(field, ref, "add its manifest with -f, or correct "+field)
		}
	}
	if field == "spec" {
		field = ""
	}
	return s.invalid(field, err.Error(), "correct the VirtualMachine")
}

func (s *starting) missing(field string, ref instancetype.Ref, remedy string) *Error {
	fault := s.object.fault(field, ref.String()+" not found", remedy)
	fault.Err = render.ErrMissingFact
	return fault
}

// conflicts reports all fields that the template and the instance type set, and all requirements of the preference that are
// not met.
func (s *starting) conflicts() error {
	var errs []error
	var both *instancetype.Conflicts
	if err := instancetype.ToTemplate(s.vm.Spec.Template.DeepCopy(), s.definitions); errors.As(err, &both) {
		for _, field := range both.Fields {
			errs = append(errs, s.invalid(field, "is also set by instance type "+s.definitions.InstancetypeFrom.String(),
				"remove it from the template, or choose another instance type"))
		}
	}
	for _, u := range instancetype.Check(&s.vm.Spec.Template.Spec, s.definitions) {
		errs = append(errs, s.invalid(strings.Join(u.Fields, ", "), "failure checking preference requirements: "+u.Message,
			"change it, or choose another preference"))
	}
	return errors.Join(errs...)
}

// templateClaims returns the claims that CDI would create for the dataVolumeTemplates of VM, as far as their templates
// define them: a storage template leaves the rest to the StorageProfile of its class.
func (c *Cluster) templateClaims() (claims []*corev1.PersistentVolumeClaim) {
	if c.VM == nil {
		return nil
	}
	for i := range c.VM.Spec.DataVolumeTemplates {
		t := &c.VM.Spec.DataVolumeTemplates[i]
		if spec := claimSpec(&t.Spec); spec != nil {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: c.VM.Namespace, Name: t.Name}, Spec: *spec}
			claim.UID = standIn(objectName(instancetype.KindClaim, claim.Namespace, claim.Name))
			claims = append(claims, claim)
		}
	}
	return claims
}

// claimSpec returns the spec of a DataVolume's claim; nil if it is not known.
func claimSpec(dv *cdiv1.DataVolumeSpec) *corev1.PersistentVolumeClaimSpec {
	switch s := dv.Storage; {
	case dv.PVC != nil:
		return dv.PVC.DeepCopy()
	case s != nil && s.VolumeMode != nil && len(s.AccessModes) > 0:
		return &corev1.PersistentVolumeClaimSpec{AccessModes: s.AccessModes, VolumeMode: s.VolumeMode, StorageClassName: s.StorageClassName, Resources: s.Resources}
	default:
		return nil
	}
}
