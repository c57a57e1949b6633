// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vm/instancetype"
	guests "github.com/virtloom/virtloom/vmi/admit"
	"github.com/virtloom/virtloom/vmi/validate"
)

// Paths of fields.
var (
	atSpec     = field.NewPath("spec")
	atTemplate = atSpec.Child("template")
	atDomain   = atTemplate.Child("spec", "domain")
	atDisks    = atSpec.Child("dataVolumeTemplates")
	atRequests = field.NewPath("status", "volumeRequests")
)

// Verdict is what becomes of a request.
type Verdict struct {
	// Errors are all errors of the VM.
	Errors field.ErrorList
	// Warnings are for the user who made the request.
	Warnings []string
	// Need are objects without which the verdict does not count.
	Need []instancetype.Ref
}

// Validate returns the verdict about a VM that is created or changed. A VM that is being deleted is not checked.
func Validate(in Input) Verdict {
	k := &checker{Input: in}
	if in.VM.DeletionTimestamp != nil {
		return k.Verdict
	}
	k.strategy()
	if in.VM.Spec.Template == nil {
		k.required(atTemplate, "missing virtual machine template.", "add the template of the VirtualMachineInstance")
		return k.Verdict
	}
	vmi, ok := k.vmi()
	if len(k.Need) > 0 {
		return k.Verdict
	}
	if ok {
		k.vmiErrors(vmi)
		k.requests(vmi)
	}
	k.room()
	k.dataVolumes()
	if in.Old != nil {
		k.interrupted()
	}
	return k.Verdict
}

type checker struct {
	Input
	Verdict
}

// invalid reports an invalid value, required a missing one, forbidden one that must not be there.
func (k *checker) invalid(at *field.Path, value any, reason, remedy string) {
	k.Errors = append(k.Errors, field.Invalid(at, value, reason+" ("+remedy+")"))
}

func (k *checker) required(at *field.Path, reason, remedy string) {
	k.Errors = append(k.Errors, field.Required(at, reason+" ("+remedy+")"))
}

func (k *checker) forbidden(at *field.Path, reason, remedy string) {
	k.Errors = append(k.Errors, field.Forbidden(at, reason+" ("+remedy+")"))
}

const (
	gateReceiver = "DecentralizedLiveMigration"
	useStrategy  = "use Always, RerunOnFailure, Manual, Halted or Once"
)

// strategies are those that need no feature gate.
var strategies = []v1.VirtualMachineRunStrategy{v1.RunStrategyAlways, v1.RunStrategyRerunOnFailure, v1.RunStrategyManual, v1.RunStrategyHalted, v1.RunStrategyOnce}

// strategy checks how the VM is run.
func (k *checker) strategy() {
	spec := &k.VM.Spec
	if spec.Running != nil {
		k.Warnings = append(k.Warnings, "spec.running is deprecated, please use spec.runStrategy instead.")
	}
	at := atSpec.Child("runStrategy")
	switch s := spec.RunStrategy; {
	case s != nil && spec.Running != nil:
		k.invalid(atSpec.Child("running"), *spec.Running,
			"Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use RunStrategy instead", "remove spec.running")
	case s == nil && spec.Running == nil:
		k.required(at, "RunStrategy must be specified", useStrategy)
	case s == nil:
	case *s == v1.RunStrategyWaitAsReceiver:
		if !(validate.Gates{On: k.Config.VMIs.FeatureGates, Off: k.Config.VMIs.DisabledFeatureGates}).Enabled(gateReceiver) {
			k.forbidden(at, fmt.Sprintf("Invalid RunStrategy (%s)", *s), "it needs the feature gate "+gateReceiver)
		}
	case !slices.Contains(strategies, *s):
		k.invalid(at, *s, fmt.Sprintf("Invalid RunStrategy (%s)", *s), useStrategy)
	}
}

