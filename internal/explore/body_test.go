// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// guest is what a VirtualMachineInstance says, with what package handoff reads from it.
type guest struct {
	// obj has neither UID nor version nor deletionTimestamp, and is never changed.
	obj       *v1.VirtualMachineInstance
	lease     handoff.Lease
	err       error
	finalizer bool
	sum       uint64
}

// selects reports whether the caches of the node hold the object: as in the node
// agent, those of the guests it owns and of those that come to it.
func (g *guest) selects(n place) bool {
	return g.obj.Labels[v1.NodeNameLabel] == n.String() || g.obj.Labels[v1.MigrationTargetNodeNameLabel] == n.String()
}

// movement is what a VirtualMachineInstanceMigration says.
type movement struct {
	obj       *v1.VirtualMachineInstanceMigration
	finalizer bool
	final     verdict
	sum       uint64
}

// memory keeps one value for each content that an object had, so that states can be
// distinguished by pointers, and what the deciders have said: they are pure, and the same
// question comes again and again. It is safe for concurrent use.
type memory struct {
	guests    memo[string, *guest]
	movements memo[string, *movement]
	sights    memo[sight, sighted]
	proofs    memo[proofKey, bool]
	passes    memo[vmiKey, vmiPlan]
	needs     memo[vmiKey, vmiNeeds]
	moves     memo[moveKey, movePlan]
	patches   memo[patchKey, *guest]

	principals memo[string, *principal]
	revisions  memo[string, *revision]
	machines   memo[vmKey, machinePlan]
	merged     memo[mergeKey, *principal]
}

// memo remembers a pure function.
type memo[K comparable, V any] struct {
	mu    sync.RWMutex
	known map[K]V // guarded by mu
}

func (c *memo[K, V]) of(k K, compute func() V) V {
	c.mu.RLock()
	v, known := c.known[k]
	c.mu.RUnlock()
	if known {
		return v
	}
	v = compute()
	c.mu.Lock()
	defer c.mu.Unlock()
	if was, known := c.known[k]; known {
		return was // of two that are the same one counts, for pointers' sake
	}
	if c.known == nil {
		c.known = map[K]V{}
	}
	c.known[k] = v
	return v
}

// moment replaces times that no decision reads.
var moment = metav1.NewTime(epochOfTime)

// guest returns the one value for what the object says. When conditions and phases of a
// guest have changed decides nothing and is left out.
func (k *memory) guest(vmi *v1.VirtualMachineInstance) *guest {
	n := vmi.DeepCopy()
	n.UID, n.ResourceVersion, n.DeletionTimestamp = "", "", nil
	for i := range n.Status.Conditions {
		n.Status.Conditions[i].LastTransitionTime, n.Status.Conditions[i].LastProbeTime = moment, metav1.Time{}
	}
	for i := range n.Status.PhaseTransitionTimestamps {
		n.Status.PhaseTransitionTimestamps[i].PhaseTransitionTimestamp = moment
	}
	if m := n.Status.MigrationState; m != nil && m.TargetNodeDomainReadyTimestamp != nil {
		m.TargetNodeDomainReadyTimestamp = &moment
	}
	text := encode(n)
	return k.guests.of(text, func() *guest {
		g := &guest{obj: n, sum: sumOf(text), finalizer: slices.Contains(n.Finalizers, v1.VirtualMachineInstanceFinalizer)}
		g.lease, g.err = handoff.Of(n)
		return g
	})
}

// movement is the same for a migration. Of its phases the time of the present one counts.
func (k *memory) movement(vmim *v1.VirtualMachineInstanceMigration) *movement {
	n := vmim.DeepCopy()
	n.ResourceVersion, n.DeletionTimestamp = "", nil
	for i := range n.Status.Conditions {
		n.Status.Conditions[i].LastTransitionTime, n.Status.Conditions[i].LastProbeTime = moment, metav1.Time{}
	}
	for i := range n.Status.PhaseTransitionTimestamps {
		if t := &n.Status.PhaseTransitionTimestamps[i]; t.Phase != n.Status.Phase {
			t.PhaseTransitionTimestamp = moment
		}
	}
	text := encode(n)
	return k.movements.of(text, func() *movement {
		m := &movement{obj: n, sum: sumOf(text), finalizer: slices.Contains(n.Finalizers, v1.VirtualMachineInstanceMigrationFinalizer)}
		switch n.Status.Phase {
		case v1.MigrationSucceeded:
			m.final = succeeded
		case v1.MigrationFailed:
			m.final = failed
		}
		return m
	})
}

