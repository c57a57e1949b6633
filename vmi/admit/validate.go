// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi/validate"
)

// rule is one of the checks of a request.
type rule struct {
	name  string
	check func(*checker)
}

// Validate returns all errors of a VMI that is about to be created, before or after [Default]. Each error has the field and
// the value, and ends with a remedy.
func Validate(vmi *v1.VirtualMachineInstance, c Config) field.ErrorList {
	k := newChecker(vmi, &c)
	k.errs = errorsOf(validate.Spec(vmi, c.rules()))
	if len(validate.Bounds(vmi)) > 0 {
		return k.errs // do not examine lists beyond their maximum
	}
	for _, r := range rules {
		r.check(k)
	}
	return k.errs
}

// errorsOf returns the errors for faults of a spec.
func errorsOf(faults []validate.Fault) (errs field.ErrorList) {
	types := map[validate.Kind]field.ErrorType{
		validate.Required: field.ErrorTypeRequired, validate.Forbidden: field.ErrorTypeForbidden, validate.Gated: field.ErrorTypeForbidden,
		validate.Invalid: field.ErrorTypeInvalid, validate.Excess: field.ErrorTypeInvalid,
	}
	for _, f := range faults {
		e := &field.Error{Type: types[f.Kind], Field: f.Field, BadValue: f.Value, Detail: f.Reason + " (" + f.Remedy + ")"}
		switch v := f.Value.(type) {
		case nil:
			e.BadValue = ""
		case fmt.Stringer:
			e.BadValue = v.String()
		}
		errs = append(errs, e)
	}
	return errs
}

// Paths of fields.
var (
	atSpec        = field.NewPath("spec")
	atVolumes     = atSpec.Child("volumes")
	atLabels      = field.NewPath("metadata", "labels")
	atFinalizers  = field.NewPath("metadata", "finalizers")
	atAnnotations = field.NewPath("metadata", "annotations")
)

// checker holds the VMI of a request and the errors found so far.
type checker struct {
	vmi    *v1.VirtualMachineInstance
	config *Config
	errs   field.ErrorList
}

func newChecker(vmi *v1.VirtualMachineInstance, c *Config) *checker {
	return &checker{vmi: vmi, config: c}
}

// invalid reports an invalid value.
func (k *checker) invalid(at *field.Path, value any, reason, remedy string) {
	k.errs = append(k.errs, field.Invalid(at, value, reason+" ("+remedy+")"))
}

// forbidden reports a field that this user must not set.
func (k *checker) forbidden(at *field.Path, reason, remedy string) {
	k.errs = append(k.errs, field.Forbidden(at, reason+" ("+remedy+")"))
}