// vmi returns the VMI that the VM would create now; false if it cannot be made.
func (k *checker) vmi() (*v1.VirtualMachineInstance, bool) {
	found, missing, err := instancetype.Find(k.VM, k.Objects)
	if k.Need = missing; len(missing) > 0 {
		return nil, false
	}
	if err != nil {
		k.invalid(atSpec.Child(k.matcher(err)), "", err.Error(), "create the object, or correct its name and kind")
		return nil, false
	}
	for _, u := range instancetype.Check(&k.VM.Spec.Template.Spec, found) {
		for _, f := range u.Fields {
			k.Errors = append(k.Errors, &field.Error{Type: field.ErrorTypeInvalid, Field: f, BadValue: "",
				Detail: "failure checking preference requirements: " + u.Message + " (change it, or choose another preference)"})
		}
	}
	template := k.VM.Spec.Template.DeepCopy()
	vmi := &v1.VirtualMachineInstance{Spec: template.Spec, ObjectMeta: metav1.ObjectMeta{
		Namespace: k.VM.Namespace, Name: k.VM.Name, Labels: template.ObjectMeta.Labels, Annotations: template.ObjectMeta.Annotations}}
	if err := instancetype.Complete(&vmi.Spec, found, k.Config.cluster()); err != nil {
		k.invalid(atTemplate.Child("spec", "networks"), "", err.Error(), "add a network and its interface")
		return nil, false
	}
	var conflicts *instancetype.Conflicts
	switch err := instancetype.ToVMI(k.VM, vmi, found); {
	case errors.As(err, &conflicts):
		for _, f := range conflicts.Fields {
			k.Errors = append(k.Errors, &field.Error{Type: field.ErrorTypeInvalid, Field: atTemplate.String() + "." + f, BadValue: "",
				Detail: "VM field conflicts with selected instance type (remove it from the template, or choose another instance type)"})
		}
		return nil, false
	case err != nil:
		k.invalid(atSpec.Child("instancetype"), "", err.Error(), "choose another instance type")
		return nil, false
	}
	return vmi, true
}

// matcher returns the field of the matcher that an error is about.
func (k *checker) matcher(err error) string {
	var e *instancetype.Error
	if errors.As(err, &e) && e.Reason != instancetype.ReasonFailedFindInstancetype || k.VM.Spec.Instancetype == nil {
		return "preference"
	}
	return "instancetype"
}

// vmiErrors reports the errors of the VMI, at the fields of the template.
func (k *checker) vmiErrors(vmi *v1.VirtualMachineInstance) {
	c := k.Config.VMIs
	c.Request.Privileged = false // whoever runs the control plane, tenants write templates
	if k.Old != nil && k.Old.Spec.Template != nil {
		k.kept(vmi)
	}
	for _, e := range guests.Validate(vmi, c) {
		e.Field = atTemplate.String() + "." + e.Field
		k.Errors = append(k.Errors, e)
	}
}

// kept takes reserved labels and annotations off the VMI that the stored template has already: they may stay or go.
func (k *checker) kept(vmi *v1.VirtualMachineInstance) {
	old := &k.Old.Spec.Template.ObjectMeta
	for _, m := range []struct{ now, was map[string]string }{{vmi.Labels, old.Labels}, {vmi.Annotations, old.Annotations}} {
		for key, value := range m.was {
			if m.now[key] == value {
				delete(m.now, key)
			}
		}
	}
}

// room checks that there is room for changes of a running VMI: those of the VMI as it is created are left to its own rules.
func (k *checker) room() {
	cpu := k.VM.Spec.Template.Spec.Domain.CPU
	if !k.Config.VMIs.NoLiveUpdate && cpu != nil && cpu.MaxSockets != 0 && cpu.Sockets > cpu.MaxSockets {
		k.invalid(atDomain.Child("cpu", "sockets"), cpu.Sockets,
			"Number of sockets in CPU topology is greater than the maximum sockets allowed", fmt.Sprintf("use %d at most, or raise maxSockets", cpu.MaxSockets))
	}
}

// trimmed returns text that is safe and short enough for a message.
func trimmed(s string) string {
	const longest = 253
	return strings.ToValidUTF8(s[:min(len(s), longest)], "")
}