// cannot ends the search: what it would go on with is not what the shipped code does.
func cannot(format string, args ...any) {
	panic("explore: " + fmt.Sprintf(format, args...))
}

// encode is the canonical form of an object: as it is stored.
func encode(o any) string {
	text, err := json.Marshal(o)
	if err != nil {
		cannot("%T is not encoded: %v", o, err)
	}
	return string(text)
}

func sumOf(text string) uint64 {
	h := newHash()
	h.text(text)
	a, _ := h.sum()
	return a
}

// wanted is the object as its user has made it. It shall end at once when it is to end.
func wanted() *v1.VirtualMachineInstance {
	size, grace := resource.MustParse("1Gi"), int64(0)
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: slotVMI.String(), CreationTimestamp: moment}}
	vmi.Spec.TerminationGracePeriodSeconds = &grace
	vmi.Spec.Domain.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: size}
	return vmi
}

// asked is a migration as its user has made it.
func asked(s slot, now int8) *v1.VirtualMachineInstanceMigration {
	return &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: s.String(), UID: s.tag(), CreationTimestamp: metav1.NewTime(clockAt(now))},
		Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: slotVMI.String()},
	}
}

// instance is the object of that UID. Which version it has decides nothing.
func (g *guest) instance(uid uint8, deleting bool) *v1.VirtualMachineInstance {
	vmi := *g.obj
	vmi.UID, vmi.ResourceVersion = fullUID(slotVMI, uid), "1"
	if deleting {
		vmi.DeletionTimestamp = &moment
	}
	return &vmi
}

// migration is the version as a client reads it.
func (k moving) migration() *v1.VirtualMachineInstanceMigration {
	m := *k.movement.obj
	m.ResourceVersion = "1"
	if k.deleting {
		m.DeletionTimestamp = &moment
	}
	return &m
}

// moving is a migration with whether it is being deleted.
type moving struct {
	*movement
	deleting bool
}

func movingOf(o *object) moving {
	if o == nil || o.gone {
		return moving{}
	}
	return moving{o.move, o.deleting}
}

// place of a Pod, as far as it is read; without a UID there is none.
type podKey struct {
	uid, owner      uint8
	node            place
	ready, deleting bool
}

type podKeys [slotCount]podKey

// podsOf are the Pods among objects.
func podsOf(objects *[slotCount]*object) podKeys {
	var out podKeys
	for s, o := range objects {
		if o != nil && !o.gone && o.slot.isPod() {
			out[s] = podKey{o.uid, o.owner, o.node, o.ready, o.deleting}
		}
	}
	return out
}

// pods are the VMI's Pods as clients read them, and others those of earlier VMIs of its name.
func (k *podKeys) pods(of *v1.VirtualMachineInstance) (own, others []*corev1.Pod) {
	for s := range slotCount {
		switch p := k[s].pod(s); {
		case k[s].uid == 0:
		case metav1.IsControlledBy(p, of):
			own = append(own, p)
		default:
			others = append(others, p)
		}
	}
	return own, others
}

func (k podKey) pod(s slot) *corev1.Pod {
	owner := &metav1.ObjectMeta{Name: slotVMI.String(), UID: fullUID(slotVMI, k.owner)}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: s.String(), UID: fullUID(s, k.uid), ResourceVersion: "1",
		Labels: map[string]string{v1.AppLabel: "virt-launcher", v1.CreatedByLabel: string(owner.UID)},
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(owner, v1.VirtualMachineInstanceGroupVersionKind),
		},
	}}
	if s.isTarget() {
		p.Labels[v1.MigrationJobLabel] = string((s - slotTarget1 + slotMove1).tag())
	}
	p.Spec.NodeName, p.Status.Phase = k.node.String(), corev1.PodPending
	if k.ready {
		p.Status.Phase = corev1.PodRunning
	}
	if k.deleting {
		p.DeletionTimestamp = &moment
	}
	return p
}

// slotOf is the object of that name.
func slotOf(name string) slot { return slot(slices.Index(slotNames[:], name)) }
