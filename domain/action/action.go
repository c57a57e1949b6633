// SPDX-License-Identifier: Apache-2.0

package action

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/handoff"
)

// Verb is the kind of an [Action].
type Verb string

// The verbs of an Action.
const (
	// Apply applies Operation at the hypervisor.
	Apply Verb = "Apply"
	// Migrate starts the migration Request, with the URIs of the [transport.Route] for Tunnel
	// and To.
	Migrate Verb = "Migrate"
	// Abort cancels a running migration.
	Abort Verb = "AbortMigration"
	// Cleanup removes the VMI's files on this node.
	Cleanup Verb = "Cleanup"
	// Freeze freezes the guest's file systems through the guest agent; see
	// [domain.GuestAgent].
	Freeze Verb = "Freeze"
	// Thaw thaws them.
	Thaw Verb = "Thaw"
	// Prepare prepares the files, networks and devices of a VMI on this node, and derives
	// its domain from them.
	Prepare Verb = "Prepare"
	// Listen opens Tunnel for a VMI that migrates to this node; see [transport.Transport].
	Listen Verb = "Listen"
	// SyncTime sets the guest's clock to the present through the guest agent. A
	// failure is ignored; see [Action.Optional].
	SyncTime Verb = "SyncTime"
)

// Action is one effect on the node: data, so that it can be logged and compared.
type Action struct {
	// Verb is the kind of the action; it decides which of the fields below apply.
	Verb Verb
	// Operation is for Apply.
	Operation domain.Operation
	// Request, Tunnel and To are for Migrate: the migration and its two ends. Tunnel is
	// for Listen as well.
	Request domain.MigrationRequest
	Tunnel  transport.Tunnel
	To      transport.Endpoint
	// UID is the UID of the VMI whose files Cleanup removes, or Prepare prepares.
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

// TouchesDomain reports whether the action changes the domain, or takes away what it may use: all
// do, except one that sets the domain's metadata and those that prepare the node. Such an action
// may be started only after a recent read from the API server itself ([handoff.Confirmed]).
func (a Action) TouchesDomain() bool {
	switch a.Verb {
	case Prepare, Listen:
		return false
	}
	return a.Verb != Apply || a.Operation.Verb != domain.SetMetadata
}

// Independent reports whether later actions may run although this one failed: the hotplug
// of one device does not depend on that of another.
func (a Action) Independent() bool {
	if a.Verb != Apply || a.Needed {
		return false
	}
	switch a.Operation.Verb {
	case domain.AttachDevice, domain.DetachDevice, domain.UpdateDevice, domain.SetVCPUs:
		return true
	}
	return false
}

// Optional reports whether a failure of the action is neither retried nor reported.
func (a Action) Optional() bool { return a.Verb == SyncTime }

// String prints the action on one line.
func (a Action) String() string {
	if a.Verb == Apply {
		return fmt.Sprintf("%s (%s)", a.Operation, a.Why)
	}
	return fmt.Sprintf("%s (%s)", a.Verb, a.Why)
}

// Key returns a string that is the same for each attempt of an action: its verbs, the device
// or UID that it is about, and the epoch of its command.
func (a Action) Key() string {
	return fmt.Sprintf("%s %s %q %s %d", a.Verb, a.Operation.Verb, a.Operation.DeviceAlias(), a.UID, a.Command.Epoch)
}
