// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"strings"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// static are the reasons to fail that a retry does not change.
var static = map[migration.Reason]bool{migration.ReasonNotMigratable: true, migration.ReasonUnsupported: true, migration.ReasonRender: true, migration.ReasonNoNode: true}

// unsettled holds a VMI back while the cache does not show this controller's writes about it.
func (g Candidate) unsettled() *Standing {
	if g.Pending == "" {
		return nil
	}
	return g.leave(reasonCacheBehind, "waiting for the cache to observe this controller's write: "+g.Pending)
}

// ended holds back VMIs that have ended or are being deleted.
func (g Candidate) ended() *Standing {
	switch vmi := g.VMI; {
	case vmi.IsFinal():
		return g.leave(migration.ReasonGuestFinal, fmt.Sprintf("the VMI is in phase %s", vmi.Status.Phase))
	case vmi.DeletionTimestamp != nil:
		return g.leave(migration.ReasonGuestDeleted, "the VMI is being deleted")
	}
	return nil
}

// busy holds back VMIs that are being migrated, or will be.
func (g Candidate) busy() *Standing {
	if m := g.unfinished(); m != nil {
		s := g.leave(reasonMigrationExists, fmt.Sprintf("migration %q of the VMI is not finished", m.Name))
		s.Migration = m
		return s
	}
	if onTheWay(g.VMI) {
		return g.leave(migration.ReasonMoving, "the VMI is being migrated")
	}
	return nil
}

// crowded holds back VMIs with more than one active Pod: a migration was not cleaned up yet.
func (g Candidate) crowded() *Standing {
	if names := g.activePods(); len(names) > 1 {
		return g.leave(ReasonActivePods, "the VMI has more than one active Pod: "+strings.Join(names, ", "))
	}
	return nil
}

// behind holds back a VMI that is older than the end of its last migration: it still names the node
// that it has left. Something else may have cleared its status, so this is bounded.
func (g Candidate) behind(now time.Time) *Standing {
	last := g.newest(succeeded)
	if last == nil || last.Status.MigrationState == nil || last.Status.MigrationState.SourceNode != g.VMI.Status.NodeName {
		return nil
	}
	if ms := g.VMI.Status.MigrationState; ms != nil {
		if ms.MigrationUID == last.UID && ms.Completed {
			return nil
		}
		later := func(m *v1.VirtualMachineInstanceMigration) bool {
			return m.UID == ms.MigrationUID && migration.CompareCreated(last, m) < 0
		}
		if g.newest(later) != nil {
			return nil
		}
	}
	until := endOf(last).Add(behindFor)
	if !now.Before(until) {
		return nil
	}
	return g.leave(reasonCacheBehind, fmt.Sprintf("waiting to observe that the VMI has left node %s with migration %q",
		g.VMI.Status.NodeName, last.Name)).until(until)
}

// cooling holds back a VMI that an automatic migration has just migrated. after is when the request
// for another one arose; a request after the end of the last migration is new and not held back. It
// is zero where the request is not the VMI owner's.
func (g Candidate) cooling(c migration.Config, after, now time.Time) *Standing {
	last := g.newest(func(m *v1.VirtualMachineInstanceMigration) bool { return succeeded(m) && migration.Automatic(m) })
	if last == nil || c.Cooldown <= 0 {
		return nil
	}
	end := endOf(last)
	until := end.Add(c.Cooldown)
	if !now.Before(until) || after.After(end) {
		return nil
	}
	return g.leave(ReasonCooldown, fmt.Sprintf("the VMI was migrated by migration %q; cooldown until %s",
		last.Name, until.UTC().Format(time.RFC3339))).until(until)
}

// hopeless holds back a VMI whose last automatic migration failed for a lasting reason, until
// something changes.
func (g Candidate) hopeless(fleet string, now time.Time) *Standing {
	last := g.newest(func(m *v1.VirtualMachineInstanceMigration) bool { return m.IsFinal() && migration.Automatic(m) })
	if last == nil || succeeded(last) {
		return nil
	}
	c := migration.Condition(last.Status, migration.ConditionFailed)
	if c == nil || !static[migration.Reason(c.Reason)] {
		return nil
	}
	until := endOf(last).Add(staticRetry)
	if !now.Before(until) || last.Annotations[circumstancesAnnotation] != circumstances(g.VMI, fleet) {
		return nil
	}
	return g.leave(ReasonUnchanged, fmt.Sprintf("migration %q failed, %s: %s; neither the VMI nor the nodes have changed since",
		last.Name, c.Reason, c.Message)).until(until)
}

// firstStanding returns the first answer that is not nil.
func firstStanding(checks ...func() *Standing) *Standing {
	for _, check := range checks {
		if s := check(); s != nil {
			return s
		}
	}
	return nil
}
