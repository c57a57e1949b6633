// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/queue"
)

// Result is the outcome of a simulation.
type Result struct {
	// Start is when the clock began, End when the last migration ended.
	Start, End time.Time
	// Makespan is from the creation of the first migration to End.
	Makespan time.Duration
	// Migrations are all migrations in the order of their creation.
	Migrations []Migration
	// Peak is the maximum number of migrations that acted in parallel.
	Peak Peak
	// PingPongs are VMIs that returned too soon.
	PingPongs []PingPong
	// Passes is the number of passes of the controller.
	Passes int
}

// Migration is the course of one migration. Times are zero for events that did not happen.
type Migration struct {
	// Namespace, Name and Guest name it, Priority is that of its spec.
	Namespace, Name, Guest string
	Priority               int
	// Automatic says that a controller, not a user, created it.
	Automatic bool
	// Source and Target are the nodes; Target is empty until it is known.
	Source, Target string
	// Created, Admitted, Begun and Ended are when it was created, got its slots, began to
	// transfer memory, and ended.
	Created, Admitted, Begun, Ended time.Time
	// Phase is the last phase, Reason and Message its explanation.
	Phase   v1.VirtualMachineInstanceMigrationPhase
	Reason  migration.Reason
	Message string

	gone bool
}

// Wait returns how long the migration waited for its slots, until now if it still does.
func (m Migration) Wait(now time.Time) time.Duration {
	if m.Admitted.IsZero() {
		return now.Sub(m.Created)
	}
	return m.Admitted.Sub(m.Created)
}

// Peak holds the maximum numbers of migrations that acted in parallel.
type Peak struct {
	// Cluster, Outbound and Inbound were running, in the cluster, off one node and to one
	// node: from the handoff until the end.
	Cluster, Outbound, Inbound int
	// Pods had a target Pod. Migrations that cannot use their slots lend them, so this may exceed
	// Limits.Cluster.
	Pods int
}

// PingPong is a VMI that an automatic migration brought back to a node that it had left by an
// automatic migration less than Options.PingPong before.
type PingPong struct {
	Namespace, Guest, Node string
	Left, Back             time.Time
}

// Result returns what has happened so far.
func (s *Sim) Result() Result {
	r := Result{
		Start: s.o.Start, Migrations: make([]Migration, 0, len(s.all)), Peak: s.ledger.peak,
		PingPongs: s.ledger.pingPong, Passes: s.ledger.passes,
	}
	var first time.Time
	for _, j := range s.all {
		r.Migrations = append(r.Migrations, j.record)
		if first.IsZero() || j.record.Created.Before(first) {
			first = j.record.Created
		}
		if j.record.Ended.After(r.End) {
			r.End = j.record.Ended
		}
	}
	if r.End.After(first) {
		r.Makespan = r.End.Sub(first)
	}
	return r
}

func newMigration(m *v1.VirtualMachineInstanceMigration, g *simulatedGuest, now time.Time) Migration {
	created := m.CreationTimestamp.Time
	if now.Sub(created) < time.Second {
		created = now // the API stores whole seconds
	}
	out := Migration{
		Namespace: m.Namespace, Name: m.Name, Guest: m.Spec.VMIName, Priority: queue.PriorityOf(m.Spec.Priority),
		Automatic: automatic(m), Source: g.VMI.Status.NodeName, Created: created, Phase: m.Status.Phase,
	}
	if m.IsFinal() {
		out.Ended = migration.EnteredAt(m)
	}
	return out
}

// note records the plan's explanation.
func (m *Migration) note(p migration.Plan, now time.Time) {
	m.Phase, m.Reason, m.Message = p.Status.Phase, p.Reason, p.Message
	if ms := p.Status.MigrationState; ms != nil && ms.TargetNode != "" {
		m.Target = ms.TargetNode
	}
	if c := migration.Condition(p.Status, migration.ConditionFailed); c != nil && c.Status == corev1.ConditionTrue {
		m.Reason, m.Message = migration.Reason(c.Reason), c.Message
	}
	final := p.Status.Phase == v1.MigrationSucceeded || p.Status.Phase == v1.MigrationFailed
	if final && m.Ended.IsZero() {
		m.Ended = now
	}
}
