// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/handoff"
)

// decision is the working state of one [Decide].
type decision struct {
	Snapshot
	now time.Time
	// lease is the lease in the object, next the lease to store.
	lease, next handoff.Lease
	// unmarked says that the domain has lost its metadata, including its epoch.
	unmarked bool
	// meta is the metadata of the domain, with the changes of this plan.
	meta domain.Metadata
	plan Plan
}

// Decide returns what this node has to do for the VMI. It is deterministic and changes none of
// its arguments. The error is that of a lease that cannot be parsed, or of a step that the
// handoff protocol rejects; the caller must then do nothing.
func Decide(s Snapshot, now time.Time) (Plan, error) {
	d := newDecision(s, now)
	if err := d.decide(); err != nil {
		return Plan{}, err
	}
	d.reflectProgress()
	stray{d}.cleanupOrphans()
	return d.plan, nil
}

func newDecision(s Snapshot, now time.Time) *decision {
	d := &decision{Snapshot: s, now: now}
	d.recognize()
	if d.State != nil {
		d.meta = d.State.Metadata.Clone()
	}
	return d
}

func (d *decision) decide() error {
	if d.VMI == nil {
		stray{d}.orphan("the VirtualMachineInstance does not exist")
		return nil
	}
	d.plan.VMI = d.VMI.DeepCopy()
	earlier := d.State != nil && d.State.Metadata.UID != d.VMI.UID
	if earlier && d.SilentSince.IsZero() {
		stray{d}.orphan("the domain belongs to an earlier object of this name")
		return stray{d}.earlier()
	}
	lease, err := handoff.Of(d.VMI)
	if err != nil {
		return err
	}
	d.lease, d.next = lease, lease
	d.plan.Role = handoff.RoleOf(lease, d.Node)
	if earlier {
		// The earlier domain may have ended since, and this VMI's own may have its name now.
		d.requeueAfter(prepareRetry)
		return nil
	}
	return d.byRole()
}

// recognize accepts a domain with the VMI's name only if it belongs to a VMI: a foreign one
// is left alone and becomes the PrepareError. One that has lost its metadata is recognized by
// its UUID.
func (d *decision) recognize() {
	if d.State == nil {
		return
	}
	if m := d.State.Metadata; d.State.Ours() && domain.Name(m.Namespace, m.Name) == d.State.Name {
		return
	}
	if uid, ours := d.byUUID(); ours {
		known := *d.State
		known.Metadata.Namespace, known.Metadata.Name, _ = strings.Cut(known.Name, "_")
		known.Metadata.UID = uid
		d.State, d.unmarked = &known, true
		return
	}
	if d.VMI != nil {
		d.PrepareError = &convert.Error{
			Object: "VirtualMachineInstance " + d.VMI.Namespace + "/" + d.VMI.Name,
			Reason: fmt.Sprintf("node %s has a domain %s that does not belong to this VMI", d.Node, d.State.Name),
			Remedy: "undefine that domain, or rename it",
		}
	}
	d.State = nil
}

// byUUID returns the UID of the VMI to which a domain without metadata belongs: the present
// one, or one that has files here.
func (d *decision) byUUID() (types.UID, bool) {
	if d.VMI != nil && strings.EqualFold(d.State.UUID, convert.UUID(d.VMI)) {
		return d.VMI.UID, true
	}
	for _, uid := range d.OrphanedUIDs {
		if strings.EqualFold(d.State.UUID, string(uid)) {
			return uid, true
		}
	}
	return "", false
}

func (d *decision) byRole() error {
	if !d.SilentSince.IsZero() && d.plan.Role != handoff.RoleNone {
		return ending{d}.silent()
	}
	if a := (absence{d}); a.unseen() {
		return a.awaitEvidence()
	}
	switch d.plan.Role {
	case handoff.RoleOffered:
		return offer{d}.decide()
	case handoff.RoleHolder:
		return holder{d}.decide()
	case handoff.RoleTarget:
		return target{d}.decide()
	default:
		stray{d}.foreign()
		return nil
	}
}

// begun reports whether the domain here was defined under that epoch, or a later one: then a
// start of that epoch has been attempted. A domain without metadata may have been.
func (d *decision) begun(epoch uint64) bool {
	return d.State != nil && (d.unmarked || d.State.Metadata.Epoch >= epoch)
}

