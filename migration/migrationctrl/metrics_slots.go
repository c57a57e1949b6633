// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"github.com/virtloom/virtloom/internal/measure"
	"github.com/virtloom/virtloom/internal/vmipatch"
	"github.com/virtloom/virtloom/migration/queue"
)

// priorities maps priorities to the values of spec.priority.
var priorities = map[int]string{
	queue.PriorityCritical: "system-critical", queue.PriorityUser: "user-triggered",
	queue.PriorityMaintenance: "system-maintenance", queue.PriorityUnset: "none",
}

// The kinds of slots.
const (
	slotsCluster  = "cluster"
	slotsOutbound = "outbound"
	slotsInbound  = "inbound"
)

func (m *Metrics) declareSlots() {
	s := &m.set
	byPriority, kinds := []string{"priority"}, []string{"kind"}
	s.ReadGauge(measure.Family{
		Name: "virtloom_migration_queue_depth", Labels: byPriority, Bound: "4 priorities",
		Help: "Migrations that wait for slots, by their own priority.",
	}, m.ofAdmission(func(a *queue.Admission, emit measure.Emit) {
		waiting := a.Waiting()
		for p, name := range priorities {
			emit(float64(waiting[p].Count), name)
		}
	}))
	s.ReadGauge(measure.Family{
		Name: "virtloom_migration_oldest_wait_seconds", Labels: byPriority, Bound: "4 priorities",
		Help: "Longest current wait for slots; 0 when no migration waits.",
	}, m.ofAdmission(func(a *queue.Admission, emit measure.Emit) {
		waiting, now := a.Waiting(), m.clock.Now()
		for p, name := range priorities {
			age := 0.0
			if l := waiting[p]; l.Count > 0 {
				age = max(now.Sub(l.Oldest).Seconds(), 0)
			}
			emit(age, name)
		}
	}))
	s.ReadGauge(measure.Family{
		Name: "virtloom_migration_slots_used", Labels: kinds, Bound: "3 kinds",
		Help: "Slots in use: of the cluster, and for leaving (outbound) and entering (inbound) the node with the most in use.",
	}, m.ofAdmission(func(a *queue.Admission, emit measure.Emit) {
		u := a.Usage()
		emit(float64(u.Cluster), slotsCluster)
		emit(float64(mostUsed(u.Outbound)), slotsOutbound)
		emit(float64(mostUsed(u.Inbound)), slotsInbound)
	}))
	s.ReadGauge(measure.Family{
		Name: "virtloom_migration_slots_limit", Labels: kinds, Bound: "3 kinds",
		Help: "Limits of slots: of the cluster, and for leaving (outbound) and entering (inbound) each node.",
	}, m.ofAdmission(func(a *queue.Admission, emit measure.Emit) {
		l := a.Usage().Limits
		emit(float64(l.Cluster), slotsCluster)
		emit(float64(l.Outbound), slotsOutbound)
		emit(float64(l.Inbound), slotsInbound)
	}))
	s.ReadGauge(measure.Family{
		Name: "virtloom_migration_nodes_at_limit", Labels: kinds, Bound: "2 kinds",
		Help: "Nodes without a free slot for leaving (outbound) or entering (inbound).",
	}, m.ofAdmission(func(a *queue.Admission, emit measure.Emit) {
		u := a.Usage()
		emit(float64(nodesAtLimit(u.Outbound, u.Limits.Outbound)), slotsOutbound)
		emit(float64(nodesAtLimit(u.Inbound, u.Limits.Inbound)), slotsInbound)
	}))
	s.ReadGauge(measure.Family{
		Name: "virtloom_migration_targets_lending", Bound: "1",
		Help: "Migrations with a target Pod that have lent their slots, because the Pod is unschedulable or its node has no slot.",
	}, m.ofAdmission(func(a *queue.Admission, emit measure.Emit) { emit(float64(a.Usage().Lent)) }))
}

// ofAdmission reads nothing before this replica has an Admission.
func (m *Metrics) ofAdmission(read func(*queue.Admission, measure.Emit)) func(measure.Emit) {
	return m.leads.While(func(emit measure.Emit) {
		m.mu.Lock()
		a := m.admission
		m.mu.Unlock()
		if a != nil {
			read(a, emit)
		}
	})
}

func mostUsed(used map[string]int) int {
	n := 0
	for _, u := range used {
		n = max(n, u)
	}
	return n
}

func nodesAtLimit(used map[string]int, limit int) int {
	n := 0
	for _, u := range used {
		if u >= limit {
			n++
		}
	}
	return n
}

// The outcomes of a pass.
const (
	passIdle     = "idle"
	passActed    = "acted"
	passGone     = "gone"
	passLostRace = "outrun"
	passFailed   = "failed"
)

// passed counts a pass by its outcome.
func (m *Metrics) passed(outcome string, err error) {
	switch {
	case m == nil:
		return
	case vmipatch.LostRace(err):
		outcome = passLostRace
	case err != nil:
		outcome = passFailed
	}
	m.passes.WithLabelValues(outcome).Inc()
}

// Writes of a pass beside the actions of a plan.
const (
	actionStore   = "Store"
	actionRelease = "Release"
)

// wrote counts a write and its result.
func (m *Metrics) wrote(action string, err error) {
	if m != nil {
		m.writes.WithLabelValues(action, vmipatch.Result(err)).Inc()
	}
}

// outdatedAre sets the number of outdated VMIs.
func (m *Metrics) outdatedAre(n int) {
	if m != nil {
		m.outdated.Store(int64(n))
	}
}
