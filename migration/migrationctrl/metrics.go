// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/internal/measure"
	"github.com/virtloom/virtloom/migration/queue"
)

// Metrics are those of migrations and of the slots for them, for Reconciler.Metrics and,
// as a prometheus.Collector, to be registered wherever the program's metrics are, such as
// Registry of controller-runtime's package metrics. KubeVirt's are:
//
//	kubevirt_vmi_migrations_in_{pending,scheduling,running,unset}_phase          gauges
//	kubevirt_vmi_migration_succeeded{vmi,vmim,namespace}, …_failed               gauges
//	kubevirt_vmi_migration_start_time_seconds{node,namespace,name,migration_name} gauge
//	kubevirt_vmi_migration_end_time_seconds, with status                         gauge
//	kubevirt_vmi_migration_phase_transition_time_from_creation_seconds{phase}    histogram
//	kubevirt_vmi_number_of_outdated                                              gauge
//
// This module's are:
//
//	virtloom_migration_queue_depth{priority}                 gauge
//	virtloom_migration_oldest_wait_seconds{priority}         gauge
//	virtloom_migration_slots_used{kind}, …_limit{kind}       gauges
//	virtloom_migration_nodes_at_limit{kind}                  gauge
//	virtloom_migration_targets_lending                       gauge
//	virtloom_migrations_waiting{reason}                      gauge
//	virtloom_migrations_ended_total{outcome,reason}          counter
//	virtloom_migration_phase_duration_seconds{phase}         histogram
//	virtloom_migration_passes_total{outcome}                 counter
//	virtloom_migration_writes_total{action,result}           counter
//
// Migrations are counted as their events come in; queue and slots are asked of Admission
// when they are collected, which takes time linear in the number of unfinished migrations.
// Of several replicas only the leader reports migrations.
//
// Labels are bounded, except for the series that name a migration, as KubeVirt's do: there
// are two for each running and three for each finished migration, as long as its object
// exists (the controller keeps five finished ones per VMI). Anonymous omits them.
//
// It is safe for concurrent use by one Reconciler. Create it with NewMetrics.
type Metrics struct {
	// Anonymous omits the series that name a migration. Set it before anything is
	// collected.
	Anonymous bool

	set       measure.Set
	clock     clock.PassiveClock
	admission *queue.Admission // nil before setup
	// leads reports whether this replica is the leader.
	leads measure.Leader

	phases, waiting measure.Tally
	reasons         *measure.Limited
	outdated        atomic.Int64 // -1 before it is known

	mu    sync.Mutex
	times map[types.NamespacedName]times // guarded by mu

	fromCreation, durations *prometheus.HistogramVec
	ended, passes, writes   *prometheus.CounterVec
}

var _ prometheus.Collector = (*Metrics)(nil)

// reasonsKept bounds the number of reasons; this module has fewer of its own.
const reasonsKept = 80

// NewMetrics returns the metrics for one Reconciler.
func NewMetrics() *Metrics {
	m := &Metrics{
		clock: clock.RealClock{}, leads: func() bool { return true },
		reasons: measure.NewLimited(reasonsKept), times: map[types.NamespacedName]times{},
	}
	m.outdated.Store(-1)
	m.declarePhases()
	m.declareNamed()
	m.declareSlots()
	s := &m.set
	s.ReadGauge(measure.Family{
		Name: "kubevirt_vmi_number_of_outdated", Bound: "1",
		Help: "VMIs in Pods with another image than the controller's; absent until known.",
	}, m.leads.While(func(emit measure.Emit) {
		if n := m.outdated.Load(); n >= 0 {
			emit(float64(n))
		}
	}))
	m.passes = s.Counter(measure.Family{
		Name: "virtloom_migration_passes_total", Labels: []string{"outcome"}, Bound: "5 outcomes",
		Help: "Passes over migrations, by outcome: idle, acted, gone, outrun (another write came first), failed.",
	})
	m.writes = s.Counter(measure.Family{
		Name: "virtloom_migration_writes_total", Labels: []string{"action", "result"}, Bound: "13 actions by 7 results",
		Help: "Writes for migrations, by action and result.",
	})
	return m
}

