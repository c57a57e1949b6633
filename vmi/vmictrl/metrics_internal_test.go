// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/measure/measuretest"
	"github.com/virtloom/virtloom/vmi"
)

var metricsEpoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// counted returns a VMI that has entered phases, one per second.
func counted(name, node string, phases ...v1.VirtualMachineInstancePhase) *v1.VirtualMachineInstance {
	g := &v1.VirtualMachineInstance{}
	g.Namespace, g.Name, g.UID = "ns", name, types.UID(name)
	g.CreationTimestamp = metav1.NewTime(metricsEpoch)
	g.Status.NodeName = node
	for i, p := range phases {
		g.Status.Phase = p
		g.Status.PhaseTransitionTimestamps = append(g.Status.PhaseTransitionTimestamps, v1.VirtualMachineInstancePhaseTransitionTimestamp{
			Phase: p, PhaseTransitionTimestamp: metav1.NewTime(metricsEpoch.Add(time.Duration(i+1) * time.Second))})
	}
	return g
}

func deletedAt(g *v1.VirtualMachineInstance, after time.Duration) *v1.VirtualMachineInstance {
	g.DeletionTimestamp = &metav1.Time{Time: metricsEpoch.Add(after)}
	return g
}

// series returns the series with one of the prefixes.
func series(t *testing.T, m *Metrics, prefixes ...string) map[string]string {
	t.Helper()
	all := measuretest.Gathered(t, m)
	maps.DeleteFunc(all, func(name, _ string) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	})
	return all
}

