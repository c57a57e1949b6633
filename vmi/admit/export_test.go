// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi/validate"
)

// Rules returns the names of all rules.
func Rules() []string {
	all := []string{"common"}
	for _, r := range validate.Rules() {
		all = append(all, r.Name)
	}
	for _, r := range rules {
		all = append(all, r.name)
	}
	return slices.Compact(all)
}

// Steps returns the names of all defaults.
func Steps() (all []string) {
	for _, s := range steps {
		all = append(all, s.name)
	}
	return all
}

// Check applies the rules of a name, and the common rules.
func Check(name string, vmi *v1.VirtualMachineInstance, c Config) field.ErrorList {
	k := newChecker(vmi, &c)
	for _, r := range rules {
		if r.name == name {
			r.check(k)
		}
	}
	faults := validate.Check(vmi, c.gates())
	for _, r := range validate.Rules() {
		if r.Name == name {
			faults = append(faults, r.Check(vmi, c.rules())...)
		}
	}
	return append(k.errs, errorsOf(faults)...)
}
