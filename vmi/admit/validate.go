// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmirules"
)

// rule is one of the checks.
type rule struct {
	name  string
	check func(*checker)
}

// rules lists all checks of a new VMI, by topic. They are independent of their order, which is that of the errors.
var rules = slices.Concat([]rule{{"common", checkCommon}}, metadataRules, machineRules, resourceRules, firmwareRules, featureRules,
	diskRules, volumeRules, networkRules, deviceRules, podRules, schedulingRules)

// Validate returns all errors of a VMI that is about to be created, before or after [Default]. Each error has the field and
// the value, and ends with a remedy.
func Validate(vmi *v1.VirtualMachineInstance, c Config) field.ErrorList {
	return check(vmi, c, rules)
}

func check(vmi *v1.VirtualMachineInstance, c Config, rules []rule) field.ErrorList {
	if len(vmirules.Bounds(vmi)) > 0 {
		rules = []rule{{"common", checkCommon}} // do not examine lists beyond their maximum
	}
	k := &checker{vmi: vmi, spec: &vmi.Spec, domain: &vmi.Spec.Domain, devices: &vmi.Spec.Domain.Devices, config: &c,
		arch: c.architecture(&vmi.Spec)}
	for _, r := range rules {
		r.check(k)
	}
	return k.errs
}

// Paths of fields.
var (
	atSpec        = field.NewPath("spec")
	atDomain      = atSpec.Child("domain")
	atCPU         = atDomain.Child("cpu")
	atMemory      = atDomain.Child("memory")
	atResources   = atDomain.Child("resources")
	atFirmware    = atDomain.Child("firmware")
	atFeatures    = atDomain.Child("features")
	atDevices     = atDomain.Child("devices")
	atDisks       = atDevices.Child("disks")
	atInterfaces  = atDevices.Child("interfaces")
	atVolumes     = atSpec.Child("volumes")
	atNetworks    = atSpec.Child("networks")
	atLabels      = field.NewPath("metadata", "labels")
	atFinalizers  = field.NewPath("metadata", "finalizers")
	atAnnotations = field.NewPath("metadata", "annotations")
)

// checker holds the VMI under examination and the errors found so far.
type checker struct {
	vmi     *v1.VirtualMachineInstance
	spec    *v1.VirtualMachineInstanceSpec
	domain  *v1.DomainSpec
	devices *v1.Devices
	config  *Config
	arch    string
	errs    field.ErrorList
}

// invalid reports an invalid value.
func (k *checker) invalid(at *field.Path, value any, reason, remedy string) {
	k.errs = append(k.errs, field.Invalid(at, value, reason+" ("+remedy+")"))
}

// required reports a missing field.
func (k *checker) required(at *field.Path, reason, remedy string) {
	k.errs = append(k.errs, field.Required(at, reason+" ("+remedy+")"))
}

// forbidden reports a field that this user or this cluster must not set.
func (k *checker) forbidden(at *field.Path, reason, remedy string) {
	k.errs = append(k.errs, field.Forbidden(at, reason+" ("+remedy+")"))
}

// checkCommon reports the faults that every reader of a VMI rejects.
func checkCommon(k *checker) {
	for _, f := range vmirules.Check(k.vmi, k.config.gates()) {
		e := &field.Error{Type: field.ErrorTypeInvalid, Field: f.Field, BadValue: f.Value, Detail: f.Reason + " (" + f.Remedy + ")"}
		if f.Kind == vmirules.Gated {
			e.Type, e.BadValue = field.ErrorTypeForbidden, ""
		}
		k.errs = append(k.errs, e)
	}
}

// oneOf reports an unsupported value; the empty one means the default.
func oneOf[T ~string](k *checker, at *field.Path, value T, known ...T) {
	if value == "" || slices.Contains(known, value) {
		return
	}
	words := make([]string, len(known))
	for i, word := range known {
		words[i] = string(word)
	}
	k.invalid(at, value, "is not supported", "use "+strings.Join(words, ", "))
}

// text reports a text that violates a rule of Kubernetes.
func (k *checker) text(at *field.Path, value string, rule func(string) []string, remedy string) {
	if problems := rule(value); len(problems) > 0 {
		reason, _, _ := strings.Cut(problems[0], " (e.g.") // the remedy is the better example
		k.invalid(at, value, reason, remedy)
	}
}

// names are the values seen so far, by first field.
type names map[string]*field.Path

// take reports a duplicate name, or records it.
func (n names) take(k *checker, at *field.Path, name string) {
	if first, taken := n[name]; taken {
		k.invalid(at, name, "duplicates "+first.String(), "use a unique value")
		return
	}
	n[name] = at
}

// only reports an error unless exactly one of the alternatives of a field is set.
func (k *checker) only(at *field.Path, chosen []string, known string) {
	switch len(chosen) {
	case 1:
	case 0:
		k.required(at, "must specify one alternative", "set "+known)
	default:
		k.invalid(at, strings.Join(chosen, ", "), fmt.Sprintf("must specify one alternative, not %d", len(chosen)), "keep one")
	}
}

// alternative is one of several fields of which one must be set.
type alternative struct {
	name string
	set  bool
}

func chosen(all ...alternative) (names []string) {
	for _, a := range all {
		if a.set {
			names = append(names, a.name)
		}
	}
	return names
}

const (
	useDNSLabel = "use at most 63 lower case letters, digits and dashes"
	useDNSName  = "use lower case letters, digits, dashes and dots"
	useLabel    = "use at most 63 letters, digits, dashes, underscores and dots, beginning and ending with a letter or digit"
	useKey      = "use a name of letters, digits, dashes, underscores and dots, with an optional DNS name and slash as prefix"
)
