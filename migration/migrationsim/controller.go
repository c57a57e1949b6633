// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/placement"
	"github.com/virtloom/virtloom/migration/policy"
	"github.com/virtloom/virtloom/migration/queue"
)

// again is the delay after a pass with a rejected write.
const again = 15 * time.Second

// controller is the controller of migrations.
type controller struct{ *Sim }

// wake schedules a pass over the migration, unless one is scheduled.
func (s controller) wake(j *job) {
	if j.due || j.record.gone {
		return
	}
	j.due = true
	s.after(s.o.Latency.Watch, func() { s.pass(j) })
}

func (s controller) wakeAll(keys []types.NamespacedName) {
	for _, k := range keys {
		if j := s.jobs[k]; j != nil {
			s.wake(j)
		}
	}
}

// changed wakes the watchers of the VMI and its Pods.
func (s controller) changed(g *simulatedGuest) {
	for _, j := range g.jobs {
		if !j.done() {
			s.wake(j)
		}
	}
}

// done reports whether nothing is left to do for the migration.
func (j *job) done() bool {
	return j.m.IsFinal() && !slices.Contains(j.m.Finalizers, v1.VirtualMachineInstanceMigrationFinalizer)
}

// pass is a pass of the controller: gather, reserve, decide, act, decide, store, settle.
func (s controller) pass(j *job) {
	j.due = false
	if j.record.gone || j.unplayed || s.err != nil {
		return
	}
	s.ledger.passes++
	snap := s.snapshot(j)
	snap.Slot = s.reserve(j, snap)
	plan := migration.Decide(snap, s.clock.now)
	if acts := len(plan.Actions); acts > 0 {
		slot := snap.Slot
		failures := executor(s).act(j, plan)
		if j.unplayed {
			return
		}
		snap = s.snapshot(j)
		snap.Slot, snap.Failures, snap.BackupAborted = slot, failures, len(failures) == 0 && slices.ContainsFunc(plan.Actions, aborts)
		plan = migration.Decide(snap, s.clock.now)
		if s.retry(j, failures); len(failures) == 0 {
			s.wake(j) // the writes are observed
		}
	}
	if changed := s.store(j, plan); changed || len(snap.Failures) > 0 {
		if _, wanted := snap.Claim(s.clock.now); !wanted || j.m.IsFinal() {
			s.wakeAll(s.admission.Release(keyOf(j.m), s.clock.now))
		}
	}
	s.plan(j, plan)
}

// retry schedules another pass after a failed write: soon, or when what it waits for may have
// happened.
func (s controller) retry(j *job, failures map[migration.Verb]error) {
	for _, err := range failures {
		var node *migration.NoNodeError
		var quota *placement.QuotaError
		if errors.As(err, &node) || errors.As(err, &quota) {
			s.turnedDown = append(s.turnedDown, j)
			continue
		}
		s.clock.at(s.clock.now.Add(again), func() { s.wake(j) })
	}
}

// plan schedules a pass for when time alone lets the migration continue, or fail.
func (s controller) plan(j *job, plan migration.Plan) {
	next := plan.Deadline
	if !plan.RequeueAt.IsZero() && (next.IsZero() || plan.RequeueAt.Before(next)) {
		next = plan.RequeueAt
	}
	if next.IsZero() || next.Equal(j.next) {
		return
	}
	j.next = next
	s.clock.at(next.Add(time.Millisecond), func() {
		if j.next.Equal(next) && !j.m.IsFinal() {
			s.pass(j)
		}
	})
}

