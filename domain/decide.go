// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// decision is the working state of one Decide.
type decision struct {
	Sight
	now time.Time
	// lease is as the object has it, next as it shall be stored.
	lease, next handoff.Lease
	// unmarked says that the domain has lost its metadata, its epoch among it.
	unmarked bool
	// meta is what the domain carries, with what this plan has changed about it.
	meta Metadata
	plan Plan
}

// Decide says what this node must do about the guest. It is deterministic and
// changes nothing. The error tells of a lease that cannot be understood, or of
// a step it refuses; nothing may then be done.
func Decide(s Sight, now time.Time) (Plan, error) {
	d := newDecision(s, now)
	if err := d.decide(); err != nil {
		return Plan{}, err
	}
	d.tellProgress()
	d.leftovers()
	return d.plan, nil
}

func newDecision(s Sight, now time.Time) *decision {
	d := &decision{Sight: s, now: now}
	d.recognize()
	if d.State != nil {
		d.meta = d.State.Metadata.clone()
	}
	return d
}

func (d *decision) decide() error {
	if d.VMI == nil {
		d.orphan("the VirtualMachineInstance does not exist")
		return nil
	}
	d.plan.VMI = d.VMI.DeepCopy()
	earlier := d.State != nil && d.State.Metadata.UID != d.VMI.UID
	if earlier && d.SilentSince.IsZero() {
		d.orphan("the domain belongs to an earlier object of this name")
		return d.earlier()
	}
	lease, err := handoff.Of(d.VMI)
	if err != nil {
		return err
	}
	d.lease, d.next = lease, lease
	d.plan.Role = RoleOf(lease, d.Node)
	if earlier {
		// It may have ended since, and what has its name now be the guest itself.
		d.again(obstacleRetry)
		return nil
	}
	return d.byRole()
}

// earlier says of a guest that shall start here that an earlier one of its name has not
// ended, so that its offer is not taken for one that passes unheard. The two may have the
// same disks.
func (d *decision) earlier() error {
	lease, err := handoff.Of(d.VMI)
	if err != nil || RoleOf(lease, d.Node) != RoleOffered || d.VMI.DeletionTimestamp != nil || d.VMI.IsFinal() {
		return nil //nolint:nilerr // an earlier guest ends whatever the lease says
	}
	d.outOfSync(ReasonNotReady, fmt.Sprintf("VirtualMachineInstance %s/%s: the guest of an earlier object of this name (UID %s) still runs on node %s, and is being ended",
		d.VMI.Namespace, d.VMI.Name, d.State.Metadata.UID, d.Node))
	d.again(obstacleRetry)
	return nil
}

// recognize takes a domain of the guest's name for the guest only if it is: one
// that somebody else defined is left alone and in the way. One that has lost its
// metadata is known by its UUID.
func (d *decision) recognize() {
	if d.State == nil {
		return
	}
	if m := d.State.Metadata; d.State.Ours() && Name(m.Namespace, m.Name) == d.State.Name {
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
		d.Obstacle = &Error{
			Object: "VirtualMachineInstance " + d.VMI.Namespace + "/" + d.VMI.Name,
			Reason: fmt.Sprintf("node %s has a domain %s that is not of this guest", d.Node, d.State.Name),
			Remedy: "undefine that domain, or give it another name",
		}
	}
	d.State = nil
}

// byUUID finds the guest a domain without metadata belongs to: the object's, or
// one that has files here.
func (d *decision) byUUID() (types.UID, bool) {
	if d.VMI != nil && strings.EqualFold(d.State.UUID, UUID(d.VMI)) {
		return d.VMI.UID, true
	}
	for _, uid := range d.Leftovers {
		if strings.EqualFold(d.State.UUID, string(uid)) {
			return uid, true
		}
	}
	return "", false
}

// leftovers removes the files of guests that had this name before, unless one of them
// may still run on them.
func (d *decision) leftovers() {
	if !d.SilentSince.IsZero() {
		return
	}
	if d.Unseen != nil {
		d.again(obstacleRetry)
		return
	}
	for _, uid := range d.Leftovers {
		if d.VMI != nil && d.VMI.UID == uid || d.State != nil && d.State.Metadata.UID == uid {
			continue
		}
		d.do(Task{Verb: TaskCleanup, UID: uid, Why: "the guest they belonged to is gone"})
	}
}

