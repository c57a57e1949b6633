// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"strconv"

	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
)

// PolicyError is a field of a MigrationPolicy with a value that KubeVirt's admission
// rejects. It may be stored in a cluster without KubeVirt's webhooks.
type PolicyError struct {
	// Policy is the policy's name.
	Policy string
	// Field is the path of the field: spec.bandwidthPerMigration.
	Field string
	// Problem says why the value is invalid.
	Problem string
	// Remedy says which values are valid.
	Remedy string
}

// Error implements error.
func (e *PolicyError) Error() string {
	return fmt.Sprintf("MigrationPolicy %q: %s: %s (%s)", e.Policy, e.Field, e.Problem, e.Remedy)
}

// leaveOut is the remedy for every field.
const leaveOut = ", or leave it out"

// maxDowntimeMs is the longest downtime, in milliseconds, that a hypervisor accepts.
const maxDowntimeMs = 2_000_000

// checkPolicy returns the first field with an invalid value; nil if there is none.
func checkPolicy(p *v1alpha1.MigrationPolicy) *PolicyError {
	bad := func(field, problem, remedy string) *PolicyError {
		return &PolicyError{Policy: p.Name, Field: "spec." + field, Problem: problem, Remedy: remedy + leaveOut}
	}
	spec := &p.Spec
	if q := spec.BandwidthPerMigration; q != nil && q.Sign() < 0 {
		return bad("bandwidthPerMigration", q.String()+" is negative", "use an amount per second such as 64Mi, or 0 for no limit")
	}
	if n := spec.CompletionTimeoutPerGiB; n != nil && *n < 0 {
		return bad("completionTimeoutPerGiB", fmt.Sprintf("%d is negative", *n), "use a number of seconds, or 0 for no limit")
	}
	if n := spec.MaxDowntimeMs; n != nil && (*n < 1 || *n > maxDowntimeMs) {
		return bad("maxDowntimeMs", fmt.Sprintf("%d is out of range", *n), fmt.Sprintf("use 1 to %d milliseconds", maxDowntimeMs))
	}
	if spec.ExperimentalMigrationOptions == nil {
		return nil
	}
	if field, problem, remedy := checkExperiment(spec.ExperimentalMigrationOptions); field != "" {
		return bad("experimental."+field, problem, remedy)
	}
	return nil
}

// checkExperiment returns the first invalid field below spec.experimental, if any.
func checkExperiment(o *v1.ExperimentalMigrationOptions) (field, problem, remedy string) {
	if c := o.Compression; c != nil && *c != v1.MigrationCompressionNone && *c != v1.MigrationCompressionZstd {
		return "compression", fmt.Sprintf("unsupported value %q", *c), fmt.Sprintf("use %s or %s", v1.MigrationCompressionNone, v1.MigrationCompressionZstd)
	}
	s := o.StallDetector
	if s == nil {
		return "", "", ""
	}
	if n := s.StallMargin; n != nil && (*n < 0 || *n > 100) {
		return "stallDetector.stallMargin", fmt.Sprintf("%d is out of range", *n), "use a percentage from 0 to 100"
	}
	for _, f := range []struct {
		field string
		value *string
		fits  func(float64) bool
		rule  string
	}{
		{"ewmaAlpha", s.EwmaAlpha, share, "use a number above 0 and up to 1"},
		{"precopyPossibleFactor", s.PrecopyPossibleFactor, factor, "use a number of 1 or more"},
		{"patienceWindowDecayFactor", s.PatienceWindowDecayFactor, share, "use a number above 0 and up to 1"},
		{"completionTimeoutFactor", s.CompletionTimeoutFactor, factor, "use a number of 1 or more"},
	} {
		if f.value == nil {
			continue
		}
		n, err := strconv.ParseFloat(*f.value, 64)
		if err != nil {
			return "stallDetector." + f.field, fmt.Sprintf("%q is not a number", *f.value), f.rule
		}
		if !f.fits(n) {
			return "stallDetector." + f.field, fmt.Sprintf("%q is out of range", *f.value), f.rule
		}
	}
	return "", "", ""
}

func share(n float64) bool  { return n > 0 && n <= 1 }
func factor(n float64) bool { return n >= 1 && !math.IsInf(n, 0) }
