// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirt "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/policy"
	"github.com/virtloom/virtloom/migration/queue"
)

// moveKey is what decides what migration.Decide says. It can be compared.
type moveKey struct {
	slot      slot
	me, other moving
	g         *guest
	uid       uint8
	deleting  bool
	pods      podKeys
	unseen    bool
	fault     string
	now       int8
}

// movePlan is what it says. The status is written first, and then, where nothing else is
// left, the finalizer goes.
type movePlan struct {
	acts           []act
	write, release *movement
	waits          bool
}

// moveConfig bounds the phases of migrations.
var moveConfig = migration.Config{
	KeepFinished: -1, PodsFollowGuests: true,
	Timeouts: migration.Timeouts{
		Pending: 4 * tick, Unschedulable: 3 * tick, TargetPod: 3 * tick, HandOff: 2 * tick, Prepare: 2 * tick, Begin: 2 * tick, Complete: 2 * tick,
	},
	Cluster: &kubevirt.MigrationConfiguration{CompletionTimeoutPerGiB: &aSecond, ProgressTimeout: &aSecond},
}.WithDefaults()

// errFailed is why an action failed of which nothing more is known.
var errFailed = errors.New("it failed")

// snapshot makes what package migration asks for, as package migrationctrl gathers it.
func (k moveKey) snapshot() migration.Snapshot {
	s := migration.Snapshot{Migration: k.me.migration(), Config: moveConfig}
	if k.other.movement != nil {
		s.Others = append(s.Others, k.other.migration())
	}
	if k.unseen {
		s.Pending = "a write"
	}
	if k.fault != "" {
		s.Failures = map[migration.Verb]error{migration.Verb(k.fault): errFailed}
	}
	if k.g != nil {
		s.VMI = migration.VMIOf(s.Migration, k.g.instance(k.uid, k.deleting))
	}
	if s.VMI == nil {
		return s
	}
	s.Launchers, _ = k.pods.pods(s.VMI)
	s.TargetPod, s.Targets = migration.TargetPod(s.Launchers, s.Migration.UID), migration.TargetOwners(s.Launchers, s.Migration.UID)
	s.SourcePod = sourcePod(s)
	s.Resolution, _ = policy.Resolve(policy.Match{}, s.Config.Cluster)
	if _, wanted := s.Claim(clockAt(k.now)); wanted && !k.unseen {
		s.Slot = queue.Verdict{Asked: true, Held: true, Inbound: true} // there is room for two
	}
	return s
}

// sourcePod is the Pod that the migration has recorded as its source, or that the guest is in before it has.
func sourcePod(s migration.Snapshot) *corev1.Pod {
	recorded := ""
	if p := s.Migration.Status.Phase; p != kubevirt.MigrationPhaseUnset && p != kubevirt.MigrationPending {
		recorded = s.SourcePodName()
	}
	if recorded == "" {
		return migration.CurrentPod(s.VMI, s.Launchers, s.Migration.UID)
	}
	for _, p := range s.Launchers {
		if p.Name == recorded {
			return p
		}
	}
	return nil
}

// planMove asks the real migration.Decide.
func (m controllers) planMove(k moveKey) movePlan {
	return m.known.moves.of(k, func() movePlan {
		s := k.snapshot()
		plan := migration.Decide(s, clockAt(k.now))
		out := movePlan{waits: !plan.Deadline.IsZero() || !plan.RequeueAt.IsZero()}
		for i := range plan.Actions {
			out.acts = append(out.acts, m.actOf(k, &s, &plan.Actions[i]))
		}
		stored := s.Migration.DeepCopy()
		stored.Status = *plan.Status.DeepCopy()
		was := m.known.movement(s.Migration)
		now := m.known.movement(stored)
		if now != was {
			out.write = now
		}
		if plan.Release && now.finalizer && k.fault == "" {
			stored.Finalizers = slices.DeleteFunc(stored.Finalizers, func(f string) bool {
				return f == kubevirt.VirtualMachineInstanceMigrationFinalizer
			})
			out.release = m.known.movement(stored)
		}
		return out
	})
}

// actOf is what an action writes.
func (m controllers) actOf(k moveKey, s *migration.Snapshot, a *migration.Action) act {
	out := act{fault: string(a.Verb)}
	switch a.Verb {
	case migration.Adopt:
		next := s.Migration.DeepCopy()
		next.Finalizers = append(next.Finalizers, kubevirt.VirtualMachineInstanceMigrationFinalizer)
		v1.SetMetaDataLabel(&next.ObjectMeta, kubevirt.MigrationSelectorLabel, next.Spec.VMIName)
		if s.VMI != nil {
			v1.SetMetaDataAnnotation(&next.ObjectMeta, migration.VMIUID, string(s.VMI.UID))
		}
		out.verb, out.slot, out.uid, out.move = update, k.slot, 1, m.known.movement(next)
	case migration.CreateTarget:
		out.verb, out.slot = create, k.slot.target()
	case migration.DeletePod:
		at := slotOf(a.Pod.Name)
		out.verb, out.slot, out.uid, out.unversioned = remove, at, k.pods[at].uid, true
		if fullUID(at, out.uid) != a.Pod.UID {
			cannot("%s is deleted by another UID than it has", a.Pod.Name)
		}
	case migration.ChangeVMI:
		next := s.VMI.DeepCopy()
		if err := a.Change.Apply(next); err != nil {
			cannot("a change does not apply: %v", err)
		}
		out.verb, out.slot, out.uid, out.guest, out.guards = update, slotVMI, k.uid, m.known.guest(next), byMove
	case migration.Collect:
		out.verb, out.slot, out.uid, out.untold = remove, slotOf(a.Name), 1, true
	default:
		cannot("action %s is not modelled", a.Verb)
	}
	return out
}

// moveKeyOf is the question that a pass over a migration asks now.
func (ps *pass) moveKeyOf(now int8) moveKey {
	k := moveKey{
		slot: ps.owner, me: movingOf(ps.snap[ps.owner]), other: movingOf(ps.snap[slotMove1+slotMove2-ps.owner]),
		pods: podsOf(&ps.snap), unseen: ps.unseen, fault: ps.fault, now: now,
	}
	if v := ps.snap[slotVMI]; v != nil {
		k.g, k.uid, k.deleting = v.vmi, v.uid, v.deleting
	}
	return k
}

// gatherMove is what a pass over a migration begins with; nil if there is none.
func gatherMove(of slot, sees *[slotCount]*object, unseen bool) *pass {
	if sees[of] == nil {
		return nil
	}
	return &pass{owner: of, snap: *sees, unseen: unseen}
}
