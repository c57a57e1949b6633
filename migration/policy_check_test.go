// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/policy"
)

// rate is a policy with a bandwidth.
func rate(text string) *v1alpha1.MigrationPolicySpec {
	q := resource.MustParse(text)
	return &v1alpha1.MigrationPolicySpec{BandwidthPerMigration: &q}
}

// matched is what the VMI is matched with where one policy with that spec is for everybody; nil is no policy.
func matched(spec *v1alpha1.MigrationPolicySpec) policy.Match {
	if spec == nil {
		return policy.Match{}
	}
	p := v1alpha1.MigrationPolicy{Spec: *spec}
	p.Name, p.Spec.Selectors = "p", &v1alpha1.Selectors{}
	return policy.NewPolicies([]v1alpha1.MigrationPolicy{p}).Match(nil, nil)
}

// under lets the world's VMI be under a policy with the spec.
func (w *world) under(spec *v1alpha1.MigrationPolicySpec) {
	w.InForce, _ = policy.Resolve(matched(spec), w.Config.Cluster)
}

func TestInvalidPolicy_HoldsMigrationBack(t *testing.T) {
	for name, at := range map[string]v1.VirtualMachineInstanceMigrationPhase{
		"it has not started":      v1.MigrationPhaseUnset,
		"its target Pod is there": v1.MigrationScheduling,
		"it is to be handed over": v1.MigrationScheduled,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Config.Evaluator = migration.Evaluator{{"guest", checkNamed("guest").Judge}} // which does not ask for the policy
			w.Until(at)
			w.under(rate("-1"))
			w.PodBecomesReady(targetNode)
			w.Passes()
			c := migration.Condition(w.Migration.Status, migration.ConditionWaiting)
			if c == nil || c.Reason != string(migration.ReasonPolicyInvalid) || !strings.Contains(c.Message, "bandwidthPerMigration") || !strings.Contains(c.Message, `"p"`) {
				t.Fatalf("phase %s, condition %+v", w.Migration.Status.Phase, c)
			}
			if w.VMI.Status.MigrationState != nil {
				t.Errorf("it was handed off as %+v", w.VMI.Status.MigrationState)
			}
			if _, claims := w.Snapshot().Claim(w.Now); claims != (at != v1.MigrationPhaseUnset) {
				t.Errorf("it claims a slot: %t", claims)
			}
			w.under(rate("1Mi"))
			w.Until(v1.MigrationPreparingTarget)
			if got := w.VMI.Status.MigrationState.VMIMConfigurationOptions.BandwidthPerMigration.String(); got != "1Mi" {
				t.Errorf("fixed, it goes by %s", got)
			}
		})
	}
}

func TestInvalidPolicy_WaitIsBounded(t *testing.T) {
	for name, at := range map[string]v1.VirtualMachineInstanceMigrationPhase{
		"it has not started": v1.MigrationPhaseUnset, "it is to be handed over": v1.MigrationScheduled,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Until(at)
			w.under(rate("-1"))
			plan := w.Passes()
			w.Now = plan.Deadline
			w.Passes()
			c := migration.Condition(w.Migration.Status, migration.ConditionFailed)
			if c == nil || plan.Deadline.IsZero() {
				t.Errorf("phase %s, deadline %s", w.Migration.Status.Phase, plan.Deadline)
			}
		})
	}
}