// clear removes the domain and the files of the VMI from this node. A crashed domain may still
// have a process (libvirt: on_crash preserve).
func (d *decision) clear(why string) {
	switch {
	case d.State != nil:
		if d.State.Alive() || d.State.Status == domain.StatusCrashed {
			d.apply(domain.Destroy, why)
		}
		d.apply(domain.Undefine, why)
		d.cleanup(d.State.Metadata.UID, why)
	case d.VMI != nil:
		d.do(action.Action{Verb: action.Cleanup, UID: d.VMI.UID, Why: why})
	}
}

// cleanup removes the files of a VMI with this name. The UID in a domain's metadata may be
// forged by its launcher: it gives no access to the files of another VMI.
func (d *decision) cleanup(uid types.UID, why string) {
	if d.VMI != nil && d.VMI.UID == uid || slices.Contains(d.OrphanedUIDs, uid) {
		d.do(action.Action{Verb: action.Cleanup, UID: uid, Why: why})
	}
}

// remember changes the domain's metadata, before the actions after it.
func (d *decision) remember(why string, change func(*domain.Metadata)) {
	change(&d.meta)
	if d.VMI != nil && d.meta.UID == d.VMI.UID {
		d.meta.Namespace, d.meta.Name, d.meta.Epoch = d.VMI.Namespace, d.VMI.Name, d.next.Epoch
	}
	op := domain.Operation{Verb: domain.SetMetadata, Domain: d.State.Name, Metadata: d.meta.Clone()}
	if n := len(d.plan.Actions); n > 0 && d.plan.Actions[n-1].Operation.Verb == domain.SetMetadata {
		last := &d.plan.Actions[n-1]
		last.Operation, last.Why = op, last.Why+"; "+why
		return
	}
	d.do(action.Action{Verb: action.Apply, Operation: op, Why: why})
}

// step applies an event of this node to the lease, under the epoch in the object or, after an
// earlier step of this plan, under the new one.
func (d *decision) step(e handoff.Event) error {
	e.Epoch, e.Node = d.next.Epoch, d.Node
	next, _, err := handoff.Step(d.next, e, d.now)
	if err != nil {
		return fmt.Errorf("plan: %s/%s: %w", d.VMI.Namespace, d.VMI.Name, err)
	}
	d.next = next
	return handoff.Put(d.plan.VMI, next)
}

func (d *decision) apply(v domain.Verb, why string) {
	d.do(action.Action{Verb: action.Apply, Operation: domain.Operation{Verb: v, Domain: d.State.Name}, Why: why})
}

// emit adds an event about the object, if there is one.
func (d *decision) emit(warning bool, reason, message string) {
	if d.VMI != nil {
		d.plan.Events = append(d.plan.Events, Event{Warning: warning, Reason: reason, Message: message})
	}
}

func (d *decision) do(t action.Action) { d.plan.Actions = append(d.plan.Actions, t) }

// requeueAfter sets RequeueAt, unless it is earlier already.
func (d *decision) requeueAfter(after time.Duration) {
	at := d.now.Add(after)
	if d.plan.RequeueAt == nil || at.Before(*d.plan.RequeueAt) {
		d.plan.RequeueAt = &at
	}
}

// frozen reports whether the guest's file systems are known to be frozen.
func (d *decision) frozen() bool {
	return d.meta.ThawAt != nil || d.Guest != nil && d.Guest.Frozen
}

// grace returns the grace period: that of the spec, else that of the start.
func (d *decision) grace() time.Duration {
	if s := d.VMI.Spec.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	if d.meta.GracePeriod != nil {
		return *d.meta.GracePeriod
	}
	return DefaultGrace
}

// hopeless reports whether a start on this node can never succeed.
func (d *decision) hopeless() bool {
	return d.State == nil && errors.Is(d.PrepareError, domain.ErrBroken)
}

// torn reports whether the domain's memory is spread over two nodes that have lost their
// connection (post-copy).
func (d *decision) torn() bool {
	return d.State.Alive() && d.State.Reason == domain.ReasonPostcopyFailed
}
