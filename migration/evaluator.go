// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"slices"
	"time"

	"github.com/virtloom/virtloom/handoff"
)

// Finding is what a check found. Its zero value means: nothing in the way.
type Finding struct {
	// Blocked says that the migration must not start.
	Blocked bool
	// Temporary says that waiting may help; otherwise the migration fails.
	Temporary bool
	// Reason is the typed reason.
	Reason Reason
	// Message explains the reason to the owner of the guest.
	Message string
	// Unblock says what would lift the block; empty when nothing does.
	Unblock string
	// Object is whose change would lift it, as kind and name; empty for none.
	Object string
	// Until is when time alone changes the finding: a temporary block is lifted or
	// becomes final then. Zero means never.
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
	// Name tells the check from others.
	Name string
	// Judge is pure and must not keep or change the snapshot.
	Judge func(Snapshot) Finding
}

// Evaluator is an ordered list of checks. The first block that nothing can lift
// decides; otherwise the first temporary one, until the soonest time at which any of
// them changes. Order is policy: put the cause before its consequences.
type Evaluator []Check

// Evaluate runs the checks in order, up to the first block that nothing lifts.
func (e Evaluator) Evaluate(s Snapshot) Finding {
	var wait Finding
	for i := range e {
		f := e[i].find(s)
		if !f.Blocked {
			continue
		}
		if !f.Temporary {
			return f
		}
		wait = wait.and(f, s.Now)
	}
	return wait
}

// and is the first of two temporary blocks, until the sooner of the times at which they change.
func (f Finding) and(o Finding, now time.Time) Finding {
	if !f.Blocked {
		return o
	}
	if o.Until.After(now) && (!f.Until.After(now) || o.Until.Before(f.Until)) {
		f.Until = o.Until
	}
	return f
}

// All runs all checks and returns what each has found, in order.
func (e Evaluator) All(s Snapshot) []Finding {
	out := make([]Finding, 0, len(e))
	for i := range e {
		out = append(out, e[i].find(s))
	}
	return out
}

func (c *Check) find(s Snapshot) Finding {
	f := c.Judge(s)
	f.Check = c.Name
	return f
}

// DefaultChecks returns the stock list. What a stock API server refuses at
// creation fails here, since a cluster may run without KubeVirt's webhooks.
func DefaultChecks() Evaluator {
	return Evaluator{
		{"spec", CheckSpec},
		{"between clusters", CheckDecentralized},
		{"guest", CheckGuest},
		{"migratable", CheckMigratable},
		{"running", CheckRunning},
		{"back-off", CheckBackoff},
		{"backup", CheckBackup},
		{"utility volumes", CheckUtilityVolumes},
		{"plugging", CheckPlugging},
		{"source Pod", CheckSourcePod},
		{"one Pod", CheckOnePod},
		{"state", CheckState},
	}
}

// order is what no configuration can take away: no evacuation of a node that the guest has
// left, one migration of a guest at a time, and none without its options.
var order = Evaluator{{"evacuation", checkEvacuation}, {"order of migrations", checkOrder}, {"policy", CheckPolicy}}

// Checks are all checks of the configuration in order: whether an evacuation still has a
// cause, whose turn it is among the migrations of the guest, whether there are options to go
// by, then those of the Evaluator.
func (c Config) Checks() Evaluator {
	e := c.Evaluator
	if e == nil {
		e = DefaultChecks()
	}
	return append(slices.Clip(order), e...)
}

// CheckSpec demands what KubeVirt's webhook does of the migration itself.
func CheckSpec(s Snapshot) Finding {
	send, receive := s.Migration.Spec.SendTo, s.Migration.Spec.Receive
	if send != nil && receive != nil && send.MigrationID != receive.MigrationID {
		return never(ReasonInvalidSpec, fmt.Sprintf("spec.sendTo.migrationID %q and spec.receive.migrationID %q differ", send.MigrationID, receive.MigrationID),
			"create a migration in which they are the same")
	}
	return Finding{}
}

// CheckGuest demands a guest that exists, lives and stays.
func CheckGuest(s Snapshot) Finding {
	name := s.Migration.Spec.VMIName
	switch vmi := s.VMI; {
	case name == "":
		return never(ReasonGuestNotFound, "spec.vmiName is empty", "create a migration that names a VirtualMachineInstance of this namespace")
	case vmi == nil:
		return never(ReasonGuestNotFound, fmt.Sprintf("VirtualMachineInstance %q does not exist in this namespace", name), "")
	case vmi.IsFinal():
		return never(ReasonGuestFinal, fmt.Sprintf("VirtualMachineInstance %q is in phase %s", name, vmi.Status.Phase), "")
	case vmi.DeletionTimestamp != nil:
		return never(ReasonGuestDeleted, fmt.Sprintf("VirtualMachineInstance %q is being deleted", name), "")
	}
	return Finding{}
}

// CheckRunning waits until the guest runs on a node that owns it. One that is received
// runs elsewhere.
func CheckRunning(s Snapshot) Finding {
	if s.VMI == nil || s.Migration.IsDecentralizedTarget() {
		return Finding{}
	}
	if !s.VMI.IsRunning() {
		return later(ReasonWaitingForGuest, fmt.Sprintf("the guest is in phase %q", s.VMI.Status.Phase), "it must reach phase Running")
	}
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		return later(ReasonLeaseUnreadable, err.Error(), "")
	}
	if lease.State != handoff.Owned || lease.Holder != s.VMI.Status.NodeName {
		return later(ReasonWaitingForGuest,
			fmt.Sprintf("the guest's ownership is in state %q, holder %q, while status.nodeName is %q", lease.State, lease.Holder, s.VMI.Status.NodeName),
			"its node must own it, in no move")
	}
	return Finding{}
}

// CheckSourcePod waits until the Pod of the running guest is known. That of a guest which is
// received is not in this namespace.
func CheckSourcePod(s Snapshot) Finding {
	if s.SourcePod == nil && !s.Migration.IsDecentralizedTarget() {
		return later(ReasonWaitingForSourcePod, "the Pod in which the guest runs is not known", "")
	}
	return Finding{}
}

// CheckOnePod waits until the guest has no other Pod than the one it runs in, so that
// failures never pile Pods up. One that is on its way out is not waited for, since a
// node that is gone may keep it for ever; the guest's lease keeps it from being run twice.
func CheckOnePod(s Snapshot) Finding {
	if s.VMI == nil || s.TargetPod != nil || s.SourcePod == nil {
		return Finding{}
	}
	for _, p := range s.strays(s.Launchers) {
		f := later(ReasonWaitingForPod, fmt.Sprintf("Pod %q of the guest, on node %q, is there beside Pod %q, in which it runs", p.Name, p.Spec.NodeName, s.SourcePod.Name),
			"it must be gone; delete it if nothing else does")
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
