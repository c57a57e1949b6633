// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
)

// check is one condition that must hold before the guest's Pod is created. It
// returns what is to be waited for, nil if it holds.
type check struct {
	name string
	run  func(Snapshot) *Wait
}

// checks are made in this order; the order is policy. What a user has to mend comes
// before what only takes its time.
var checks = []check{
	// A claim that does not exist would leave the Pod unschedulable for ever.
	{"claims", claimsExist},
	// Names are intents: with the name taken there is no Pod to be had.
	{"name", nameFree},
	// A Pod that a migration made may have the guest, also when the object has
	// lost all that was written about it.
	{"elsewhere", nowhereElse},
	// A guest that is on its way to another node gets no Pod from us.
	{"migration", noMigration},
}

func evaluate(s Snapshot) []Check {
	out := make([]Check, 0, len(checks))
	for _, c := range checks {
		w := c.run(s)
		out = append(out, Check{Name: c.name, Wait: w})
		if w != nil {
			break
		}
	}
	return out
}

// nameFree requires that no other Pod has the name of the guest's.
func nameFree(s Snapshot) *Wait {
	if s.Foreign == nil {
		return nil
	}
	object := podObject(s.Foreign)
	return &Wait{
		Reason:  ReasonFailedCreate,
		Message: object + " has the name of the guest's Pod and belongs to something else; delete it",
		Object:  object, Until: "that Pod is gone", By: ByUser,
	}
}

// nowhereElse refuses a Pod while one that a migration made for the guest is there.
// An object that was replaced as a whole has forgotten that it ran.
func nowhereElse(s Snapshot) *Wait {
	for _, p := range s.Pods {
		if p.Labels[v1.MigrationJobLabel] != "" && !PodDown(p) {
			object := podObject(p)
			return &Wait{
				Reason:  ReasonFailedCreate,
				Message: object + ", made for a migration, may have the guest; delete it if it does not",
				Object:  object, Until: "that Pod has ended", By: ByUser,
			}
		}
	}
	return nil
}

// noMigration refuses a Pod while a migration of the VMI is under way.
func noMigration(s Snapshot) *Wait {
	for _, m := range s.Migrations {
		switch m.Status.Phase {
		case v1.MigrationPhaseUnset, v1.MigrationPending, v1.MigrationSucceeded, v1.MigrationFailed,
			v1.MigrationWaitingForSync, v1.MigrationSynchronizing:
			continue
		case v1.MigrationScheduling:
			if m.Spec.SendTo != nil { // it prepares what another cluster receives
				continue
			}
		}
		return &Wait{
			Reason:  ReasonFailedCreate,
			Message: fmt.Sprintf("migration %s is in phase %s; waiting for it to end", m.Name, m.Status.Phase),
			Object:  fmt.Sprintf("VirtualMachineInstanceMigration %s/%s", s.VMI.Namespace, m.Name),
			Until:   "the migration has ended", By: ByController,
		}
	}
	return nil
}
