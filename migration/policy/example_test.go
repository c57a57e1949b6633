// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"

	"github.com/virtloom/virtloom/migration/policy"
)

// Which MigrationPolicy is in force for a VMI, why, and which
// options follow.
func ExamplePolicies() {
	named := func(name string, guest map[string]string) v1alpha1.MigrationPolicy {
		return v1alpha1.MigrationPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.MigrationPolicySpec{Selectors: &v1alpha1.Selectors{VirtualMachineInstanceSelector: guest}},
		}
	}
	databases := named("databases", map[string]string{"tier": "db"})
	yes, rate := true, resource.MustParse("64Mi")
	databases.Spec.AllowPostCopy, databases.Spec.BandwidthPerMigration = &yes, &rate

	policies := policy.NewPolicies([]v1alpha1.MigrationPolicy{
		named("everybody", nil), databases, named("web", map[string]string{"tier": "web"}),
	})
	m := policies.Match(map[string]string{"tier": "db"}, nil)
	for _, c := range m.Candidates() {
		fmt.Printf("%s wins %t: %s\n", c.Name, c.Wins, c.Why())
	}

	timeout := int64(300)
	r, err := policy.Resolve(m, &v1.MigrationConfiguration{CompletionTimeoutPerGiB: &timeout})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("bandwidth %s, %d s per GiB, post-copy %t, disruption %t, standstill %d ms\n", r.Options.BandwidthPerMigration,
		*r.Options.CompletionTimeoutPerGiB, *r.Options.AllowPostCopy, *r.Options.AllowWorkloadDisruption, *r.Options.MaxDowntimeMs)

	zero := uint64(0)
	databases.Spec.MaxDowntimeMs = &zero
	m = policy.NewPolicies([]v1alpha1.MigrationPolicy{databases}).Match(map[string]string{"tier": "db"}, nil)
	_, err = policy.Resolve(m, nil)
	if bad, ok := errors.AsType[*policy.PolicyError](err); ok {
		fmt.Printf("%s of policy %s: %s; %s\n", bad.Field, bad.Policy, bad.Problem, bad.Remedy)
	}
	// Output:
	// databases wins true: it names more labels than "everybody" (1 instead of 0)
	// everybody wins false: "databases" names more labels than it (1 instead of 0)
	// web wins false: the VMI has no label tier=web
	// bandwidth 64Mi, 300 s per GiB, post-copy true, disruption true, standstill 900 ms
	// spec.maxDowntimeMs of policy databases: 0 is out of range; use 1 to 2000000 milliseconds, or leave it out
}
