// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/internal/measure"
	"github.com/virtloom/virtloom/internal/vmipatch"
	"github.com/virtloom/virtloom/vmi"
)

// Metrics are the metrics of VMIs and of passes over them, for Reconciler.Metrics. They are a
// prometheus.Collector, to be registered with the program's registry, such as Registry of
// controller-runtime's package metrics. The first four are KubeVirt's:
//
//	kubevirt_vmi_phase_count{phase,node}                                     gauge
//	kubevirt_vmi_phase_transition_time_seconds{phase,last_phase}             histogram
//	kubevirt_vmi_phase_transition_time_from_creation_seconds{phase}          histogram
//	kubevirt_vmi_phase_transition_time_from_deletion_seconds{phase}          histogram
//	virtloom_vmi_waiting{reason,by}                                          gauge
//	virtloom_vmi_oldest_wait_seconds{reason,by}                              gauge
//	virtloom_vmi_wait_duration_seconds{by}                                   histogram
//	virtloom_vmi_passes_total{outcome}                                       counter
//	virtloom_vmi_writes_total{action,result}                                 counter
//	virtloom_vmi_cache_last_event_timestamp_seconds                          gauge
//
// VMIs are counted by their events, not read from the cache at collection time: with 10,000
// VMIs a collection costs as much as with ten, and the timed phase transitions are events
// anyway. Waits are those of the last pass.
//
// Of several replicas only the leader reports VMIs, so that a sum over all replicas is
// correct. Labels are bounded: no series names a VMI, a node is a label where KubeVirt has
// one, and of reasons set by other writers the first 64 are distinguished. Labels of
// KubeVirt's kubevirt_vmi_phase_count that contain values set by owners (os, workload, flavor
// and so on) are omitted; a sum over them is the same. The phases' times are those of the API,
// in whole seconds.
//
// Metrics is safe for concurrent use, by one Reconciler. Create it with NewMetrics.
type Metrics struct {
	set   measure.Set
	clock clock.PassiveClock
	scope Scope
	// leads reports whether this replica is the leader.
	leads measure.Leader

	vmis      measure.Tally // by phase and node
	waits     waits
	lastEvent atomic.Int64 // in nanoseconds since 1970; 0 before the first

	between, fromCreation, fromDeletion *prometheus.HistogramVec
	passes, writes                      *prometheus.CounterVec
}

var _ prometheus.Collector = (*Metrics)(nil)

const phasesBound = "9 phases"

// NewMetrics returns the metrics for one Reconciler.
func NewMetrics() *Metrics {
	m := &Metrics{clock: clock.RealClock{}, leads: func() bool { return true }}
	s := &m.set
	s.ReadGauge(measure.Family{
		Name: "kubevirt_vmi_phase_count", Labels: []string{"phase", "node"}, Bound: "9 phases for each node, and for VMIs without one",
		Help: "Number of VMIs by phase, in lower case, and by node.",
	}, m.leads.While(func(emit measure.Emit) { m.vmis.Each(2, emit) }))
	m.between = s.Histogram(measure.Family{
		Name: "kubevirt_vmi_phase_transition_time_seconds", Labels: []string{"phase", "last_phase"}, Buckets: measure.PhaseBuckets,
		Bound: "9 phases by 9 preceding ones", Help: "Time between two phase transitions of a VMI.",
	})
	m.fromCreation = s.Histogram(measure.Family{
		Name: "kubevirt_vmi_phase_transition_time_from_creation_seconds", Labels: []string{"phase"}, Buckets: measure.PhaseBuckets,
		Bound: phasesBound, Help: "Time from the creation of a VMI to its transition to the phase.",
	})
	m.fromDeletion = s.Histogram(measure.Family{
		Name: "kubevirt_vmi_phase_transition_time_from_deletion_seconds", Labels: []string{"phase"}, Buckets: measure.PhaseBuckets,
		Bound: "2 phases", Help: "Time from the deletion of a VMI to its transition to the final phase.",
	})
	m.waits.declare(s, m)
	m.passes = s.Counter(measure.Family{
		Name: "virtloom_vmi_passes_total", Labels: []string{"outcome"}, Bound: "7 outcomes",
		Help: "Reconcile passes over VMIs by outcome: idle, acted, held (waiting for the cache to observe own writes), gone, outrun (concurrent write), postponed (status write deferred under load), failed.",
	})
	m.writes = s.Counter(measure.Family{
		Name: "virtloom_vmi_writes_total", Labels: []string{"action", "result"}, Bound: "9 actions by 7 results",
		Help: "Writes for VMIs by action and result.",
	})
	s.ReadGauge(measure.Family{
		Name: "virtloom_vmi_cache_last_event_timestamp_seconds", Bound: "1",
		Help: "Time of the last VMI event of the cache, in seconds since 1970; absent before the first event.",
	}, func(emit measure.Emit) {
		if at := m.lastEvent.Load(); at != 0 {
			emit(float64(at) / 1e9)
		}
	})
	return m
}

// setup binds the metrics to a reconciler and registers the event handler.
func (m *Metrics) setup(ctx context.Context, mgr ctrl.Manager, r *Reconciler) error {
	if m == nil {
		return nil
	}
	m.clock, m.scope = r.Clock, r.Scope
	m.leads = measure.Elected(mgr.Elected())
	informer, err := mgr.GetCache().GetInformer(ctx, &v1.VirtualMachineInstance{})
	if err != nil {
		return fmt.Errorf("vmictrl: count VirtualMachineInstances: %w", err)
	}
	if _, err := informer.AddEventHandler(m.handler()); err != nil {
		return fmt.Errorf("vmictrl: count VirtualMachineInstances: %w", err)
	}
	return nil
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) { m.set.Describe(ch) }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) { m.set.Collect(ch) }

// Families returns the descriptions of the metrics, for documentation.
func (m *Metrics) Families() []measure.Family { return m.set.Families() }

// Outcomes of a pass.
const (
	passIdle     = "idle"
	passActed    = "acted"
	passHeld     = "held"
	passGone     = "gone"
	passLostRace = "outrun"
	passFailed   = "failed"
	// passPostponed is a pass that deferred its status write under load.
	passPostponed = "postponed"
)

// passed counts a pass; an error overrides its outcome.
func (m *Metrics) passed(outcome string, err error) {
	if m == nil {
		return
	}
	if err != nil {
		outcome = passFailed
	}
	m.passes.WithLabelValues(outcome).Inc()
}

// actionStore is the action label of the patch of a VMI, which is not an action of a plan.
const actionStore = "Store"

// wrote counts a write and its result.
func (m *Metrics) wrote(action string, err error) {
	if m == nil {
		return
	}
	m.writes.WithLabelValues(action, vmipatch.Result(err)).Inc()
}

// planned records what the VMI waits for according to the plan.
func (m *Metrics) planned(key types.NamespacedName, plan vmi.Plan) {
	if m == nil {
		return
	}
	if len(plan.Waits) == 0 {
		m.waits.over(key, m.clock.Now())
		return
	}
	m.waits.are(key, plan.Waits[0], m.clock.Now())
}

// forget drops the wait of a VMI that no longer exists.
func (m *Metrics) forget(key types.NamespacedName) {
	if m != nil {
		m.waits.over(key, m.clock.Now())
	}
}
