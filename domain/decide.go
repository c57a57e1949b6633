// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/handoff"
)

// Sight is everything a node sees of one guest when it decides.
type Sight struct {
	// Node is the name of this node.
	Node string
	// Address is how other nodes' hypervisors reach this one's.
	Address string
	// Port is the port of the hypervisor at Address.
	Port int
	// VMI is the object, read live when the cache did not have it; nil means
	// that it is certain not to exist.
	VMI *v1.VirtualMachineInstance
	// State is the domain here, with its live XML; nil when there is none.
	State *State
	// Desired is the domain to start, from [Convert]; nil while it is not needed.
	Desired *libvirtxml.Domain
	// CopyDisks are the targets of the disks that must travel with the guest.
	CopyDisks []string
	// Facts are those Desired was made from.
	Facts Facts
	// Obstacle is why the guest cannot be made ready here, nil if it can.
	Obstacle error
	// Trouble is why the last task of the guest failed in this process, empty if
	// it did not.
	Trouble string
	// Moving says that this process is carrying out a migration of the guest.
	Moving bool
	// MoveFailure is why the last migration this process carried out failed.
	MoveFailure string
	// MoveEnded is when that was over; zero if this process carried out none.
	MoveEnded time.Time
	// MoveActive says that the hypervisor is busy with a migration of the
	// guest, whoever started it.
	MoveActive bool
	// Leftovers are the UIDs of objects of this name, other than VMI, of which
	// there are files on the node.
	Leftovers []types.UID
}

// TaskVerb says what a [Task] does.
type TaskVerb string

const (
	// TaskApply carries out Operation at the hypervisor.
	TaskApply TaskVerb = "Apply"
	// TaskMigrate begins the migration Request.
	TaskMigrate TaskVerb = "Migrate"
	// TaskAbort cancels a running migration.
	TaskAbort TaskVerb = "AbortMigration"
	// TaskCleanup removes the guest's files on this node.
	TaskCleanup TaskVerb = "Cleanup"
)

// Task is one thing to do on the node.
type Task struct {
	Verb TaskVerb
	// Operation is for TaskApply.
	Operation Operation
	// Request is for TaskMigrate.
	Request MigrationRequest
	// UID is whose files TaskCleanup removes; empty if nobody's.
	UID types.UID
	// Why is the reason in a few words.
	Why string
}

// String prints the task on one line.
func (t Task) String() string {
	if t.Verb == TaskApply {
		return fmt.Sprintf("%s (%s)", t.Operation, t.Why)
	}
	return fmt.Sprintf("%s (%s)", t.Verb, t.Why)
}

// Plan is what a decision comes to: what the object shall say, to be stored
// first, and what to do after that is stored.
type Plan struct {
	// VMI is the object as it shall become; nil when there is none.
	VMI *v1.VirtualMachineInstance
	// Tasks are to be carried out in order, once VMI is stored. If it cannot be
	// stored none of them may be.
	Tasks []Task
	// RequeueAt is when to look again even if nothing happens.
	RequeueAt *time.Time
	// Differences are between the object and the running domain; empty when the
	// two agree, or were not compared.
	Differences []Difference
	// Role says what this node is to the guest.
	Role Role
}

// Role is what a node is to a guest.
type Role string

// The roles. A node that is nothing to a guest must not run it.
const (
	RoleNone    Role = "None"
	RoleOffered Role = "Offered"
	RoleHolder  Role = "Holder"
	RoleTarget  Role = "Target"
)

// RoleOf tells what the node is to the guest under the lease.
func RoleOf(l handoff.Lease, node string) Role {
	switch {
	case l.State == handoff.Offered && l.Holder == node:
		return RoleOffered
	case l.State == handoff.Owned && l.Holder == node, l.InMove() && l.Holder == node:
		return RoleHolder
	case l.InMove() && l.Target == node:
		return RoleTarget
	default:
		return RoleNone
	}
}

// decision is the working state of one Decide.
type decision struct {
	Sight
	now   time.Time
	lease handoff.Lease
	plan  Plan
}

// Decide says what this node must do about the guest. It is deterministic and
// changes nothing. The error tells of a lease that cannot be understood, or of
// a step it refuses; nothing may then be done.
func Decide(s Sight, now time.Time) (Plan, error) {
	d := &decision{Sight: s, now: now}
	d.recognize()
	if err := d.decide(); err != nil {
		return Plan{}, err
	}
	d.leftovers()
	return d.plan, nil
}