func (d *decision) byRole() error {
	if !d.SilentSince.IsZero() && d.plan.Role != RoleNone {
		return d.silent()
	}
	if d.unseen() {
		return d.awaitEvidence()
	}
	switch d.plan.Role {
	case RoleOffered:
		return d.offered()
	case RoleHolder:
		return d.holder()
	case RoleTarget:
		return d.target()
	default:
		d.foreign()
		return nil
	}
}

// offered takes the guest over, unless it is being deleted or cannot run here.
func (d *decision) offered() error {
	if d.VMI.DeletionTimestamp != nil || d.VMI.IsFinal() {
		d.clear("the offered guest is not wanted any more")
		return nil
	}
	if d.State != nil && !d.begun(d.lease.Epoch) {
		d.clear("a domain of an earlier hand-over is in the way")
		d.again(pollMove)
		return nil
	}
	d.notReceived()
	d.prove()
	if !d.hopeless() && d.hindered(d.State == nil) {
		return nil
	}
	if err := d.step(handoff.Event{Kind: handoff.Accept}); err != nil {
		return err
	}
	if d.hopeless() {
		d.lease = d.next
		return d.holderWithoutGuest()
	}
	if d.State != nil {
		return nil // the lease was lost, and not the guest: what it does counts
	}
	return d.start()
}

// notReceived keeps a guest from being started that runs in another cluster and is to
// be received from there, which this node cannot do. (kubevirt.io/create-migration-target)
func (d *decision) notReceived() {
	if d.VMI.Annotations[v1.CreateMigrationTarget] != "true" || d.State != nil {
		return
	}
	d.Obstacle = &Error{
		Object: "VirtualMachineInstance " + d.VMI.Namespace + "/" + d.VMI.Name,
		Field:  "metadata.annotations[" + v1.CreateMigrationTarget + "]",
		Reason: fmt.Sprintf("the guest is to be received from another cluster, which node %s cannot do", d.Node),
		Remedy: "receive it on a node with virt-handler; or create it anew without the annotation, once it runs nowhere else",
		Err:    ErrUnsupported,
	}
}

// begun tells whether the domain here was made under that epoch, or a later one:
// then a start of that epoch has been carried out, as far as it came. What has lost
// its metadata may have been.
func (d *decision) begun(epoch uint64) bool {
	return d.State != nil && (d.unmarked || d.State.Metadata.Epoch >= epoch)
}

// foreign makes sure that a guest that is not this node's does not run here.
func (d *decision) foreign() {
	if (d.Moving || d.MoveActive) && !d.executes() && (d.State == nil || !d.torn()) {
		// The guest has moved: the hypervisor is about to end what is left by itself.
		d.again(pollMove)
		return
	}
	if d.disputed() {
		d.again(obstacleRetry)
		return
	}
	d.clear("the guest belongs to another node, or to none")
}

// disputed tells whether KubeVirt's own marks, without a lease, name this node and
// another one. KubeVirt lets both act; that might start a guest twice, and
// ending it here might leave none.
func (d *decision) disputed() bool {
	_, leased := d.VMI.Annotations[handoff.Annotation]
	return !leased && d.lease.Holder != "" && d.lease.Holder != d.Node && d.VMI.Status.NodeName == d.Node
}

// executes tells whether the guest's CPUs run here.
func (d *decision) executes() bool {
	return d.State != nil && d.State.Alive() && d.State.Status != StatusPaused
}

// clear ends what is left of the guest on this node. A process may have been kept
// after a crash (libvirt: on_crash preserve).
func (d *decision) clear(why string) {
	switch {
	case d.State != nil:
		if d.State.Alive() || d.State.Status == StatusCrashed {
			d.apply(Destroy, why)
		}
		d.apply(Undefine, why)
		d.cleanup(d.State.Metadata.UID, why)
	case d.VMI != nil:
		d.do(Task{Verb: TaskCleanup, UID: d.VMI.UID, Why: why})
	}
}

