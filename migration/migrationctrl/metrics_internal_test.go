// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/measure/measuretest"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/queue"
)

var metricsEpoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type phase = v1.VirtualMachineInstanceMigrationPhase

// counted is a migration that has entered phases, a second after the other.
func counted(name string, phases ...phase) *v1.VirtualMachineInstanceMigration {
	o := &v1.VirtualMachineInstanceMigration{}
	o.Namespace, o.Name, o.UID = "ns", name, types.UID(name)
	o.Spec.VMIName = "guest-of-" + name
	o.CreationTimestamp = metav1.NewTime(metricsEpoch)
	for i, p := range phases {
		o.Status.Phase = p
		o.Status.PhaseTransitionTimestamps = append(o.Status.PhaseTransitionTimestamps, v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{
			Phase: p, PhaseTransitionTimestamp: metav1.NewTime(metricsEpoch.Add(time.Duration(i+1) * time.Second))})
	}
	return o
}

func because(o *v1.VirtualMachineInstanceMigration, of v1.VirtualMachineInstanceMigrationConditionType, r migration.Reason) *v1.VirtualMachineInstanceMigration {
	o.Status.Conditions = append(o.Status.Conditions, v1.VirtualMachineInstanceMigrationCondition{Type: of, Status: corev1.ConditionTrue, Reason: string(r)})
	return o
}

// moved adds what the nodes said of the migration: it began 3 s after the creation and ended at 7 s.
func moved(o *v1.VirtualMachineInstanceMigration, end bool) *v1.VirtualMachineInstanceMigration {
	st := &v1.VirtualMachineInstanceMigrationState{MigrationUID: o.UID, SourceNode: "n1", TargetNode: "n2",
		StartTimestamp: &metav1.Time{Time: metricsEpoch.Add(3 * time.Second)}}
	if end {
		st.EndTimestamp = &metav1.Time{Time: metricsEpoch.Add(7 * time.Second)}
	}
	o.Status.MigrationState = st
	return o
}

// series are those that are not 0 and have one of the prefixes.
func series(t *testing.T, m *Metrics, prefixes ...string) map[string]string {
	t.Helper()
	all := measuretest.Gathered(t, m)
	maps.DeleteFunc(all, func(name, value string) bool {
		return value == "0" || !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	})
	return all
}

const (
	startOf   = "kubevirt_vmi_migration_start_time_seconds migration_name=a name=guest-of-a namespace=ns node="
	endOf     = "kubevirt_vmi_migration_end_time_seconds migration_name=a name=guest-of-a namespace=ns node="
	outcomeOf = " namespace=ns vmi=guest-of-a vmim=a"
)