func (d *decision) decide() error {
	if d.VMI == nil {
		d.orphan("the VirtualMachineInstance does not exist")
		return nil
	}
	d.plan.VMI = d.VMI.DeepCopy()
	if d.State != nil && d.State.Metadata.UID != d.VMI.UID {
		d.orphan("the domain belongs to an earlier object of this name")
		return nil
	}
	lease, err := handoff.Of(d.VMI)
	if err != nil {
		return err
	}
	d.lease = lease
	d.plan.Role = RoleOf(lease, d.Node)
	return d.byRole()
}

// recognize takes a domain of the guest's name for the guest only if it is: one
// that somebody else defined is left alone and in the way. One that has lost its
// metadata is known by its UUID.
func (d *decision) recognize() {
	if d.State == nil || d.State.Ours() {
		return
	}
	if uid, ours := d.byUUID(); ours {
		known := *d.State
		known.Metadata.Namespace, known.Metadata.Name, _ = strings.Cut(known.Name, "_")
		known.Metadata.UID = uid
		d.State = &known
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

// leftovers removes the files of guests that had this name before.
func (d *decision) leftovers() {
	for _, uid := range d.Leftovers {
		if d.VMI != nil && d.VMI.UID == uid || d.State != nil && d.State.Metadata.UID == uid {
			continue
		}
		d.do(Task{Verb: TaskCleanup, UID: uid, Why: "the guest they belonged to is gone"})
	}
}

func (d *decision) byRole() error {
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
	d.synchronized()
	if d.hindered() {
		return nil
	}
	if err := d.step(handoff.Event{Kind: handoff.Accept}); err != nil {
		return err
	}
	return d.start()
}

// foreign makes sure that a guest that is not this node's does not run here.
func (d *decision) foreign() {
	if d.Moving || d.MoveActive {
		// The hypervisor is about to end it by itself: the guest has moved.
		d.again(time.Second)
		return
	}
	d.clear("the guest belongs to another node, or to none")
}

// clear ends what is left of the guest on this node.
func (d *decision) clear(why string) {
	switch {
	case d.State != nil:
		if d.State.Alive() {
			d.apply(Destroy, why)
		}
		d.apply(Undefine, why)
		d.do(Task{Verb: TaskCleanup, UID: d.State.Metadata.UID, Why: why})
	case d.VMI != nil:
		d.do(Task{Verb: TaskCleanup, UID: d.VMI.UID, Why: why})
	}
}

// orphan ends a domain without an object: gracefully while there is time.
func (d *decision) orphan(why string) {
	if d.State == nil || !d.State.Alive() {
		d.clear(why)
		return
	}
	d.shutdown(DefaultGrace, why)
}

// start defines and starts the domain; its definition carries the epoch under
// which it is started.
func (d *decision) start() error {
	def := *d.Desired
	if err := errors.Join(PutMetadata(&def, d.metadata()), Stamp(&def)); err != nil {
		return fmt.Errorf("domain: start %s: %w", def.Name, err)
	}
	d.do(Task{Verb: TaskApply, Why: "the guest shall run here", Operation: Operation{
		Verb: Start, Domain: def.Name, Definition: &def,
		Paused: d.VMI.Spec.StartStrategy != nil && *d.VMI.Spec.StartStrategy == v1.StartStrategyPaused,
	}})
	return nil
}

// metadata is what the domain shall carry now.
func (d *decision) metadata() Metadata {
	m := Metadata{}
	if d.State != nil {
		m = d.State.Metadata
	} else if d.Desired != nil {
		m, _, _ = MetadataOf(d.Desired)
	}
	m.Namespace, m.Name, m.UID = d.VMI.Namespace, d.VMI.Name, d.VMI.UID
	if l, err := handoff.Of(d.plan.VMI); err == nil {
		m.Epoch = l.Epoch
	}
	return m
}

// step moves the lease under this node's name and the epoch it saw.
func (d *decision) step(e handoff.Event) error {
	e.Epoch, e.Node = d.lease.Epoch, d.Node
	l, err := handoff.Step(d.lease, e, d.now)
	if err != nil {
		return fmt.Errorf("domain: %s/%s: %w", d.VMI.Namespace, d.VMI.Name, err)
	}
	return handoff.Put(d.plan.VMI, l)
}

func (d *decision) apply(v Verb, why string) {
	d.do(Task{Verb: TaskApply, Operation: Operation{Verb: v, Domain: d.State.Name}, Why: why})
}

func (d *decision) do(t Task) { d.plan.Tasks = append(d.plan.Tasks, t) }

func (d *decision) again(after time.Duration) {
	at := d.now.Add(after)
	if d.plan.RequeueAt == nil || at.Before(*d.plan.RequeueAt) {
		d.plan.RequeueAt = &at
	}
}
