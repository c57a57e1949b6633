// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/measure"
	"github.com/virtloom/virtloom/migration"
)

// times holds what the series by migration name report.
type times struct {
	vmi, node  string
	start, end time.Time
	// outcome is how it ended; empty before its end.
	outcome string
}

// The outcomes of a migration.
const (
	succeeded = "succeeded"
	failed    = "failed"
)

func (m *Metrics) declareNamed() {
	s := &m.set
	names := []string{"vmi", "vmim", "namespace"}
	bound := "1 for each migration object with this outcome; none with Anonymous"
	s.ReadGauge(measure.Family{
		Name: "kubevirt_vmi_migration_succeeded", Labels: names, Bound: bound, Help: "1 for each succeeded migration whose object exists.",
	}, m.named(func(t times) (float64, []string, bool) { return 1, nil, t.outcome == succeeded }, asOutcome))
	s.ReadGauge(measure.Family{
		Name: "kubevirt_vmi_migration_failed", Labels: names, Bound: bound, Help: "1 for each failed migration whose object exists.",
	}, m.named(func(t times) (float64, []string, bool) { return 1, nil, t.outcome == failed }, asOutcome))
	names = []string{"node", "namespace", "name", "migration_name"}
	s.ReadGauge(measure.Family{
		Name: "kubevirt_vmi_migration_start_time_seconds", Labels: names, Bound: "1 for each migration object that has begun; none with Anonymous",
		Help: "Start time of the migration, in seconds since 1970.",
	}, m.named(func(t times) (float64, []string, bool) { return seconds(t.start), nil, !t.start.IsZero() }, asTime))
	s.ReadGauge(measure.Family{
		Name: "kubevirt_vmi_migration_end_time_seconds", Labels: append(names, "status"), Bound: "1 for each migration object that has begun and ended; none with Anonymous",
		Help: "End time of the migration, in seconds since 1970, with its outcome.",
	}, m.named(func(t times) (float64, []string, bool) { return seconds(t.end), []string{t.outcome}, !t.end.IsZero() }, asTime))
}

// asOutcome and asTime return the labels of KubeVirt's two kinds of series that name a
// migration.
func asOutcome(key client.ObjectKey, t times) []string {
	return []string{t.vmi, key.Name, key.Namespace}
}

func asTime(key client.ObjectKey, t times) []string {
	return []string{t.node, key.Namespace, t.vmi, key.Name}
}

// named emits a number for every migration that has it.
func (m *Metrics) named(number func(times) (float64, []string, bool), labels func(client.ObjectKey, times) []string) func(measure.Emit) {
	return m.leads.While(func(emit measure.Emit) {
		if m.Anonymous {
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		for key, t := range m.times {
			if n, more, has := number(t); has {
				emit(n, append(labels(key, t), more...)...)
			}
		}
	})
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }

// handler counts migrations by their events. An informer passes the old object as it was passed
// with the previous event, so that exactly what was added is subtracted.
func (m *Metrics) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { m.changed(nil, migrationIn(o)) },
		UpdateFunc: func(was, is any) { m.changed(migrationIn(was), migrationIn(is)) },
		DeleteFunc: func(o any) { m.changed(migrationIn(o), nil) },
	}
}

// migrationIn returns the migration of an event, also of a missed deletion.
func migrationIn(o any) *v1.VirtualMachineInstanceMigration {
	if gone, missed := o.(toolscache.DeletedFinalStateUnknown); missed {
		o = gone.Obj
	}
	got, _ := o.(*v1.VirtualMachineInstanceMigration)
	return got
}

// changed updates the counts from the old to the new object, and observes its change of phase.
func (m *Metrics) changed(was, is *v1.VirtualMachineInstanceMigration) {
	m.count(was, -1)
	m.count(is, 1)
	m.note(was, is)
	if was != nil && is != nil && was.UID == is.UID && was.Status.Phase != is.Status.Phase && m.leads() {
		m.entered(was, is)
	}
}

func (m *Metrics) count(o *v1.VirtualMachineInstanceMigration, n int) {
	if o == nil {
		return
	}
	m.phases.Add(n, measure.Labels{string(o.Status.Phase)})
	if reason, waits := m.reason(o, migration.ConditionWaiting); waits && !o.IsFinal() {
		m.waiting.Add(n, measure.Labels{reason})
	}
}

// reason returns the reason of the condition, if it exists.
func (m *Metrics) reason(o *v1.VirtualMachineInstanceMigration, of v1.VirtualMachineInstanceMigrationConditionType) (string, bool) {
	c := migration.Condition(o.Status, of)
	if c == nil {
		return measure.Other, false
	}
	return m.reasons.Value(c.Reason), true
}

// note records the series by migration name.
func (m *Metrics) note(was, is *v1.VirtualMachineInstanceMigration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if is == nil {
		if was != nil {
			delete(m.times, client.ObjectKeyFromObject(was))
		}
		return
	}
	if t := timesOf(is); t.outcome != "" || !t.start.IsZero() {
		m.times[client.ObjectKeyFromObject(is)] = t
	} else {
		delete(m.times, client.ObjectKeyFromObject(is)) // a predecessor of the same name may have existed
	}
}

func timesOf(o *v1.VirtualMachineInstanceMigration) times {
	t := times{vmi: o.Spec.VMIName}
	switch o.Status.Phase {
	case v1.MigrationSucceeded:
		t.outcome = succeeded
	case v1.MigrationFailed:
		t.outcome = failed
	}
	if at, known := enteredAt(o, v1.MigrationRunning); known {
		t.start = at.Time
	}
	st := o.Status.MigrationState
	if st == nil || st.MigrationUID != o.UID {
		return t
	}
	if t.node = st.SourceNode; t.outcome == succeeded {
		t.node = st.TargetNode
	}
	if st.StartTimestamp != nil {
		t.start = st.StartTimestamp.Time
	}
	if st.EndTimestamp != nil && t.outcome != "" {
		t.end = st.EndTimestamp.Time
	}
	return t
}

// entered observes the phases entered since the previous object, which may be several: quick ones
// are stored together.
func (m *Metrics) entered(was, is *v1.VirtualMachineInstanceMigration) {
	switch is.Status.Phase {
	case v1.MigrationSucceeded:
		m.ended.WithLabelValues(succeeded, "").Inc()
	case v1.MigrationFailed:
		reason, _ := m.reason(is, migration.ConditionFailed)
		m.ended.WithLabelValues(failed, reason).Inc()
	}
	last, since := v1.MigrationPhaseUnset, is.CreationTimestamp
	for _, t := range is.Status.PhaseTransitionTimestamps {
		at := t.PhaseTransitionTimestamp
		if _, known := enteredAt(was, t.Phase); !known {
			m.fromCreation.WithLabelValues(string(t.Phase)).Observe(max(at.Sub(is.CreationTimestamp.Time).Seconds(), 0))
			m.durations.WithLabelValues(measure.Lower(string(last))).Observe(max(at.Sub(since.Time).Seconds(), 0))
		}
		last, since = t.Phase, at
	}
}

// enteredAt returns when the migration entered the phase for the first time, if recorded.
func enteredAt(o *v1.VirtualMachineInstanceMigration, phase v1.VirtualMachineInstanceMigrationPhase) (metav1.Time, bool) {
	for _, t := range o.Status.PhaseTransitionTimestamps {
		if t.Phase == phase {
			return t.PhaseTransitionTimestamp, true
		}
	}
	return metav1.Time{}, false
}
