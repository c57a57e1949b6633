// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"slices"
	"time"

	"github.com/virtloom/virtloom/handoff"
)

// Finding is the result of a check. Its zero value means that nothing blocks.
type Finding struct {
	// Blocked says that the migration must not start.
	Blocked bool
	// Temporary says that waiting may help; otherwise the migration fails.
	Temporary bool
	// Reason is the typed reason.
	Reason Reason
	// Message explains the reason to the owner of the VMI.
	Message string
	// Unblock says what would lift the block; empty when nothing does.
	Unblock string
	// Object is the object whose change would lift the block, as kind and name; empty for none.
	Object string
	// Until is when time alone changes the finding: a temporary block is then lifted or
	// becomes final. Zero means never.
	Until time.Time
	// Check is the name of the check; [Evaluator] fills it in.
	Check string
}

// Text joins message and remedy.
func (f Finding) Text() string {
	if f.Unblock == "" {
		return f.Message
	}
	return f.Message + " (" + f.Unblock + ")"
}

// Check judges one aspect of a migration that has not been handed off.
type Check struct {
	// Name identifies the check.
	Name string
	// Judge is pure and must not keep or change the snapshot.
	Judge func(s Snapshot, now time.Time) Finding
}

// Evaluator is an ordered list of checks. The first permanent block decides; otherwise the
// first temporary one, until the soonest time at which any of them changes. The order is
// policy: put causes before their consequences.
type Evaluator []Check

// Evaluate runs the checks in order, up to the first permanent block.
func (e Evaluator) Evaluate(s Snapshot, now time.Time) Finding {
	var wait Finding
	for i := range e {
		f := e[i].find(s, now)
		if !f.Blocked {
			continue
		}
		if !f.Temporary {
			return f
		}
		wait = wait.and(f, now)
	}
	return wait
}

// and returns the first of two temporary blocks, until the sooner of their times.
func (f Finding) and(o Finding, now time.Time) Finding {
	if !f.Blocked {
		return o
	}
	if o.Until.After(now) && (!f.Until.After(now) || o.Until.Before(f.Until)) {
		f.Until = o.Until
	}
	return f
}

// All runs all checks and returns their findings, in order.
func (e Evaluator) All(s Snapshot, now time.Time) []Finding {
	out := make([]Finding, 0, len(e))
	for i := range e {
		out = append(out, e[i].find(s, now))
	}
	return out
}

func (c *Check) find(s Snapshot, now time.Time) Finding {
	f := c.Judge(s, now)
	f.Check = c.Name
	return f
}

// DefaultChecks returns the default list. It repeats what a stock API server refuses at
// creation, since a cluster may run without KubeVirt's webhooks.
func DefaultChecks() Evaluator {
	return Evaluator{
		{"spec", checkSpec},
		{"between clusters", checkDecentralized},
		{"guest", checkGuest},
		{"migratable", checkMigratable},
		{"running", checkRunning},
		{"back-off", checkBackoff},
		{"backup", checkBackup},
		{"utility volumes", checkUtilityVolumes},
		{"plugging", checkPlugging},
		{"source Pod", checkSourcePod},
		{"one Pod", checkOnePod},
		{"state", checkState},
	}
}

// order holds the checks that no configuration can remove: no evacuation of a node that the VMI
// has left, one migration of a VMI at a time, and none without its options.
var order = Evaluator{{"evacuation", checkEvacuation}, {"order of migrations", checkOrder}, {"policy", checkPolicy}}

// Checks returns all checks of the configuration in order: whether an evacuation still has a
// cause, the order of the VMI's migrations, the migration options, then those of the
// Evaluator.
func (c Config) Checks() Evaluator {
	e := c.Evaluator
	if e == nil {
		e = DefaultChecks()
	}
	return append(slices.Clip(order), e...)
}

