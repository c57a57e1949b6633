// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/expectations"
)

// place is one of the two nodes, or none.
type place uint8

const (
	nowhere place = iota
	nodeA
	nodeB
)

var places = [...]string{"", "a", "b"}

// String is the letter of the node.
func (p place) String() string { return places[p] }

// other is the other node.
func (p place) other() place { return nodeA + nodeB - p }

func placeOf(name string) place {
	for p, n := range places {
		if n == name {
			return place(p)
		}
	}
	return nowhere
}

// slot is the name of an object; there are no others.
type slot uint8

const (
	slotVMI slot = iota
	slotLauncher
	slotTarget1
	slotTarget2
	slotMove1
	slotMove2
	// The names of Pods whose names are no intents.
	slotExtra1
	slotExtra2
	slotExtra3
	slotVM
	// The start revisions of a VirtualMachine, by the generation of its spec: the first that is started is two.
	slotRev2
	slotRev3
	slotRev4
	slotRev5
	slotRev6
	slotRev7
	slotCount
)

var slotNames = [slotCount]string{"vmi", "launcher", "target1", "target2", "m1", "m2", "extra1", "extra2", "extra3", "vm", "rev2", "rev3", "rev4", "rev5", "rev6", "rev7"}

// String is the name of the object in scripts.
func (s slot) String() string { return slotNames[s] }

func (s slot) isPod() bool {
	return s.isLauncher() || s.isTarget()
}
func (s slot) isTarget() bool { return s == slotTarget1 || s == slotTarget2 }
func (s slot) isMove() bool   { return s == slotMove1 || s == slotMove2 }

// isLauncher reports whether a Pod of this name is the launcher Pod of a start.
func (s slot) isLauncher() bool { return s == slotLauncher || s.isExtra() }

func (s slot) isExtra() bool    { return s >= slotExtra1 && s <= slotExtra3 }
func (s slot) isRevision() bool { return s >= slotRev2 && s <= slotRev7 }

// launcherOf is the name of the launcher Pod of the start of a guest, which its UID is part of. The guests of a VirtualMachine have
// the same name and one after the other a few names of Pods.
func launcherOf(uid uint8) slot {
	if uid <= 1 {
		return slotLauncher
	}
	return slotExtra1 + slot(uid-2)%(slotExtra3-slotExtra1+1)
}

// tag is the UID of a migration.
func (s slot) tag() types.UID { return types.UID(s.String()) }

// owners are the objects whose writes are noted apart.
var owners = [...]slot{slotVMI, slotMove1, slotMove2, slotVM}

// owner is the number of the object among them.
func (s slot) owner() int { return slices.Index(owners[:], s) }

// target is the name of a migration's Pod.
func (s slot) target() slot { return s - slotMove1 + slotTarget1 }

var (
	podKind  = schema.GroupKind{Kind: "Pod"}
	vmiKind  = schema.GroupKind{Group: "kubevirt.io", Kind: "VirtualMachineInstance"}
	moveKind = schema.GroupKind{Group: "kubevirt.io", Kind: "VirtualMachineInstanceMigration"}
	vmKind   = schema.GroupKind{Group: "kubevirt.io", Kind: "VirtualMachine"}
	revKind  = schema.GroupKind{Group: "apps", Kind: "ControllerRevision"}
)

func (s slot) kind() schema.GroupKind {
	switch {
	case s == slotVMI:
		return vmiKind
	case s.isMove():
		return moveKind
	case s == slotVM:
		return vmKind
	case s.isRevision():
		return revKind
	default:
		return podKind
	}
}

const namespace = "ns"

func (s slot) ref() expectations.Ref {
	return expectations.Ref{Kind: s.kind(), Namespace: namespace, Name: s.String()}
}

// verdict is how a migration ended.
type verdict uint8

const (
	unfinished verdict = iota
	succeeded
	failed
)

// object is one version of an API object. It is never changed once it is stored.
type object struct {
	slot slot
	uid  uint8 // counts the objects that had the name
	rv   uint16
	// deleting is the deletionTimestamp, gone says that this is the last version
	// of a removed object.
	deleting, gone bool

	// vmi is for the VirtualMachineInstance.
	vmi *guest

	// node and ready are for Pods.
	node  place
	ready bool
	// owner is the number of the guest that a Pod was created for.
	owner uint8

	// move is for migrations.
	move *movement

	// vm is for the VirtualMachine, rev for its start revisions.
	vm  *principal
	rev *revision

	sum uint64 // of everything but rv
}

// sealed returns the object with its checksum.
func (o object) sealed() *object {
	h := newHash()
	h.bytes(byte(o.slot), o.uid, bit(o.deleting)|bit(o.gone)<<1|bit(o.ready)<<2, byte(o.node), o.owner)
	if o.vmi != nil {
		h.word(o.vmi.sum)
	}
	if o.move != nil {
		h.word(o.move.sum)
	}
	if o.vm != nil {
		h.word(o.vm.sum)
	}
	if o.rev != nil {
		h.word(o.rev.sum)
	}
	o.sum, _ = h.sum()
	return &o
}

// with returns a changed copy.
func (o *object) with(change func(*object)) *object {
	n := *o
	change(&n)
	return n.sealed()
}

func (o *object) fullUID() types.UID { return fullUID(o.slot, o.uid) }

func fullUID(s slot, uid uint8) types.UID {
	if s.isMove() {
		return s.tag()
	}
	return types.UID(s.String() + "-" + strconv.Itoa(int(uid)))
}

// version is a resourceVersion as the API server gives it.
func version(rv uint16) string {
	if rv == 0 {
		return ""
	}
	return strconv.Itoa(int(rv))
}

// meta is the object as package expectations sees it.
func (o *object) meta() *metav1.ObjectMeta {
	m := &metav1.ObjectMeta{
		Namespace: namespace, Name: o.slot.String(), UID: o.fullUID(), ResourceVersion: version(o.rv),
	}
	if o.deleting {
		m.DeletionTimestamp = &metav1.Time{Time: clockAt(0)}
	}
	return m
}

// tick is one step of the clock. ActWithin of package handoff is one tick and
// FenceAfter three.
const tick = time.Minute

var epochOfTime = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func clockAt(ticks int8) time.Time { return epochOfTime.Add(time.Duration(ticks) * tick) }

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// final is how a migration has ended.
func (o *object) final() verdict {
	if o.move == nil {
		return unfinished
	}
	return o.move.final
}
