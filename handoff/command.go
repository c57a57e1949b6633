// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// CommandKind is the kind of a command to a node.
type CommandKind string

const (
	// CommandStart: start the VMI's domain. Opened by Accept.
	CommandStart CommandKind = "start"
	// CommandStop: stop the domain. Opened by Stop.
	CommandStop CommandKind = "stop"
	// CommandMigrateIn: prepare for the domain and receive it. Opened by
	// Prepare.
	CommandMigrateIn CommandKind = "migrate-in"
	// CommandMigrateOut: migrate the domain to the target. Opened by Begin.
	CommandMigrateOut CommandKind = "migrate-out"
	// CommandAbort: abort a migration that has begun. Opened by Abort.
	CommandAbort CommandKind = "abort"
	// CommandFinalize: carry out the tasks deferred until the migration ended.
	// Opened by TakeOver.
	CommandFinalize CommandKind = "finalize"
)

// id derives the name of a command: a lease issues each kind at most once under
// an epoch, so that the same command has the same name for every reader.
func (k CommandKind) id(epoch uint64) string { return fmt.Sprintf("%s/%d", k, epoch) }

// Command is an instruction to a node, valid once the lease that holds it is stored.
// It is issued at most once; a node that finds it open after a crash inspects its
// hypervisor before it carries it out.
type Command struct {
	// ID names the command and later its outcome: kind and epoch.
	ID string `json:"id"`
	// Kind is the action to take.
	Kind CommandKind `json:"kind"`
	// Epoch is the epoch under which the command was issued.
	Epoch uint64 `json:"epoch"`
	// Node is the node that carries out the command.
	Node string `json:"node"`
	// Tag is the UID of the migration, for the commands of a migration.
	Tag types.UID `json:"tag,omitempty"`
}

// Command returns the open command of the kind, if there is one.
func (l Lease) Command(k CommandKind) (Command, bool) {
	i := slices.IndexFunc(l.Open, func(c Command) bool { return c.Kind == k })
	if i < 0 {
		return Command{}, false
	}
	return l.Open[i], true
}

// ActWithin is how long a node may act upon a lease after the API server last
// confirmed that the lease is in force. Fencing waits for longer than this
// ([FenceAfter]), so that a node without contact has stopped acting by then,
// although it cannot know that it was fenced.
const ActWithin = time.Minute

// FenceAfter is how long an unresponsive node stays Lost before evidence of its absence
// is accepted: ActWithin, one call to a hypervisor that began just before ActWithin
// ran out (30 s), one minute by which the clocks of two controllers may differ,
// and a reserve as long as the call may take.
const FenceAfter = 3 * time.Minute

// ErrUnconfirmed means that the API server has not confirmed the lease for too long
// for the node to act. The node must read the lease again first.
var ErrUnconfirmed = errors.New("handoff: the lease was not confirmed in time")

// Authorize returns nil if the command may be carried out now. The lease must be the
// one last read from, or written to, the API server itself, by a request that was
// sent at the time confirmed; a cache is no confirmation. The error is ErrFenced
// when the command is not, or no longer, open or must wait, and ErrUnconfirmed when
// confirmed is longer ago than [ActWithin].
func (l Lease) Authorize(c Command, confirmed, now time.Time) error {
	switch {
	case !slices.Contains(l.Open, c):
		return fmt.Errorf("%w: command %s of node %q is not open, the lease is at epoch %d", ErrFenced, c.ID, c.Node, l.Epoch)
	case !l.MayRun(c.Node) && c.Kind != CommandMigrateIn, c.Kind == CommandStart && !l.MayStart(c.Node),
		l.State == Lost && c.Node == l.Holder:
		return fmt.Errorf("%w: command %s of node %q must wait, the lease is in state %q", ErrFenced, c.ID, c.Node, l.State)
	}
	return Confirmed(confirmed, now)
}

// Confirmed returns nil if a lease that was confirmed then may still be acted upon
// now; the error is ErrUnconfirmed. A clock that went back confirms nothing.
func Confirmed(then, now time.Time) error {
	if since := now.Sub(then); since < 0 || since >= ActWithin {
		return fmt.Errorf("%w: last at %s, at most %s ago is needed", ErrUnconfirmed, then.UTC().Format(time.RFC3339), ActWithin)
	}
	return nil
}

// issue opens a command under the lease's epoch, and under its tag, which a lease has
// during a migration only.
func (l *Lease) issue(k CommandKind, node string) {
	l.Open = append(slices.Clip(l.Open), Command{ID: k.id(l.Epoch), Kind: k, Epoch: l.Epoch, Node: node, Tag: l.Tag})
}

// conclude ends the open commands of the kinds, all of them if none is named.
func (l *Lease) conclude(r Result, message string, kinds ...CommandKind) {
	var open []Command
	for _, c := range l.Open {
		if len(kinds) > 0 && !slices.Contains(kinds, c.Kind) {
			open = append(open, c)
			continue
		}
		l.Outcomes = append(slices.Clip(l.Outcomes), Outcome{
			ID: c.ID, Epoch: c.Epoch, Tag: c.Tag, Result: r, Message: shorten(message),
		})
	}
	l.Open = open
	if extra := len(l.Outcomes) - maxOutcomes; extra > 0 {
		l.Outcomes = slices.Clone(l.Outcomes[extra:])
	}
}

// shorten cuts a message at the limit, between characters.
func shorten(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	cut := 0
	for i := range s {
		if i > maxMessage-len("…") {
			break
		}
		cut = i
	}
	return s[:cut] + "…"
}