// cleanup removes the files of a guest of this name. What a domain says of itself can be
// a lie of its launcher: it opens no way to the files of another guest.
func (d *decision) cleanup(uid types.UID, why string) {
	if d.VMI != nil && d.VMI.UID == uid || slices.Contains(d.Leftovers, uid) {
		d.do(Task{Verb: TaskCleanup, UID: uid, Why: why})
	}
}

// orphan ends a domain without an object: gracefully while there is time. How much,
// it carries itself; one of which that is not known is ended at once, as KubeVirt
// does, unless all that it carried is lost.
func (d *decision) orphan(why string) {
	// A guest that stands still for a switch may run elsewhere, or have run there since:
	// it must not be resumed, which a graceful end would take.
	if d.State == nil || !d.State.Alive() || d.handingOver() || d.State.held() {
		d.clear(why)
		return
	}
	period := time.Duration(0)
	switch {
	case d.meta.GracePeriod != nil:
		period = *d.meta.GracePeriod
	case d.unmarked:
		period = DefaultGrace
	}
	d.shutdown(period, why)
}

// start defines and starts the domain; its definition carries the epoch under
// which it is started, and what is to be known of the guest when its object is gone.
func (d *decision) start() error {
	if d.State != nil && d.State.Reason == ReasonFailed {
		d.apply(Undefine, "it could not be started")
	}
	command, _ := d.next.Command(handoff.CommandStart)
	paused := d.VMI.Spec.StartStrategy != nil && *d.VMI.Spec.StartStrategy == v1.StartStrategyPaused
	d.meta = Metadata{} // an earlier try has left nothing that counts
	period := d.grace()
	def := *d.Desired
	d.meta = Metadata{
		Namespace: d.VMI.Namespace, Name: d.VMI.Name, UID: d.VMI.UID, Epoch: d.next.Epoch,
		GracePeriod: &period, Paused: paused, DiskBytes: d.sizes(),
	}
	if err := errors.Join(PutMetadata(&def, d.meta), Stamp(&def)); err != nil {
		return fmt.Errorf("domain: start %s: %w", def.Name, err)
	}
	d.do(Task{Verb: TaskApply, Why: "the guest shall run here", Command: command, Operation: Operation{
		Verb: Start, Domain: def.Name, Definition: &def, Paused: paused,
	}})
	return nil
}

// remember changes what the domain carries, before the tasks that come after.
func (d *decision) remember(why string, change func(*Metadata)) {
	change(&d.meta)
	if d.VMI != nil && d.meta.UID == d.VMI.UID {
		d.meta.Namespace, d.meta.Name, d.meta.Epoch = d.VMI.Namespace, d.VMI.Name, d.next.Epoch
	}
	op := Operation{Verb: SetMetadata, Domain: d.State.Name, Metadata: d.meta.clone()}
	if n := len(d.plan.Tasks); n > 0 && d.plan.Tasks[n-1].Operation.Verb == SetMetadata {
		last := &d.plan.Tasks[n-1]
		last.Operation, last.Why = op, last.Why+"; "+why
		return
	}
	d.do(Task{Verb: TaskApply, Operation: op, Why: why})
}

// step moves the lease under this node's name and the epoch it saw, or, when this
// plan has moved it already, made.
func (d *decision) step(e handoff.Event) error {
	e.Epoch, e.Node = d.next.Epoch, d.Node
	next, _, err := handoff.Step(d.next, e, d.now)
	if err != nil {
		return fmt.Errorf("domain: %s/%s: %w", d.VMI.Namespace, d.VMI.Name, err)
	}
	d.next = next
	return handoff.Put(d.plan.VMI, next)
}

func (d *decision) apply(v Verb, why string) {
	d.do(Task{Verb: TaskApply, Operation: Operation{Verb: v, Domain: d.State.Name}, Why: why})
}

// tell lets an event be told of the object, if there is one.
func (d *decision) tell(warning bool, reason, message string) {
	if d.VMI != nil {
		d.plan.Notices = append(d.plan.Notices, Notice{Warning: warning, Reason: reason, Message: message})
	}
}

func (d *decision) do(t Task) { d.plan.Tasks = append(d.plan.Tasks, t) }

func (d *decision) again(after time.Duration) {
	at := d.now.Add(after)
	if d.plan.RequeueAt == nil || at.Before(*d.plan.RequeueAt) {
		d.plan.RequeueAt = &at
	}
}
