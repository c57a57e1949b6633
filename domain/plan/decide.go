// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/diff"
	"github.com/virtloom/virtloom/domain/status"
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
	d.cleanupOrphans()
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
	d.plan.Role = domain.RoleOf(lease, d.Node)
	if earlier {
		// The earlier domain may have ended since, and this VMI's own may have its name now.
		d.requeueAfter(prepareRetry)
		return nil
	}
	return d.byRole()
}

// earlier reports on a VMI that is offered to this node that a domain of an earlier object
// with its name has not ended, so that the offer does not appear to be ignored. The two may
// have the same disks.
func (d *decision) earlier() error {
	lease, err := handoff.Of(d.VMI)
	if err != nil || domain.RoleOf(lease, d.Node) != domain.RoleOffered || d.VMI.DeletionTimestamp != nil || d.VMI.IsFinal() {
		return nil //nolint:nilerr // the earlier domain ends whatever the lease says
	}
	d.outOfSync(status.ReasonNotReady, fmt.Sprintf("VirtualMachineInstance %s/%s: the domain of an earlier object with this name (UID %s) still runs on node %s and is being stopped",
		d.VMI.Namespace, d.VMI.Name, d.State.Metadata.UID, d.Node))
	d.requeueAfter(prepareRetry)
	return nil
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
		d.PrepareError = &domain.Error{
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
	if d.VMI != nil && strings.EqualFold(d.State.UUID, domain.UUID(d.VMI)) {
		return d.VMI.UID, true
	}
	for _, uid := range d.OrphanedUIDs {
		if strings.EqualFold(d.State.UUID, string(uid)) {
			return uid, true
		}
	}
	return "", false
}

// cleanupOrphans removes the files of earlier VMIs with this name, unless a domain may still
// use them.
func (d *decision) cleanupOrphans() {
	if !d.SilentSince.IsZero() {
		return
	}
	if d.Unseen != nil {
		d.requeueAfter(prepareRetry)
		return
	}
	for _, uid := range d.OrphanedUIDs {
		if d.VMI != nil && d.VMI.UID == uid || d.State != nil && d.State.Metadata.UID == uid {
			continue
		}
		d.do(domain.Action{Verb: domain.ActionCleanup, UID: uid, Why: "their VMI does not exist"})
	}
}

func (d *decision) byRole() error {
	if !d.SilentSince.IsZero() && d.plan.Role != domain.RoleNone {
		return d.silent()
	}
	if d.unseen() {
		return d.awaitEvidence()
	}
	switch d.plan.Role {
	case domain.RoleOffered:
		return d.offered()
	case domain.RoleHolder:
		return d.holder()
	case domain.RoleTarget:
		return d.target()
	default:
		d.foreign()
		return nil
	}
}

// offered accepts the VMI, unless it is being deleted or cannot run here.
func (d *decision) offered() error {
	if d.VMI.DeletionTimestamp != nil || d.VMI.IsFinal() {
		d.clear("the offered VMI is being deleted or is final")
		return nil
	}
	if d.State != nil && !d.begun(d.lease.Epoch) {
		d.clear("a domain of an earlier handoff exists")
		d.requeueAfter(pollMigration)
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
		return nil // the lease was lost, not the domain: its state decides in the next pass
	}
	return d.start()
}

// notReceived prevents the start of a VMI that runs in another cluster and is to be received
// from there, which this node does not support (kubevirt.io/create-migration-target).
func (d *decision) notReceived() {
	if d.VMI.Annotations[v1.CreateMigrationTarget] != "true" || d.State != nil {
		return
	}
	d.PrepareError = &domain.Error{
		Object: "VirtualMachineInstance " + d.VMI.Namespace + "/" + d.VMI.Name,
		Field:  "metadata.annotations[" + v1.CreateMigrationTarget + "]",
		Reason: fmt.Sprintf("receiving a VMI from another cluster is not supported on node %s", d.Node),
		Remedy: "receive it on a node with virt-handler, or recreate it without the annotation once it runs nowhere else",
		Err:    domain.ErrUnsupported,
	}
}

// begun reports whether the domain here was defined under that epoch, or a later one: then a
// start of that epoch has been attempted. A domain without metadata may have been.
func (d *decision) begun(epoch uint64) bool {
	return d.State != nil && (d.unmarked || d.State.Metadata.Epoch >= epoch)
}

// foreign ensures that a VMI that is not this node's does not run here.
func (d *decision) foreign() {
	if (d.Moving || d.MoveActive) && !d.executes() && (d.State == nil || !d.torn()) {
		// The VMI has migrated: the hypervisor is about to end the domain here by itself.
		d.requeueAfter(pollMigration)
		return
	}
	if d.disputed() {
		d.requeueAfter(prepareRetry)
		return
	}
	d.clear("the VMI is not assigned to this node")
}

// disputed reports whether, without a lease, KubeVirt's label and status.nodeName name two
// nodes, this one by the latter. KubeVirt lets both act; that might start the VMI twice, and
// stopping it here might leave none.
func (d *decision) disputed() bool {
	_, leased := d.VMI.Annotations[handoff.Annotation]
	return !leased && d.lease.Holder != "" && d.lease.Holder != d.Node && d.VMI.Status.NodeName == d.Node
}

// executes reports whether the domain's CPUs run here.
func (d *decision) executes() bool {
	return d.State != nil && d.State.Alive() && d.State.Status != domain.StatusPaused
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
		d.do(domain.Action{Verb: domain.ActionCleanup, UID: d.VMI.UID, Why: why})
	}
}

