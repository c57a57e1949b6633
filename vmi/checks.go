// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
)

// check is one condition that must hold before the guest's Pod is created.
type check struct {
	name string
	run  func(Snapshot) (reason, message string, blocked bool)
}

// checks are made in this order; the order is policy.
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
		reason, message, blocked := c.run(s)
		out = append(out, Check{Name: c.name, Blocked: blocked, Reason: reason, Message: message})
		if blocked {
			break
		}
	}
	return out
}

// claimsExist requires the claim of every volume that is not plugged later.
func claimsExist(s Snapshot) (string, string, bool) {
	for i := range s.VMI.Spec.Volumes {
		v := &s.VMI.Spec.Volumes[i]
		claim, field := ClaimName(v)
		if claim == "" || s.Claims[claim] != nil {
			continue
		}
		return ReasonPvcNotFound, fmt.Sprintf("spec.volumes[%d].%s: PersistentVolumeClaim %s/%s does not exist; create it or correct the name",
			i, field, s.VMI.Namespace, claim), true
	}
	return "", "", false
}

// ClaimName returns the claim a volume needs before the guest's Pod can exist
// and the field that names it; both are empty when it needs none.
func ClaimName(v *v1.Volume) (claim, field string) {
	switch {
	case v.PersistentVolumeClaim != nil && !v.PersistentVolumeClaim.Hotpluggable:
		return v.PersistentVolumeClaim.ClaimName, "persistentVolumeClaim.claimName"
	case v.DataVolume != nil && !v.DataVolume.Hotpluggable:
		return v.DataVolume.Name, "dataVolume.name"
	case v.Ephemeral != nil && v.Ephemeral.PersistentVolumeClaim != nil:
		return v.Ephemeral.PersistentVolumeClaim.ClaimName, "ephemeral.persistentVolumeClaim.claimName"
	default:
		return "", ""
	}
}

// nameFree requires that no other Pod has the name of the guest's.
func nameFree(s Snapshot) (string, string, bool) {
	if s.Foreign == nil {
		return "", "", false
	}
	return ReasonFailedCreate, fmt.Sprintf("Pod %s/%s has the name of the guest's Pod and belongs to something else; delete it",
		s.Foreign.Namespace, s.Foreign.Name), true
}

// nowhereElse refuses a Pod while one that a migration made for the guest is there.
// An object that was replaced as a whole has forgotten that it ran.
func nowhereElse(s Snapshot) (string, string, bool) {
	for _, p := range s.Pods {
		if p.Labels[v1.MigrationJobLabel] != "" && !PodDown(p) {
			return ReasonFailedCreate, fmt.Sprintf("Pod %s/%s, made for a migration, may have the guest; delete it if it does not",
				p.Namespace, p.Name), true
		}
	}
	return "", "", false
}

// noMigration refuses a Pod while a migration of the VMI is under way.
func noMigration(s Snapshot) (string, string, bool) {
	for _, m := range s.Migrations {
		switch m.Status.Phase {
		case v1.MigrationPhaseUnset, v1.MigrationPending, v1.MigrationSucceeded, v1.MigrationFailed,
			v1.MigrationWaitingForSync, v1.MigrationSynchronizing:
			continue
		}
		return ReasonFailedCreate, fmt.Sprintf("migration %s is in phase %s; waiting for it to end", m.Name, m.Status.Phase), true
	}
	return "", "", false
}
