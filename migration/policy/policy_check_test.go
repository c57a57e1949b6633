// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
)

func stall(edit func(*v1.StallDetectorOptions)) *v1alpha1.MigrationPolicySpec {
	s := &v1.StallDetectorOptions{}
	edit(s)
	return &v1alpha1.MigrationPolicySpec{ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{StallDetector: s}}
}

// rate is a policy with a bandwidth.
func rate(text string) *v1alpha1.MigrationPolicySpec {
	q := resource.MustParse(text)
	return &v1alpha1.MigrationPolicySpec{BandwidthPerMigration: &q}
}

func TestResolve_InvalidPolicies(t *testing.T) {
	type spec = v1alpha1.MigrationPolicySpec
	compressed := func(c v1.MigrationCompression) *spec {
		return &spec{ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{Compression: &c}}
	}
	for name, tc := range map[string]struct {
		spec *spec
		// field is the bad one, empty if there is none; problem is part of what is said.
		field, problem string
	}{
		"bandwidth, negative":          {rate("-1"), "spec.bandwidthPerMigration", "-1 is negative"},
		"bandwidth, much too negative": {rate("-100E"), "spec.bandwidthPerMigration", "-100E is negative"},
		"bandwidth, a little negative": {rate("-1m"), "spec.bandwidthPerMigration", "is negative"},
		"bandwidth, none":              {rate("0"), "", ""},
		"bandwidth":                    {rate("64Mi"), "", ""},
		"completion timeout, negative": {&spec{CompletionTimeoutPerGiB: new(int64(-1))}, "spec.completionTimeoutPerGiB", "-1 is negative"},
		"completion timeout, none":     {&spec{CompletionTimeoutPerGiB: new(int64(0))}, "", ""},
		"downtime, none":               {&spec{MaxDowntimeMs: new(uint64(0))}, "spec.maxDowntimeMs", "0 is out of range"},
		"downtime, least":              {&spec{MaxDowntimeMs: new(uint64(1))}, "", ""},
		"downtime, most":               {&spec{MaxDowntimeMs: new(uint64(2_000_000))}, "", ""},
		"downtime, too much":           {&spec{MaxDowntimeMs: new(uint64(2_000_001))}, "spec.maxDowntimeMs", "2000001 is out of range"},
		"compression, unknown":         {compressed("gzip"), "spec.experimental.compression", `unsupported value "gzip"`},
		"compression, none":            {compressed(v1.MigrationCompressionNone), "", ""},
		"margin, negative":             {stall(func(s *v1.StallDetectorOptions) { s.StallMargin = new(int64(-1)) }), "spec.experimental.stallDetector.stallMargin", "-1 is"},
		"margin, too large":            {stall(func(s *v1.StallDetectorOptions) { s.StallMargin = new(int64(101)) }), "spec.experimental.stallDetector.stallMargin", "101 is"},
		"margin, all":                  {stall(func(s *v1.StallDetectorOptions) { s.StallMargin = new(int64(100)) }), "", ""},
		"alpha, none":                  {stall(func(s *v1.StallDetectorOptions) { s.EwmaAlpha = new("0") }), "spec.experimental.stallDetector.ewmaAlpha", `"0" is out`},
		"alpha, one":                   {stall(func(s *v1.StallDetectorOptions) { s.EwmaAlpha = new("1") }), "", ""},
		"alpha, not a number":          {stall(func(s *v1.StallDetectorOptions) { s.EwmaAlpha = new("NaN") }), "spec.experimental.stallDetector.ewmaAlpha", `"NaN" is out`},
		"pre-copy factor, too small":   {stall(func(s *v1.StallDetectorOptions) { s.PrecopyPossibleFactor = new("0.5") }), "spec.experimental.stallDetector.precopyPossibleFactor", "out of range"},
		"pre-copy factor, large":       {stall(func(s *v1.StallDetectorOptions) { s.PrecopyPossibleFactor = new("20") }), "", ""},
		"decay factor, too large":      {stall(func(s *v1.StallDetectorOptions) { s.PatienceWindowDecayFactor = new("1.5") }), "spec.experimental.stallDetector.patienceWindowDecayFactor", "out of range"},
		"completion factor, a text":    {stall(func(s *v1.StallDetectorOptions) { s.CompletionTimeoutFactor = new("two") }), "spec.experimental.stallDetector.completionTimeoutFactor", `"two" is not a number`},
		"completion factor, infinite":  {stall(func(s *v1.StallDetectorOptions) { s.CompletionTimeoutFactor = new("Inf") }), "spec.experimental.stallDetector.completionTimeoutFactor", "out of range"},
		"post-copy without disruption": {&spec{AllowPostCopy: new(true), AllowWorkloadDisruption: new(false)}, "", ""},
		"nothing":                      {&spec{}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Resolve(byPolicy(tc.spec), nil)
			var bad *PolicyError
			if errors.As(err, &bad) != (tc.field != "") || (r.Options == nil) != (tc.field != "") || r.Err != bad {
				t.Fatalf("error %v, options %+v", err, r.Options)
			}
			if tc.field == "" {
				return
			}
			if bad.Policy != "p" || bad.Field != tc.field || !strings.Contains(bad.Problem, tc.problem) || !strings.HasSuffix(bad.Remedy, "or leave it out") {
				t.Errorf("the error is %+v", *bad)
			}
			for _, part := range []string{`"p"`, bad.Field, bad.Problem, bad.Remedy} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q lacks %s", err, part)
				}
			}
		})
	}
}
