// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"
)

// Rules returns the names of all rules.
func Rules() (all []string) {
	for _, r := range rules {
		all = append(all, r.name)
	}
	return all
}

// Steps returns the names of all defaults.
func Steps() (all []string) {
	for _, s := range steps {
		all = append(all, s.name)
	}
	return all
}

// Check applies one rule, and the common rules.
func Check(name string, vmi *v1.VirtualMachineInstance, c Config) field.ErrorList {
	for i, r := range rules {
		if r.name == name {
			if r.name == "common" {
				return check(vmi, c, rules[i:i+1])
			}
			return check(vmi, c, []rule{r, {"common", checkCommon}})
		}
	}
	return nil
}