// checkSpec repeats KubeVirt's webhook validation of the migration itself.
func checkSpec(s Snapshot, _ time.Time) Finding {
	send, receive := s.Migration.Spec.SendTo, s.Migration.Spec.Receive
	if send != nil && receive != nil && send.MigrationID != receive.MigrationID {
		return never(reasonInvalidSpec, fmt.Sprintf("spec.receive.migrationID: Invalid value: %q: must equal spec.sendTo.migrationID %q", receive.MigrationID, send.MigrationID),
			"create a migration with equal IDs")
	}
	return Finding{}
}

// checkGuest requires a VMI that exists, has not ended and is not being deleted.
func checkGuest(s Snapshot, _ time.Time) Finding {
	name := s.Migration.Spec.VMIName
	switch vmi := s.VMI; {
	case name == "":
		return never(ReasonGuestNotFound, "spec.vmiName: Required value", "create a migration that names a VirtualMachineInstance of this namespace")
	case vmi == nil:
		return never(ReasonGuestNotFound, fmt.Sprintf("VirtualMachineInstance %q does not exist in this namespace", name), "")
	case vmi.IsFinal():
		return never(ReasonGuestFinal, fmt.Sprintf("VirtualMachineInstance %q is in phase %s", name, vmi.Status.Phase), "")
	case vmi.DeletionTimestamp != nil:
		return never(ReasonGuestDeleted, fmt.Sprintf("VirtualMachineInstance %q is being deleted", name), "")
	}
	return Finding{}
}

// checkRunning waits until the VMI runs on a node that owns it. A VMI that is received
// runs elsewhere.
func checkRunning(s Snapshot, _ time.Time) Finding {
	if s.VMI == nil || s.Migration.IsDecentralizedTarget() {
		return Finding{}
	}
	if !s.VMI.IsRunning() {
		return later(ReasonWaitingForGuest, fmt.Sprintf("the VMI is in phase %q", s.VMI.Status.Phase), "it must reach phase Running")
	}
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		return later(ReasonLeaseUnreadable, err.Error(), "")
	}
	if lease.State != handoff.Owned || lease.Holder != s.VMI.Status.NodeName {
		return later(ReasonWaitingForGuest,
			fmt.Sprintf("the VMI's lease is in state %q, holder %q, while status.nodeName is %q", lease.State, lease.Holder, s.VMI.Status.NodeName),
			"its node must own it, with no migration under way")
	}
	return Finding{}
}

// checkSourcePod waits until the Pod of the running VMI is known. The source Pod of a
// received VMI is not in this namespace.
func checkSourcePod(s Snapshot, _ time.Time) Finding {
	if s.SourcePod == nil && !s.Migration.IsDecentralizedTarget() {
		return later(ReasonWaitingForSourcePod, "the Pod in which the VMI runs is unknown", "")
	}
	return Finding{}
}

// checkOnePod waits until the VMI has no Pod other than the one it runs in, so that failures
// never accumulate Pods. A Pod that is being deleted does not block, since a lost node may
// keep it forever; the VMI's lease prevents that it runs twice.
func checkOnePod(s Snapshot, _ time.Time) Finding {
	if s.VMI == nil || s.TargetPod != nil || s.SourcePod == nil {
		return Finding{}
	}
	for _, p := range s.strays(s.Launchers) {
		f := later(ReasonWaitingForPod, fmt.Sprintf("the VMI has another Pod %q on node %q beside Pod %q, in which it runs", p.Name, p.Spec.NodeName, s.SourcePod.Name),
			"it must be deleted; delete it if no controller does")
		f.Object = "Pod " + p.Name
		return f
	}
	return Finding{}
}

func never(r Reason, message, unblock string) Finding {
	return Finding{Blocked: true, Reason: r, Message: message, Unblock: unblock}
}

func later(r Reason, message, unblock string) Finding {
	return Finding{Blocked: true, Temporary: true, Reason: r, Message: message, Unblock: unblock}
}