// cleanup removes the files of a VMI with this name. The UID in a domain's metadata may be
// forged by its launcher: it gives no access to the files of another VMI.
func (d *decision) cleanup(uid types.UID, why string) {
	if d.VMI != nil && d.VMI.UID == uid || slices.Contains(d.OrphanedUIDs, uid) {
		d.do(domain.Action{Verb: domain.ActionCleanup, UID: uid, Why: why})
	}
}

// orphan stops a domain without an object, gracefully for the grace period in its metadata.
// Without one it is force-stopped, as in KubeVirt, unless all of its metadata is lost.
func (d *decision) orphan(why string) {
	// A domain that is paused for a switch may run elsewhere, or have run there since: it must
	// not be resumed, which a graceful shutdown would require.
	if d.State == nil || !d.State.Alive() || d.handingOver() || d.State.Held() {
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

// start defines and starts the domain. The metadata in its definition has the epoch of the
// start, and the data that is needed once the object is gone.
func (d *decision) start() error {
	if d.State != nil && d.State.Reason == domain.ReasonFailed {
		d.apply(domain.Undefine, "the last start has failed")
	}
	command, _ := d.next.Command(handoff.CommandStart)
	paused := d.VMI.Spec.StartStrategy != nil && *d.VMI.Spec.StartStrategy == v1.StartStrategyPaused
	d.meta = domain.Metadata{} // the metadata of an earlier attempt is void
	period := d.grace()
	def := *d.Desired
	d.meta = domain.Metadata{
		Namespace: d.VMI.Namespace, Name: d.VMI.Name, UID: d.VMI.UID, Epoch: d.next.Epoch,
		GracePeriod: &period, Paused: paused, DiskBytes: d.sizes(),
	}
	if err := errors.Join(domain.PutMetadata(&def, d.meta), diff.Stamp(&def)); err != nil {
		return fmt.Errorf("plan: start %s: %w", def.Name, err)
	}
	d.do(domain.Action{Verb: domain.ActionApply, Why: "the VMI is assigned to this node", Command: command, Operation: domain.Operation{
		Verb: domain.Start, Domain: def.Name, Definition: &def, Paused: paused,
	}})
	return nil
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
	d.do(domain.Action{Verb: domain.ActionApply, Operation: op, Why: why})
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
	d.do(domain.Action{Verb: domain.ActionApply, Operation: domain.Operation{Verb: v, Domain: d.State.Name}, Why: why})
}

// emit adds an event about the object, if there is one.
func (d *decision) emit(warning bool, reason, message string) {
	if d.VMI != nil {
		d.plan.Events = append(d.plan.Events, Event{Warning: warning, Reason: reason, Message: message})
	}
}

func (d *decision) do(t domain.Action) { d.plan.Actions = append(d.plan.Actions, t) }

// requeueAfter sets RequeueAt, unless it is earlier already.
func (d *decision) requeueAfter(after time.Duration) {
	at := d.now.Add(after)
	if d.plan.RequeueAt == nil || at.Before(*d.plan.RequeueAt) {
		d.plan.RequeueAt = &at
	}
}
