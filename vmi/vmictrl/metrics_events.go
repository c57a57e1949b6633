// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/measure"
	"github.com/virtloom/virtloom/vmi"
)

// handler counts VMIs by their events. An informer passes the old object of each change as it
// passed it before, so that every decrement matches an increment.
func (m *Metrics) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { m.changed(nil, vmiIn(o)) },
		UpdateFunc: func(was, is any) { m.changed(vmiIn(was), vmiIn(is)) },
		DeleteFunc: func(o any) { m.changed(vmiIn(o), nil) },
	}
}

// vmiIn returns the VMI of an event, also if the deletion event was missed.
func vmiIn(o any) *v1.VirtualMachineInstance {
	if gone, missed := o.(toolscache.DeletedFinalStateUnknown); missed {
		o = gone.Obj
	}
	g, _ := o.(*v1.VirtualMachineInstance)
	return g
}

// changed updates the counts of a VMI, and times its phase transition.
func (m *Metrics) changed(was, is *v1.VirtualMachineInstance) {
	m.lastEvent.Store(m.clock.Now().UnixNano())
	if was != nil && m.scope.Has(was) {
		m.vmis.Add(-1, measure.Labels{measure.Lower(string(was.Status.Phase)), was.Status.NodeName})
	}
	if is == nil || !m.scope.Has(is) {
		return
	}
	m.vmis.Add(1, measure.Labels{measure.Lower(string(is.Status.Phase)), is.Status.NodeName})
	if was != nil && was.UID == is.UID && was.Status.Phase != is.Status.Phase && m.leads() {
		m.entered(was.Status.Phase, is)
	}
}

// entered times the transition from the last phase to the current one.
func (m *Metrics) entered(last v1.VirtualMachineInstancePhase, is *v1.VirtualMachineInstance) {
	phase := is.Status.Phase
	at, known := enteredAt(is, phase)
	if !known {
		return
	}
	seconds := func(since metav1.Time) float64 { return max(at.Sub(since.Time).Seconds(), 0) }
	m.fromCreation.WithLabelValues(string(phase)).Observe(seconds(is.CreationTimestamp))
	if before, known := enteredAt(is, last); known {
		m.between.WithLabelValues(string(phase), string(last)).Observe(seconds(before))
	}
	if is.DeletionTimestamp != nil && is.IsFinal() {
		m.fromDeletion.WithLabelValues(string(phase)).Observe(seconds(*is.DeletionTimestamp))
	}
}

// enteredAt returns when the VMI first entered the phase, if recorded.
func enteredAt(g *v1.VirtualMachineInstance, phase v1.VirtualMachineInstancePhase) (metav1.Time, bool) {
	for _, t := range g.Status.PhaseTransitionTimestamps {
		if t.Phase == phase {
			return t.PhaseTransitionTimestamp, true
		}
	}
	return metav1.Time{}, false
}

// waits are the waits of VMIs, by their last passes.
type waits struct {
	reasons  *measure.Limited
	duration *prometheus.HistogramVec

	mu    sync.Mutex
	waits map[types.NamespacedName]await // guarded by mu
}

// await is the wait of a VMI, and since when this process has known of it.
type await struct {
	reason, by string
	since      time.Time
}

// waitBuckets, in seconds, range from a cache round trip to a day.
var waitBuckets = []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400}

// reasonsKept is the number of distinguished reasons.
const reasonsKept = 64

func (w *waits) declare(s *measure.Set, m *Metrics) {
	w.waits, w.reasons = map[types.NamespacedName]await{}, measure.NewLimited(reasonsKept, vmi.ReasonWaitingForCache)
	labels, bound := []string{"reason", "by"}, "65 reasons; 6 actors, usually one per reason"
	s.ReadGauge(measure.Family{
		Name: "virtloom_vmi_waiting", Labels: labels, Bound: bound,
		Help: "Number of VMIs blocked, by reason and responsible component.",
	}, m.leads.While(func(emit measure.Emit) {
		for what, all := range w.now() {
			emit(float64(all.n), what.reason, what.by)
		}
	}))
	s.ReadGauge(measure.Family{
		Name: "virtloom_vmi_oldest_wait_seconds", Labels: labels, Bound: bound,
		Help: "Longest current wait of a VMI by reason and responsible component, as observed by this process.",
	}, m.leads.While(func(emit measure.Emit) {
		now := m.clock.Now()
		for what, all := range w.now() {
			emit(max(now.Sub(all.oldest).Seconds(), 0), what.reason, what.by)
		}
	}))
	w.duration = s.Histogram(measure.Family{
		Name: "virtloom_vmi_wait_duration_seconds", Labels: []string{"by"}, Buckets: waitBuckets, Bound: "6 actors",
		Help: "Duration of waits of VMIs by responsible component, as observed by this process.",
	})
}

// are records what the VMI waits for. A wait with the same reason continues.
func (w *waits) are(key types.NamespacedName, is vmi.Wait, now time.Time) {
	next := await{reason: w.reasons.Value(is.Reason), by: string(is.Responsible), since: now}
	w.mu.Lock()
	defer w.mu.Unlock()
	was, waited := w.waits[key]
	if waited && was.reason == next.reason && was.by == next.by {
		return
	}
	w.waits[key] = next
	if waited {
		w.duration.WithLabelValues(was.by).Observe(max(now.Sub(was.since).Seconds(), 0))
	}
}

// over records that the VMI waits for nothing, or no longer exists.
func (w *waits) over(key types.NamespacedName, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was, waited := w.waits[key]
	if !waited {
		return
	}
	delete(w.waits, key)
	w.duration.WithLabelValues(was.by).Observe(max(now.Sub(was.since).Seconds(), 0))
}

// waitGroup is the group of VMIs with one reason.
type waitGroup struct {
	n      int
	oldest time.Time
}

// now groups the waiting VMIs.
func (w *waits) now() map[await]waitGroup {
	out := map[await]waitGroup{}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.waits {
		what := await{reason: one.reason, by: one.by}
		all, found := out[what]
		if !found || one.since.Before(all.oldest) {
			all.oldest = one.since
		}
		all.n++
		out[what] = all
	}
	return out
}
