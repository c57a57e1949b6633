// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// Result is what happened.
type Result struct {
	// Start is when the clock began, End when the last migration ended.
	Start, End time.Time
	// Makespan is from the creation of the first migration to End.
	Makespan time.Duration
	// Migrations are all migrations in the order of their creation.
	Migrations []Migration
	// Peak is how many acted at a time at most.
	Peak Peak
	// PingPongs are guests that came back too soon.
	PingPongs []PingPong
	// Passes is how often the controller decided.
	Passes int
}

// Migration is the course of one migration. Times are zero for what did not happen.
type Migration struct {
	// Namespace, Name and Guest name it, Priority is that of its spec.
	Namespace, Name, Guest string
	Priority               int
	// Automatic says that no user asked for it.
	Automatic bool
	// Source and Target are the nodes; Target is empty until there is one.
	Source, Target string
	// Created, Admitted, Begun and Ended are when it was made, had its slots, moved
	// memory, and ended.
	Created, Admitted, Begun, Ended time.Time
	// Phase is the last one, Reason and Message why it is that.
	Phase   v1.VirtualMachineInstanceMigrationPhase
	Reason  migration.Reason
	Message string

	gone bool
}

// Wait is how long the migration waited for its slots, as of now if it still does.
func (m Migration) Wait(now time.Time) time.Duration {
	if m.Admitted.IsZero() {
		return now.Sub(m.Created)
	}
	return m.Admitted.Sub(m.Created)
}

// Peak is how many migrations acted at a time at most.
type Peak struct {
	// Cluster, Outbound and Inbound moved guests, in the cluster, off one node and to
	// one node: from the hand-over until the end.
	Cluster, Outbound, Inbound int
	// Pods had a target Pod. Those that cannot use their slots lend them, so there may be more than
	// Limits.Cluster.
	Pods int
}

// PingPong is a guest that an automatic migration brought to a node, which it had
// left by an automatic migration less than Options.PingPong before.
type PingPong struct {
	Namespace, Guest, Node string
	Left, Back             time.Time
}

// Result tells what has happened so far.
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

func newMigration(m *v1.VirtualMachineInstanceMigration, g *guest, now time.Time) Migration {
	created := m.CreationTimestamp.Time
	if now.Sub(created) < time.Second {
		created = now // the API stores whole seconds
	}
	out := Migration{
		Namespace: m.Namespace, Name: m.Name, Guest: m.Spec.VMIName, Priority: migration.PriorityOf(m.Spec.Priority),
		Automatic: automatic(m), Source: g.VMI.Status.NodeName, Created: created, Phase: m.Status.Phase,
	}
	if m.IsFinal() {
		out.Ended = ended(m)
	}
	return out
}

// ended is when a migration has ended that has.
func ended(m *v1.VirtualMachineInstanceMigration) time.Time {
	for _, p := range m.Status.PhaseTransitionTimestamps {
		if p.Phase == m.Status.Phase {
			return p.PhaseTransitionTimestamp.Time
		}
	}
	return m.CreationTimestamp.Time
}

// note takes over what a plan says.
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