func TestMetrics_CountByEvents(t *testing.T) {
	type event func(h toolscache.ResourceEventHandler)
	added := func(g *v1.VirtualMachineInstance) event {
		return func(h toolscache.ResourceEventHandler) { h.OnAdd(g, false) }
	}
	changed := func(was, is *v1.VirtualMachineInstance) event {
		return func(h toolscache.ResourceEventHandler) { h.OnUpdate(was, is) }
	}
	deleted := func(o any) event { return func(h toolscache.ResourceEventHandler) { h.OnDelete(o) } }
	fresh, pending := counted("a", ""), counted("a", "", v1.Pending)
	running := counted("a", "n1", v1.Pending, v1.Scheduling, v1.Scheduled, v1.Running)
	ended := deletedAt(counted("a", "n1", v1.Pending, v1.Scheduling, v1.Scheduled, v1.Running, v1.Succeeded), 2*time.Second)
	early := deletedAt(counted("a", "", v1.Failed), time.Hour)
	other := counted("a", "", v1.Pending)
	other.UID = "another"
	for name, tc := range map[string]struct {
		scope   Scope
		follows bool
		events  []event
		want    map[string]string
	}{
		"one that nobody has looked at": {events: []event{added(fresh)}, want: map[string]string{"kubevirt_vmi_phase_count node= phase=unset": "1"}},
		"one that is there at the start is not timed": {events: []event{added(running)}, want: map[string]string{
			"kubevirt_vmi_phase_count node=n1 phase=running": "1"}},
		"one that goes on is timed": {events: []event{added(fresh), changed(fresh, pending)}, want: map[string]string{
			"kubevirt_vmi_phase_count node= phase=pending":                           "1",
			"kubevirt_vmi_phase_transition_time_from_creation_seconds phase=Pending": "1 in 1s"}},
		"one that ends is timed from its deletion": {events: []event{added(running), changed(running, ended)}, want: map[string]string{
			"kubevirt_vmi_phase_count node=n1 phase=succeeded":                              "1",
			"kubevirt_vmi_phase_transition_time_seconds last_phase=Running phase=Succeeded": "1 in 1s",
			"kubevirt_vmi_phase_transition_time_from_creation_seconds phase=Succeeded":      "1 in 5s",
			"kubevirt_vmi_phase_transition_time_from_deletion_seconds phase=Succeeded":      "1 in 3s"}},
		"clocks that differ make no negative time": {events: []event{added(fresh), changed(fresh, early)}, want: map[string]string{
			"kubevirt_vmi_phase_count node= phase=failed":                           "1",
			"kubevirt_vmi_phase_transition_time_from_creation_seconds phase=Failed": "1 in 1s",
			"kubevirt_vmi_phase_transition_time_from_deletion_seconds phase=Failed": "1 in 0s"}},
		"one without a change of phase":          {events: []event{added(pending), changed(pending, pending)}, want: map[string]string{"kubevirt_vmi_phase_count node= phase=pending": "1"}},
		"another of the same name":               {events: []event{added(running), changed(running, other)}, want: map[string]string{"kubevirt_vmi_phase_count node= phase=pending": "1"}},
		"one that is gone leaves no series":      {events: []event{added(running), deleted(running)}, want: map[string]string{}},
		"one whose deletion was missed":          {events: []event{added(running), deleted(toolscache.DeletedFinalStateUnknown{Key: "ns/a", Obj: running})}, want: map[string]string{}},
		"one that is out of scope":               {scope: Scope{Namespaces: []string{"else"}}, events: []event{added(running), changed(running, ended), deleted(ended)}, want: map[string]string{}},
		"a replica that does not lead is silent": {follows: true, events: []event{added(running), changed(running, ended)}, want: map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewMetrics()
			m.scope, m.leads = tc.scope, func() bool { return !tc.follows }
			for _, e := range tc.events {
				e(m.handler())
			}
			if diff := cmp.Diff(tc.want, series(t, m, "kubevirt_")); diff != "" {
				t.Errorf("series (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMetrics_NewLeader(t *testing.T) {
	m, leads := NewMetrics(), false
	m.leads = func() bool { return leads }
	m.handler().OnAdd(counted("a", "n1", v1.Running), true)
	if got := series(t, m, "kubevirt_"); len(got) > 0 {
		t.Errorf("emits %v before it leads", got)
	}
	leads = true
	if diff := cmp.Diff(map[string]string{"kubevirt_vmi_phase_count node=n1 phase=running": "1"}, series(t, m, "kubevirt_")); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

func TestMetrics_Waits(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(metricsEpoch)
	m := NewMetrics()
	m.clock = now
	step := func(after time.Duration, name string, waits ...vmi.Wait) {
		now.SetTime(metricsEpoch.Add(after))
		m.planned(types.NamespacedName{Name: name}, vmi.Plan{Waits: waits})
	}
	claim, room := vmi.Wait{Reason: "ClaimPending", Responsible: handoff.ByStorage}, vmi.Wait{Reason: "Unschedulable", Responsible: handoff.ByScheduler}
	text := vmi.Wait{Reason: "a text of some length", Responsible: handoff.ByNode}
	step(0, "a", claim, room)
	step(time.Second, "b", claim)
	step(2*time.Second, "c", text)
	step(3*time.Second, "a", claim) // goes on
	step(4*time.Second, "b", room)
	step(9*time.Second, "b")
	m.forget(types.NamespacedName{Name: "c"})
	m.forget(types.NamespacedName{Name: "never seen"})
	now.SetTime(metricsEpoch.Add(10 * time.Second))
	want := map[string]string{
		"virtloom_vmi_waiting by=storage reason=ClaimPending":             "1",
		"virtloom_vmi_oldest_wait_seconds by=storage reason=ClaimPending": "10",
		"virtloom_vmi_wait_duration_seconds by=storage":                   "1 in 3s",
		"virtloom_vmi_wait_duration_seconds by=scheduler":                 "1 in 5s",
		"virtloom_vmi_wait_duration_seconds by=node":                      "1 in 7s",
	}
	if diff := cmp.Diff(want, series(t, m, "virtloom_vmi_wait", "virtloom_vmi_oldest")); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

func TestMetrics_BoundedReasons(t *testing.T) {
	m := NewMetrics()
	for i := range 10_000 {
		m.planned(types.NamespacedName{Name: fmt.Sprint(i)}, vmi.Plan{Waits: []vmi.Wait{{Reason: fmt.Sprintf("Reason%d", i), Responsible: handoff.ByUser}}})
	}
	if got := len(series(t, m, "virtloom_vmi_waiting")); got != reasonsKept {
		t.Errorf("%d series, want %d: the reasons kept, less the one known, and Other", got, reasonsKept)
	}
}

func TestMetrics_WriteResults(t *testing.T) {
	resource, field := schema.GroupResource{Resource: "pods"}, schema.GroupKind{Kind: "Pod"}
	refusedPatch := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid}}
	m := NewMetrics()
	for _, err := range []error{
		nil, apierrors.NewConflict(resource, "a", errors.New("changed")), refusedPatch, apierrors.NewTooManyRequests("slow down", 1),
		apierrors.NewNotFound(resource, "a"), apierrors.NewForbidden(resource, "a", errors.New("quota")),
		fmt.Errorf("create: %w", apierrors.NewInvalid(field, "a", nil)), apierrors.NewBadRequest("what"), errors.New("connection lost"),
	} {
		m.wrote(actionStore, err)
	}
	want := map[string]string{}
	for what, n := range map[string]string{"ok": "1", "conflict": "2", "throttled": "1", "missing": "1", "forbidden": "1", "invalid": "2", "error": "1"} {
		want["virtloom_vmi_writes_total action=Store result="+what] = n
	}
	if diff := cmp.Diff(want, series(t, m, "virtloom_vmi_writes")); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

func TestMetrics_PassOutcomes(t *testing.T) {
	m := NewMetrics()
	m.passed(passIdle, nil)
	m.passed(passActed, nil)
	m.passed(passActed, errors.New("and failed"))
	want := map[string]string{
		"virtloom_vmi_passes_total outcome=idle": "1", "virtloom_vmi_passes_total outcome=acted": "1", "virtloom_vmi_passes_total outcome=failed": "1",
	}
	if diff := cmp.Diff(want, series(t, m, "virtloom_vmi_passes")); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

func TestMetrics_Nil(t *testing.T) {
	var m *Metrics
	m.passed(passIdle, nil)
	m.wrote(actionStore, nil)
	m.planned(types.NamespacedName{}, vmi.Plan{Waits: []vmi.Wait{{Reason: "A"}}})
	m.forget(types.NamespacedName{})
	if err := m.setup(t.Context(), nil, nil); err != nil {
		t.Error(err)
	}
}

func BenchmarkCollecting10000Guests(b *testing.B) {
	m := NewMetrics()
	for i := range 10_000 {
		m.handler().OnAdd(counted(fmt.Sprint(i), fmt.Sprintf("n%d", i%200), v1.Running), true)
		m.planned(types.NamespacedName{Name: fmt.Sprint(i)}, vmi.Plan{Waits: []vmi.Wait{{Reason: fmt.Sprintf("R%d", i%9), Responsible: handoff.ByUser}}})
	}
	for b.Loop() {
		measuretest.Gathered(b, m)
	}
}
