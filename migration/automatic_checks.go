// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"strings"
	"time"

	v1 "kubevirt.io/api/core/v1"
)

// static are the reasons to fail that trying again does not change.
var static = map[Reason]bool{ReasonNotMigratable: true, ReasonUnsupported: true, ReasonRender: true, ReasonNoNode: true}

// unsettled holds a guest back while the caches do not show what was done to it.
func (g Guest) unsettled() *Standing {
	if g.Unsettled == "" {
		return nil
	}
	return g.leave(ReasonCacheBehind, "the cache does not show yet: "+g.Unsettled)
}

// ended holds back guests that are over or about to be.
func (g Guest) ended() *Standing {
	switch vmi := g.VMI; {
	case vmi.IsFinal():
		return g.leave(ReasonGuestFinal, fmt.Sprintf("the guest is in phase %s", vmi.Status.Phase))
	case vmi.DeletionTimestamp != nil:
		return g.leave(ReasonGuestDeleted, "the guest is being deleted")
	}
	return nil
}

// busy holds back guests that are being migrated, or will be.
func (g Guest) busy() *Standing {
	if m := g.unfinished(); m != nil {
		s := g.leave(ReasonMigrationExists, fmt.Sprintf("migration %q of the guest is not finished", m.Name))
		s.Migration = m
		return s
	}
	if onTheWay(g.VMI) {
		return g.leave(ReasonMoving, "the guest is being moved")
	}
	return nil
}

// crowded holds back guests with more than one living Pod: a move has not been tidied up after.
func (g Guest) crowded() *Standing {
	if names := g.activePods(); len(names) > 1 {
		return g.leave(ReasonActivePods, "of the guest's Pods only one may be alive before it is migrated: "+strings.Join(names, ", "))
	}
	return nil
}

// behind holds back a guest whose object is older than the end of its last migration: it is on the
// node that it has left. The object may be somebody's who has cleared it, so this does not last.
func (g Guest) behind(now time.Time) *Standing {
	last := g.newest(succeeded)
	if last == nil || last.Status.MigrationState == nil || last.Status.MigrationState.SourceNode != g.VMI.Status.NodeName {
		return nil
	}
	if ms := g.VMI.Status.MigrationState; ms != nil {
		if ms.MigrationUID == last.UID && ms.Completed {
			return nil
		}
		later := func(m *v1.VirtualMachineInstanceMigration) bool {
			return m.UID == ms.MigrationUID && created(last, m) < 0
		}
		if g.newest(later) != nil {
			return nil
		}
	}
	until := endOf(last).Add(behindFor)
	if !now.Before(until) {
		return nil
	}
	return g.leave(ReasonCacheBehind, fmt.Sprintf("the guest is not yet seen to have left node %s by migration %q",
		g.VMI.Status.NodeName, last.Name)).until(until)
}

// cooling holds back a guest that an automatic migration has just moved. after is when the wish for
// another one came up; one that came after the last migration ended is a new one and not held back. It
// is zero where the wish is not that of the guest's owner.
func (g Guest) cooling(c Config, after, now time.Time) *Standing {
	last := g.newest(func(m *v1.VirtualMachineInstanceMigration) bool { return succeeded(m) && automatic(m) })
	if last == nil || c.Cooldown <= 0 {
		return nil
	}
	end := endOf(last)
	until := end.Add(c.Cooldown)
	if !now.Before(until) || after.After(end) {
		return nil
	}
	return g.leave(ReasonCooldown, fmt.Sprintf("the guest was moved by migration %q, and rests until %s",
		last.Name, until.UTC().Format(time.RFC3339))).until(until)
}

// hopeless holds back a guest whose last automatic migration failed for a lasting reason, until
// something changes.
func (g Guest) hopeless(fleet string, now time.Time) *Standing {
	last := g.newest(func(m *v1.VirtualMachineInstanceMigration) bool { return m.IsFinal() && automatic(m) })
	if last == nil || succeeded(last) {
		return nil
	}
	c := Condition(last.Status, ConditionFailed)
	if c == nil || !static[Reason(c.Reason)] {
		return nil
	}
	until := endOf(last).Add(staticRetry)
	if !now.Before(until) || last.Annotations[CircumstancesAnnotation] != Circumstances(g.VMI, fleet) {
		return nil
	}
	return g.leave(ReasonUnchanged, fmt.Sprintf("migration %q failed, %s: %s; neither the guest nor the nodes have changed since",
		last.Name, c.Reason, c.Message)).until(until)
}

// first returns the first answer that is one.
func first(checks ...func() *Standing) *Standing {
	for _, check := range checks {
		if s := check(); s != nil {
			return s
		}
	}
	return nil
}