// snapshot returns what the controller gathers.
func (s controller) snapshot(j *job) migration.Snapshot {
	g := j.guest
	snap := migration.Snapshot{
		Migration: j.m, VMI: g.VMI, Config: s.o.Config,
		TargetPod: migration.TargetPod(g.pods, j.m.UID), Targets: migration.TargetOwners(g.pods, j.m.UID), Claims: g.claims,
		Launchers: g.pods,
	}
	snap.Attachments = migration.Attachments(g.pods, snap.TargetPod)
	if len(g.jobs) > 1 {
		snap.Others = make([]*v1.VirtualMachineInstanceMigration, 0, len(g.jobs)-1)
		for _, o := range g.jobs {
			if o != j {
				snap.Others = append(snap.Others, o.m)
			}
		}
	}
	recorded := ""
	if p := j.m.Status.Phase; p != v1.MigrationPhaseUnset && p != v1.MigrationPending {
		recorded = snap.SourcePodName()
	}
	if recorded == "" {
		snap.SourcePod = migration.CurrentPod(g.VMI, g.pods, j.m.UID)
	} else if i := slices.IndexFunc(g.pods, func(p *corev1.Pod) bool { return p.Name == recorded }); i >= 0 {
		snap.SourcePod = g.pods[i]
	}
	snap.Resolution = s.resolve(g)
	return snap
}

// resolve finds the policy of the VMI, once. An invalid policy is no fault of the simulation: the
// resolution keeps the error, for which the migration waits.
func (s controller) resolve(g *simulatedGuest) policy.Resolution {
	if g.resolution == nil {
		match := s.policies.Match(g.VMI.Labels, s.o.NamespaceLabels[g.key.Namespace])
		r, _ := policy.Resolve(match, s.o.Config.Cluster)
		g.resolution = &r
	}
	return *g.resolution
}

// reserve claims the slots that the migration needs, or releases those it does not need.
func (s controller) reserve(j *job, snap migration.Snapshot) queue.Verdict {
	claim, wanted := snap.Claim(s.clock.now)
	if !wanted {
		s.wakeAll(s.admission.Release(keyOf(j.m), s.clock.now))
		return queue.Verdict{}
	}
	v, woken := s.admission.Ask(claim, s.clock.now)
	s.wakeAll(woken)
	if v.Held && j.record.Admitted.IsZero() {
		j.record.Admitted = s.clock.now
	}
	return v
}

func aborts(a migration.Action) bool { return a.Verb == migration.AbortBackup }

// store writes the status, releases finished migrations, and reports whether anything
// changed.
func (s controller) store(j *job, plan migration.Plan) bool {
	was := j.m.IsFinal()
	changed := !equality.Semantic.DeepEqual(j.m.Status, plan.Status)
	if changed {
		j.record.note(plan, s.clock.now)
		j.m.Status = plan.Status
		s.wake(j)
	}
	if j.m.IsFinal() && !was {
		if j.holding {
			j.holding = false
			s.ledger.hold(-1)
		}
		s.ledger.ended()
		evacuator(s).reconsider(j.guest, s.clock.now.Add(s.o.Latency.Watch))
		for _, o := range j.guest.jobs {
			if o != j && !o.done() {
				s.wake(o)
			}
		}
	}
	if plan.Release && j.m.IsFinal() {
		j.m.Finalizers = slices.DeleteFunc(j.m.Finalizers, func(f string) bool { return f == v1.VirtualMachineInstanceMigrationFinalizer })
		if j.m.DeletionTimestamp != nil {
			s.forget(j)
		}
	}
	return changed
}

// forget removes a migration that is deleted.
func (s controller) forget(j *job) {
	if j == nil {
		return
	}
	delete(s.jobs, keyOf(j.m))
	j.record.gone = true
	j.guest.jobs = slices.DeleteFunc(j.guest.jobs, func(o *job) bool { return o == j })
	s.wakeAll(s.admission.Release(keyOf(j.m), s.clock.now))
	s.changed(j.guest)
}

// restore fills Admission as a controller does at its start.
func (s controller) restore() {
	var claims []queue.Claim
	for _, j := range s.all {
		if j.m.IsFinal() {
			continue
		}
		if c, wanted := s.snapshot(j).Claim(s.clock.now); wanted {
			claims = append(claims, c)
		}
	}
	s.wakeAll(s.admission.Restore(claims, s.clock.now))
	used, limits := s.admission.Usage(), s.o.Config.Limits
	s.lifted = used.Cluster > limits.Cluster
	for _, n := range used.Outbound {
		s.lifted = s.lifted || n > limits.Outbound
	}
	for _, n := range used.Inbound {
		s.lifted = s.lifted || n > limits.Inbound
	}
}
