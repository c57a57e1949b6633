// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Owner is the object on whose behalf writes are made. Two owners of one key and different UIDs are different owners.
type Owner struct {
	// Key is the namespace and name of the owner, as in its work queue.
	Key types.NamespacedName
	// UID is the owner's metadata.uid.
	UID types.UID
}

// Ref names the object a write goes to.
type Ref struct {
	// Kind is the group and kind of the object. Versions of one kind are the same kind.
	Kind schema.GroupKind
	// Namespace is empty for cluster-scoped objects.
	Namespace string
	// Name is never empty: a write whose name the server chooses cannot be expected.
	Name string
}

// String renders the reference as Kind.group namespace/name.
func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind.String() + " " + r.Name
	}
	return r.Kind.String() + " " + r.Namespace + "/" + r.Name
}

// Verb is the kind of write that is expected to become visible.
type Verb string

// The verbs of expected writes.
const (
	Create Verb = "create"
	Update Verb = "update"
	Delete Verb = "delete"
)

// State is the outcome of a Check.
type State int

// The states of a Verdict, from best to worst.
const (
	// Satisfied means that nothing is outstanding: the cache shows every write of the owner.
	Satisfied State = iota
	// Waiting means that at least one write is not visible yet. The owner is woken when that changes.
	Waiting
	// Expired means that further waiting is useless: a live read is required. It never means that the gate is open.
	Expired
)

// String returns the name of the state in lower case.
func (s State) String() string {
	switch s {
	case Satisfied:
		return "satisfied"
	case Waiting:
		return "waiting"
	case Expired:
		return "expired"
	default:
		return fmt.Sprintf("state(%d)", int(s))
	}
}

// Problem is the reason why an expectation needs a live read now. The values serve as metric labels.
type Problem string

// The problems of a Pending expectation.
const (
	// NoProblem means that the expectation is merely waiting.
	NoProblem Problem = ""
	// Overdue means that no evidence came within the TTL, or within the additional TTL granted after a live read.
	Overdue Problem = "overdue"
	// Tombstone means that the cache lost the object without having seen its removal.
	Tombstone Problem = "tombstone"
	// Incomparable means that a version was seen which cannot be ordered against the one that was written. It never
	// counts as satisfied; see Unordered for the remedy.
	Incomparable Problem = "incomparable"
)

// Pending describes one outstanding write.
type Pending struct {
	// Ref is the object written to.
	Ref
	// Verb is the kind of write.
	Verb Verb
	// Since is when the write was noted.
	Since time.Time
	// Needs is the missing evidence: a resourceVersion for updates and answered creations, a UID for deletions. It is
	// empty while the server's answer is not known.
	Needs string
	// Seen is the newest resourceVersion that the cache has shown for the object since the write was noted, or that a
	// bookmark vouched for while the server's answer was not known. Empty: none.
	Seen string
	// Problem is why a live read is needed, or NoProblem.
	Problem Problem

	token Token
}

// Token returns the token of the write, so that a caller can call Seen, or abandon the write with Cancel.
func (p Pending) Token() Token { return p.token }

// String renders the expectation for logs and conditions.
func (p Pending) String() string {
	s := string(p.Verb) + " of " + p.Ref.String()
	if p.Needs != "" {
		s += ", needs " + p.Needs
	}
	if p.Seen != "" {
		s += ", has seen " + p.Seen
	}
	if p.Problem != NoProblem {
		s += ", " + string(p.Problem)
	}
	if p.Problem == Incomparable {
		s += " (if no live read settles it, cancel it once the cache is known to be current)"
	}
	return s
}

// Verdict is the result of Check.
type Verdict struct {
	// State is Expired if any pending write is, else Waiting if any is pending, else Satisfied.
	State State
	// Pending lists the outstanding writes, oldest first. It is nil when satisfied.
	Pending []Pending
	// Deadline is when the next pending write becomes overdue, so that a caller can requeue until then even if no event
	// arrives. Zero unless Waiting.
	Deadline time.Time
	// RequeueAfter is the time from this Check to Deadline. Zero unless Waiting.
	RequeueAfter time.Duration
}

// Satisfied reports whether the owner may act on its cache.
func (v Verdict) Satisfied() bool { return v.State == Satisfied }

// EventKind is the source of an observed object.
type EventKind int

// The kinds of observation.
const (
	// Added is a watch or list event for an object that the cache did not have.
	Added EventKind = iota
	// Updated is a watch or list event for an object that the cache had.
	Updated
	// Deleted is a watch event that carries the final state of a removed object.
	Deleted
	// DeletedUnknown is a tombstone: a relist no longer has the object; its final state was not seen.
	DeletedUnknown
)
