// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/handoff"
)

// ActionVerb is the kind of an [Action].
type ActionVerb string

// The verbs of an Action.
const (
	// ActionApply applies Operation at the hypervisor.
	ActionApply ActionVerb = "Apply"
	// ActionMigrate starts the migration Request, with the URIs of the [Route] for Passage
	// and To.
	ActionMigrate ActionVerb = "Migrate"
	// ActionAbort cancels a running migration.
	ActionAbort ActionVerb = "AbortMigration"
	// ActionCleanup removes the VMI's files on this node.
	ActionCleanup ActionVerb = "Cleanup"
	// ActionFreeze freezes the guest's file systems through the guest agent; see
	// [GuestAgent].
	ActionFreeze ActionVerb = "Freeze"
	// ActionThaw thaws them.
	ActionThaw ActionVerb = "Thaw"
	// ActionPrepare prepares the files, networks and devices of a VMI on this node, and derives
	// its domain from them.
	ActionPrepare ActionVerb = "Prepare"
	// ActionListen opens Passage for a VMI that migrates to this node; see [Transport].
	ActionListen ActionVerb = "Listen"
	// ActionSyncTime sets the guest's clock to the present through the guest agent. A
	// failure is ignored; see [Action.Optional].
	ActionSyncTime ActionVerb = "SyncTime"
)

// Action is one effect on the node: data, so that it can be logged and compared.
type Action struct {
	// Verb is the kind of the action; it decides which of the fields below apply.
	Verb ActionVerb
	// Operation is for ActionApply.
	Operation Operation
	// Request, Passage and To are for ActionMigrate: the migration and its two ends. Passage is
	// for ActionListen as well.
	Request MigrationRequest
	Passage Passage
	To      Listening
	// UID is the UID of the VMI whose files ActionCleanup removes, or ActionPrepare prepares.
	UID types.UID
	// Command is the lease's command that the action carries out; the zero value if it
	// carries out none. Every action that starts or migrates a VMI has one, and may be
	// started only while [handoff.Lease.Authorize] allows it.
	Command handoff.Command
	// Needed says that later actions must not run if this one fails, whatever it does.
	Needed bool
	// Why is the reason in a few words, for logs and events.
	Why string
}

// TouchesGuest reports whether the action changes the domain, or takes away what it may use: all
// do, except one that sets the domain's metadata and those that prepare the node. Such an action
// may be started only after a recent read from the API server itself ([handoff.Confirmed]).
func (t Action) TouchesGuest() bool {
	switch t.Verb {
	case ActionPrepare, ActionListen:
		return false
	}
	return t.Verb != ActionApply || t.Operation.Verb != SetMetadata
}

// Independent reports whether later actions may run although this one failed: the hotplug
// of one device does not depend on that of another.
func (t Action) Independent() bool {
	if t.Verb != ActionApply || t.Needed {
		return false
	}
	switch t.Operation.Verb {
	case AttachDevice, DetachDevice, UpdateDevice, SetVCPUs:
		return true
	}
	return false
}

// Optional reports whether a failure of the action is neither retried nor reported.
func (t Action) Optional() bool { return t.Verb == ActionSyncTime }

// String prints the action on one line.
func (t Action) String() string {
	if t.Verb == ActionApply {
		return fmt.Sprintf("%s (%s)", t.Operation, t.Why)
	}
	return fmt.Sprintf("%s (%s)", t.Verb, t.Why)
}

// Key returns a string that is the same for each attempt of an action: its verbs, the device
// or UID that it is about, and the epoch of its command.
func (t Action) Key() string {
	return fmt.Sprintf("%s %s %q %s %d", t.Verb, t.Operation.Verb, t.Operation.DeviceAlias(), t.UID, t.Command.Epoch)
}
