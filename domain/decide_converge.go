// SPDX-License-Identifier: Apache-2.0

package domain

import "fmt"

// converge brings a running guest in line with its object, as far as that can
// be done while it runs. What needs a restart or a migration stays as it is;
// nothing about it is changed behind the guest's back.
func (d *decision) converge() error {
	if d.Desired == nil || d.State.Domain == nil {
		return nil
	}
	applied, err := LastApplied(d.State.Metadata)
	if err != nil {
		return err
	}
	if d.plan.Differences, err = Diff(d.Desired, applied, d.State.Domain); err != nil {
		return fmt.Errorf("domain: compare %s: %w", d.State.Name, err)
	}
	for _, diff := range d.plan.Differences {
		if diff.Class == Live && diff.Operation != nil {
			d.do(Task{Verb: TaskApply, Operation: *diff.Operation, Why: diff.String()})
		}
	}
	return nil
}