func (m *Metrics) declarePhases() {
	s := &m.set
	for _, of := range []struct {
		name   string
		phases []v1.VirtualMachineInstanceMigrationPhase
		help   string
	}{
		{"pending", []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationPending}, "Migrations that have not begun to act."},
		{"scheduling", []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationScheduling}, "Migrations whose target Pod is being scheduled or started."},
		{"running", running, "Migrations from the readiness of their target Pod to their end."},
		{"unset", []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationPhaseUnset}, "Migrations that the controller has not processed yet."},
	} {
		s.ReadGauge(measure.Family{Name: "kubevirt_vmi_migrations_in_" + of.name + "_phase", Help: of.help, Bound: "1"},
			m.leads.While(func(emit measure.Emit) { emit(m.in(of.phases)) }))
	}
	s.ReadGauge(measure.Family{
		Name: "virtloom_migrations_waiting", Labels: []string{"reason"}, Bound: "81 reasons",
		Help: "Unfinished migrations, by the reason of their condition migrationWaiting.",
	}, m.leads.While(func(emit measure.Emit) { m.waiting.Each(1, emit) }))
	m.fromCreation = s.Histogram(measure.Family{
		Name: "kubevirt_vmi_migration_phase_transition_time_from_creation_seconds", Labels: []string{"phase"}, Buckets: measure.PhaseBuckets,
		Bound: "10 phases", Help: "Time from the creation of a migration to entering the phase.",
	})
	m.durations = s.Histogram(measure.Family{
		Name: "virtloom_migration_phase_duration_seconds", Labels: []string{"phase"}, Buckets: measure.PhaseBuckets,
		Bound: "8 phases", Help: "Time that a migration spent in the phase before it entered the next.",
	})
	m.ended = s.Counter(measure.Family{
		Name: "virtloom_migrations_ended_total", Labels: []string{"outcome", "reason"}, Bound: "succeeded, and failed for 81 reasons",
		Help: "Migrations that have ended, by outcome and reason of failure.",
	})
}

// running are the phases that KubeVirt counts as running.
var running = []v1.VirtualMachineInstanceMigrationPhase{
	v1.MigrationScheduled, v1.MigrationPreparingTarget, v1.MigrationTargetReady, v1.MigrationRunning,
	v1.MigrationWaitingForSync, v1.MigrationSynchronizing,
}

// in counts the migrations in the phases.
func (m *Metrics) in(phases []v1.VirtualMachineInstanceMigrationPhase) float64 {
	sum := 0.0
	m.phases.Each(1, func(n float64, labels ...string) {
		for _, p := range phases {
			if labels[0] == string(p) {
				sum += n
			}
		}
	})
	return sum
}

// setup binds the metrics to a reconciler and subscribes them to all migrations.
func (m *Metrics) setup(ctx context.Context, mgr ctrl.Manager, r *Reconciler) error {
	if m == nil {
		return nil
	}
	m.clock = r.Clock
	m.mu.Lock()
	m.admission = r.Admission
	m.mu.Unlock()
	m.leads = measure.Elected(mgr.Elected())
	informer, err := mgr.GetCache().GetInformer(ctx, &v1.VirtualMachineInstanceMigration{})
	if err != nil {
		return fmt.Errorf("migrationctrl: count the migrations: %w", err)
	}
	if _, err := informer.AddEventHandler(m.handler()); err != nil {
		return fmt.Errorf("migrationctrl: count the migrations: %w", err)
	}
	return nil
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) { m.set.Describe(ch) }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) { m.set.Collect(ch) }

// Families describes the metrics, for documentation.
func (m *Metrics) Families() []measure.Family { return m.set.Families() }
