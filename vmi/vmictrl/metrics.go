// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/internal/measure"
	"github.com/virtloom/virtloom/internal/vmipatch"
	"github.com/virtloom/virtloom/vmi"
)

// Metrics are those of the guests and of the passes over them, for Reconciler.Metrics and,
// as a prometheus.Collector, to be registered wherever the program's metrics are, such as
// Registry of controller-runtime's package metrics. The first four are KubeVirt's:
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
// What there is of guests is counted as their events come in, not read from the cache when
// it is collected: with 10,000 guests a collection costs as much as with ten, and the
// changes of phases, which are timed, are events in any case. What guests wait for is as
// their last pass found it.
//
// Of several replicas only the one that leads tells of guests, so that a sum over all is
// the truth. Labels are bounded: no series names a guest, a node is a label where KubeVirt
// has one, and of reasons that others write the first 64 are told apart. KubeVirt's labels
// of kubevirt_vmi_phase_count that hold what owners write (os, workload, flavor and so on)
// are left out; a sum over them is the same. The phases' times are those of the API, which
// keeps whole seconds.
//
// It is safe for concurrent use, of one Reconciler. Create it with NewMetrics.
type Metrics struct {
	set   measure.Set
	clock clock.PassiveClock
	scope Scope
	// leads tells whether this replica is the one that acts.
	leads func() bool

	guests    measure.Tally // by phase and node
	waits     waits
	lastEvent atomic.Int64 // in nanoseconds since 1970; 0 before the first

	between, fromCreation, fromDeletion *prometheus.HistogramVec
	passes, writes                      *prometheus.CounterVec
}

var _ prometheus.Collector = (*Metrics)(nil)

// phaseBuckets, in seconds, are KubeVirt's for times between phases: from half a second to
// an hour.
var phaseBuckets = []float64{.5, 1, 2, 5, 10, 20, 30, 40, 50, 60, 90, 120, 180, 300, 600, 1200, 1800, 3600}

const phasesBound = "9 phases"

// NewMetrics returns the metrics for one Reconciler.
func NewMetrics() *Metrics {
	m := &Metrics{clock: clock.RealClock{}, leads: func() bool { return true }}
	s := &m.set
	s.ReadGauge(measure.Family{
		Name: "kubevirt_vmi_phase_count", Labels: []string{"phase", "node"}, Bound: "9 phases for each node, and for guests without one",
		Help: "Guests by phase, in lower case, and by the node they are on.",
	}, m.whileLeading(func(emit measure.Emit) { m.guests.Each(2, emit) }))
	m.between = s.Histogram(measure.Family{
		Name: "kubevirt_vmi_phase_transition_time_seconds", Labels: []string{"phase", "last_phase"}, Buckets: phaseBuckets,
		Bound: "9 phases by 9 they come after", Help: "Time from when a guest entered a phase to when it entered the next.",
	})
	m.fromCreation = s.Histogram(measure.Family{
		Name: "kubevirt_vmi_phase_transition_time_from_creation_seconds", Labels: []string{"phase"}, Buckets: phaseBuckets,
		Bound: phasesBound, Help: "Time from the creation of a guest to when it entered the phase.",
	})
	m.fromDeletion = s.Histogram(measure.Family{
		Name: "kubevirt_vmi_phase_transition_time_from_deletion_seconds", Labels: []string{"phase"}, Buckets: phaseBuckets,
		Bound: "2 phases", Help: "Time from the deletion of a guest to when it entered its last phase.",
	})
	m.waits.declare(s, m)
	m.passes = s.Counter(measure.Family{
		Name: "virtloom_vmi_passes_total", Labels: []string{"outcome"}, Bound: "7 outcomes",
		Help: "Passes over guests by what came of them: idle, acted, held (own writes are not seen yet), gone, outrun (another write came first), postponed (others waited), failed.",
	})
	m.writes = s.Counter(measure.Family{
		Name: "virtloom_vmi_writes_total", Labels: []string{"action", "result"}, Bound: "9 actions by 7 results",
		Help: "Writes for guests by what was to be done and what the API server made of it.",
	})
	s.ReadGauge(measure.Family{
		Name: "virtloom_vmi_cache_last_event_timestamp_seconds", Bound: "1",
		Help: "When the cache last told of a guest, in seconds since 1970; none before it has.",
	}, func(emit measure.Emit) {
		if at := m.lastEvent.Load(); at != 0 {
			emit(float64(at) / 1e9)
		}
	})
	return m
}

// setup binds the metrics to a reconciler and has them told of all guests.
func (m *Metrics) setup(ctx context.Context, mgr ctrl.Manager, r *Reconciler) error {
	if m == nil {
		return nil
	}
	m.clock, m.scope = r.Clock, r.Scope
	m.leads = func() bool {
		select {
		case <-mgr.Elected():
			return true
		default:
			return false
		}
	}
	informer, err := mgr.GetCache().GetInformer(ctx, &v1.VirtualMachineInstance{})
	if err != nil {
		return fmt.Errorf("vmictrl: count the guests: %w", err)
	}
	if _, err := informer.AddEventHandler(m.handler()); err != nil {
		return fmt.Errorf("vmictrl: count the guests: %w", err)
	}
	return nil
}

// whileLeading reads nothing of a replica that does not lead.
func (m *Metrics) whileLeading(read func(measure.Emit)) func(measure.Emit) {
	return func(emit measure.Emit) {
		if m.leads() {
			read(emit)
		}
	}
}

// Describe is that of prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) { m.set.Describe(ch) }

// Collect is that of prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) { m.set.Collect(ch) }

// Families describes the metrics, for documentation.
func (m *Metrics) Families() []measure.Family { return m.set.Families() }

// The outcomes of a pass.
const (
	passIdle   = "idle"
	passActed  = "acted"
	passHeld   = "held"
	passGone   = "gone"
	passOutrun = "outrun"
	passFailed = "failed"
	// passPostponed has written nothing, as others waited.
	passPostponed = "postponed"
)

// passed counts a pass; an error is its outcome, whatever else it did.
func (m *Metrics) passed(outcome string, err error) {
	if m == nil {
		return
	}
	if err != nil {
		outcome = passFailed
	}
	m.passes.WithLabelValues(outcome).Inc()
}

// actionStore is the patch of a guest, beside the actions of a plan.
const actionStore = "Store"

// wrote counts a write and what came of it.
func (m *Metrics) wrote(action string, err error) {
	if m == nil {
		return
	}
	m.writes.WithLabelValues(action, result(err)).Inc()
}

// result tells apart what a write can come to.
func result(err error) string {
	switch {
	case err == nil:
		return "ok"
	case apierrors.IsConflict(err) || vmipatch.Refused(err):
		return "conflict"
	case apierrors.IsTooManyRequests(err):
		return "throttled"
	case apierrors.IsNotFound(err):
		return "missing"
	case apierrors.IsForbidden(err):
		return "forbidden"
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		return "invalid"
	default:
		return "error"
	}
}

// planned notes what the guest waits for by the plan.
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

// forget drops what is known of a guest that there is none of any more.
func (m *Metrics) forget(key types.NamespacedName) {
	if m != nil {
		m.waits.over(key, m.clock.Now())
	}
}