func TestMetrics_CountByEvents(t *testing.T) {
	type event func(h toolscache.ResourceEventHandler)
	added := func(o *v1.VirtualMachineInstanceMigration) event {
		return func(h toolscache.ResourceEventHandler) { h.OnAdd(o, false) }
	}
	changed := func(was, is *v1.VirtualMachineInstanceMigration) event {
		return func(h toolscache.ResourceEventHandler) { h.OnUpdate(was, is) }
	}
	deleted := func(o any) event { return func(h toolscache.ResourceEventHandler) { h.OnDelete(o) } }
	fresh := counted("a")
	pending := because(counted("a", v1.MigrationPending), migration.ConditionWaiting, migration.ReasonWaitingForSlot)
	moving := because(counted("a", v1.MigrationPending, v1.MigrationRunning), migration.ConditionWaiting, migration.ReasonMoving)
	done := moved(counted("a", v1.MigrationPending, v1.MigrationRunning, v1.MigrationSucceeded), true)
	lost := because(counted("a", v1.MigrationPending, v1.MigrationFailed), migration.ConditionFailed, migration.ReasonNoNode)
	broken := moved(counted("a", v1.MigrationPending, v1.MigrationRunning, v1.MigrationFailed), true)
	sync := counted("a", v1.MigrationWaitingForSync)
	another := counted("a")
	another.UID = "another"
	for name, tc := range map[string]struct {
		follows, anonymous bool
		events             []event
		want               map[string]string
	}{
		"one that nobody has looked at": {events: []event{added(fresh)}, want: map[string]string{"kubevirt_vmi_migrations_in_unset_phase": "1"}},
		"one that waits for a slot": {events: []event{added(fresh), changed(fresh, pending)}, want: map[string]string{
			"kubevirt_vmi_migrations_in_pending_phase":                                         "1",
			"virtloom_migrations_waiting reason=WaitingForSlot":                                "1",
			"kubevirt_vmi_migration_phase_transition_time_from_creation_seconds phase=Pending": "1 in 1s",
			"virtloom_migration_phase_duration_seconds phase=unset":                            "1 in 1s"}},
		"one that moves": {events: []event{added(moving)}, want: map[string]string{
			"kubevirt_vmi_migrations_in_running_phase":  "1",
			"virtloom_migrations_waiting reason=Moving": "1",
			startOf: "1.767225602e+09"}},
		"one between clusters runs": {events: []event{added(sync)}, want: map[string]string{"kubevirt_vmi_migrations_in_running_phase": "1"}},
		"one whose quick steps are stored together": {
			events: []event{added(pending), changed(pending, counted("a", v1.MigrationPending, v1.MigrationScheduling, v1.MigrationTargetReady, v1.MigrationRunning))},
			want: map[string]string{
				"kubevirt_vmi_migrations_in_running_phase": "1", startOf: "1.767225604e+09",
				"kubevirt_vmi_migration_phase_transition_time_from_creation_seconds phase=Scheduling":  "1 in 2s",
				"kubevirt_vmi_migration_phase_transition_time_from_creation_seconds phase=TargetReady": "1 in 3s",
				"kubevirt_vmi_migration_phase_transition_time_from_creation_seconds phase=Running":     "1 in 4s",
				"virtloom_migration_phase_duration_seconds phase=pending":                              "1 in 1s",
				"virtloom_migration_phase_duration_seconds phase=scheduling":                           "1 in 1s",
				"virtloom_migration_phase_duration_seconds phase=targetready":                          "1 in 1s",
			}},
		"one that succeeds": {events: []event{added(moving), changed(moving, done)}, want: map[string]string{
			"kubevirt_vmi_migration_succeeded" + outcomeOf:                                       "1",
			"kubevirt_vmi_migration_phase_transition_time_from_creation_seconds phase=Succeeded": "1 in 3s",
			"virtloom_migration_phase_duration_seconds phase=running":                            "1 in 1s",
			"virtloom_migrations_ended_total outcome=succeeded reason=":                          "1",
			startOf + "n2":                "1.767225603e+09",
			endOf + "n2 status=succeeded": "1.767225607e+09"}},
		"one that fails before it moves": {events: []event{added(pending), changed(pending, lost)}, want: map[string]string{
			"kubevirt_vmi_migration_failed" + outcomeOf:                                       "1",
			"kubevirt_vmi_migration_phase_transition_time_from_creation_seconds phase=Failed": "1 in 2s",
			"virtloom_migration_phase_duration_seconds phase=pending":                         "1 in 1s",
			"virtloom_migrations_ended_total outcome=failed reason=NoNodeMatches":             "1"}},
		"one that fails while it moves stays where it was": {events: []event{added(broken)}, want: map[string]string{
			"kubevirt_vmi_migration_failed" + outcomeOf: "1",
			startOf + "n1":             "1.767225603e+09",
			endOf + "n1 status=failed": "1.767225607e+09"}},
		"no name is reported of anonymous ones": {anonymous: true, events: []event{added(done)}, want: map[string]string{}},
		"one that is gone leaves no series":     {events: []event{added(done), deleted(done)}, want: map[string]string{}},
		"one whose deletion was missed":         {events: []event{added(done), deleted(toolscache.DeletedFinalStateUnknown{Key: "ns/a", Obj: done})}, want: map[string]string{}},
		"another of the same name is not timed": {events: []event{added(done), changed(done, another)}, want: map[string]string{
			"kubevirt_vmi_migrations_in_unset_phase": "1"}},
		"a replica that does not lead is silent": {follows: true, events: []event{added(moving), changed(moving, done)}, want: map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewMetrics()
			m.Anonymous, m.leads = tc.anonymous, func() bool { return !tc.follows }
			for _, e := range tc.events {
				e(m.handler())
			}
			if diff := cmp.Diff(tc.want, series(t, m, "kubevirt_", "virtloom_migration")); diff != "" {
				t.Errorf("series (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMetrics_SlotsAndQueue(t *testing.T) {
	a := queue.NewAdmission(queue.Limits{Cluster: 3, Outbound: 2, Inbound: 1, Lent: 1}, queue.Options{})
	claim := func(name, from string, priority int, since time.Duration) queue.Claim {
		return queue.Claim{Key: types.NamespacedName{Namespace: "ns", Name: name}, SourceNode: from, Priority: priority, Since: metricsEpoch.Add(since)}
	}
	for _, c := range []queue.Claim{
		claim("a", "n1", 0, 0), claim("b", "n1", 0, time.Second), claim("c", "n2", 50, time.Second),
		claim("d", "n2", 0, 5*time.Second), claim("e", "n1", 0, 4*time.Second), claim("f", "n1", 100, 6*time.Second), claim("g", "n3", 20, 6*time.Second),
	} {
		a.Ask(c, metricsEpoch.Add(6*time.Second))
	}
	lends := claim("a", "n1", 0, 0)
	lends.Acting, lends.Stuck = true, true
	a.Ask(lends, metricsEpoch.Add(6*time.Second))
	entering := claim("c", "n2", 50, time.Second)
	entering.Acting, entering.TargetNode = true, "n3"
	a.Ask(entering, metricsEpoch.Add(6*time.Second))
	m := NewMetrics()
	if got := series(t, m, "virtloom_migration_"); len(got) > 0 {
		t.Errorf("before there is an admission it says %v", got)
	}
	m.admission, m.clock = a, clocktesting.NewFakePassiveClock(metricsEpoch.Add(10*time.Second))
	u := a.Usage()
	if u.Lent != 1 || u.Inbound["n3"] != 1 {
		t.Fatalf("the admission is not as this test wants it: %+v", u)
	}
	want := map[string]string{
		"virtloom_migration_queue_depth priority=none": "2", "virtloom_migration_oldest_wait_seconds priority=none": "6",
		"virtloom_migration_queue_depth priority=system-maintenance": "1", "virtloom_migration_oldest_wait_seconds priority=system-maintenance": "4",
		"virtloom_migration_slots_limit kind=cluster": "3", "virtloom_migration_slots_limit kind=outbound": "2", "virtloom_migration_slots_limit kind=inbound": "1",
		"virtloom_migration_slots_used kind=cluster": "3", "virtloom_migration_slots_used kind=outbound": "2", "virtloom_migration_slots_used kind=inbound": "1",
		"virtloom_migration_nodes_at_limit kind=outbound": "1", "virtloom_migration_nodes_at_limit kind=inbound": "1",
		"virtloom_migration_targets_lending": "1",
	}
	if diff := cmp.Diff(want, series(t, m, "virtloom_migration_")); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

func TestMetrics_PassesAndWritesByOutcome(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "a", errors.New("changed"))
	m := NewMetrics()
	m.passed(passIdle, nil)
	m.passed(passActed, errors.New("lost"))
	m.passed(passActed, errors.Join(nil, conflict))
	m.wrote(actionStore, nil)
	m.wrote(actionStore, conflict)
	m.wrote(actionRelease, apierrors.NewTooManyRequests("slow down", 1))
	m.outdatedAre(0)
	want := map[string]string{
		"virtloom_migration_passes_total outcome=idle": "1", "virtloom_migration_passes_total outcome=failed": "1", "virtloom_migration_passes_total outcome=outrun": "1",
		"virtloom_migration_writes_total action=Store result=ok": "1", "virtloom_migration_writes_total action=Store result=conflict": "1",
		"virtloom_migration_writes_total action=Release result=throttled": "1",
	}
	if diff := cmp.Diff(want, series(t, m, "virtloom_migration_")); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	if got, exported := measuretest.Gathered(t, m)["kubevirt_vmi_number_of_outdated"]; !exported || got != "0" {
		t.Errorf("outdated VMIs: %q, exported %v; none is a number too", got, exported)
	}
}

func TestMetrics_Nil(t *testing.T) {
	var m *Metrics
	m.passed(passIdle, nil)
	m.wrote(actionStore, nil)
	m.outdatedAre(1)
	if err := m.setup(t.Context(), nil, nil); err != nil {
		t.Error(err)
	}
}
