// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
)

// Rule is one of the rules for the spec of a VMI.
type Rule struct {
	// Name is the topic of the rule. Rules of one topic have the same name.
	Name  string
	check func(*checker)
	// Structural marks the rules that readers enforce which do not trust the webhook.
	Structural bool
}

// specRules lists the rules for the spec, by topic. They are independent of their order, which is that of the faults.
var specRules = slices.Concat(machineRules, cpuRules, resourceRules, firmwareRules, featureRules, diskRules, volumeRules,
	networkRules, deviceRules, podRules, schedulingRules)

var rules = slices.Concat(annotationRules, specRules)

// Rules returns all rules but those of [Check], which apply to every VMI.
func Rules() []Rule { return slices.Clone(rules) }

// Check returns the faults of a rule in a VMI that is about to be created. It expects a VMI within [Bounds].
func (r Rule) Check(vmi *v1.VirtualMachineInstance, c Config) []Fault {
	k := newChecker(vmi, &c)
	r.check(k)
	return k.faults
}

// Spec returns all faults of a VMI that is about to be created, before or after its defaults are set. Its metadata but the
// annotations is the API server's.
func Spec(vmi *v1.VirtualMachineInstance, c Config) []Fault {
	faults := Bounds(vmi)
	if len(faults) > 0 {
		return faults // do not examine lists beyond their maximum
	}
	k := newChecker(vmi, &c)
	k.faults = append(Closed(vmi, c.FeatureGates), Values(vmi)...)
	for i := range rules {
		rules[i].check(k)
	}
	return k.faults
}

// Structure returns the faults of the spec for which a reader has to reject a VMI, whoever has validated it before. The
// gates of its fields and its metadata are separate: see [Closed] and [Metadata].
func Structure(vmi *v1.VirtualMachineInstance) []Fault {
	faults := Bounds(vmi)
	if len(faults) > 0 {
		return faults
	}
	return append(Values(vmi), structural(vmi, specRules)...)
}

// Resources returns the structural faults of the CPUs, memory and resources of a VMI within [Bounds], from which the size
// of its Pod is calculated.
func Resources(vmi *v1.VirtualMachineInstance) []Fault {
	return slices.Concat(Values(vmi), structural(vmi, cpuRules), structural(vmi, resourceRules))
}

// Check returns the faults of a VMI that no rule of the table is about, in a cluster with the given gates: those of
// [Bounds], of [Closed] and of [Values]. If a list exceeds its maximum, it returns those faults only and does not examine
// the lists.
func Check(vmi *v1.VirtualMachineInstance, gates Gates) []Fault {
	if faults := Bounds(vmi); len(faults) > 0 {
		return faults
	}
	return append(Closed(vmi, gates), Values(vmi)...)
}

func structural(vmi *v1.VirtualMachineInstance, rules []Rule) []Fault {
	k := newChecker(vmi, &Config{})
	k.existing = true
	for i := range rules {
		if rules[i].Structural {
			rules[i].check(k)
		}
	}
	return k.faults
}

// checker holds the VMI under examination and the faults found so far.
type checker struct {
	vmi     *v1.VirtualMachineInstance
	spec    *v1.VirtualMachineInstanceSpec
	domain  *v1.DomainSpec
	devices *v1.Devices
	config  *Config
	arch    string
	// existing marks a VMI that may run already: the bounds are those of its readers.
	existing bool
	faults   []Fault
}

func newChecker(vmi *v1.VirtualMachineInstance, c *Config) *checker {
	return &checker{vmi: vmi, spec: &vmi.Spec, domain: &vmi.Spec.Domain, devices: &vmi.Spec.Domain.Devices, config: c,
		arch: c.cluster().ArchitectureOf(&vmi.Spec)}
}

// invalid reports an invalid value.
func (k *checker) invalid(at *fieldPath, value any, reason, remedy string) {
	k.faults = append(k.faults, Fault{Kind: Invalid, Field: at.String(), Value: value, Reason: reason, Remedy: remedy})
}

// required reports a missing field.
func (k *checker) required(at *fieldPath, reason, remedy string) {
	k.faults = append(k.faults, Fault{Kind: Required, Field: at.String(), Reason: reason, Remedy: remedy})
}

// forbidden reports a field that this cluster does not permit.
func (k *checker) forbidden(at *fieldPath, reason, remedy string) {
	k.faults = append(k.faults, Fault{Kind: Forbidden, Field: at.String(), Reason: reason, Remedy: remedy})
}

// oneOf reports an unsupported value; the empty one means the default.
func oneOf[T ~string](k *checker, at *fieldPath, value T, known ...T) {
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
func (k *checker) text(at *fieldPath, value string, rule func(string) []string, remedy string) {
	if !Plain(value) {
		k.problem(at, value, rule(value), remedy)
	}
}

func (k *checker) problem(at *fieldPath, value string, problems []string, remedy string) {
	if len(problems) > 0 {
		reason, _, _ := strings.Cut(problems[0], " (e.g.") // the remedy is the better example
		k.invalid(at, value, reason, remedy)
		k.faults[len(k.faults)-1].sentence = true
	}
}

// names are the values seen so far, by first field.
type names map[string]*fieldPath

// take reports a duplicate name, or records it.
func (n names) take(k *checker, at *fieldPath, name string) {
	if first, taken := n[name]; taken {
		k.invalid(at, name, "duplicates "+first.String(), "use a unique value")
		return
	}
	n[name] = at
}

// only reports an error unless exactly one of the alternatives of a field is set.
func (k *checker) only(at *fieldPath, chosen []string, known string) {
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

func isTrue(b *bool) bool { return b != nil && *b }

func isFalse(b *bool) bool { return b != nil && !*b }
