// SPDX-License-Identifier: Apache-2.0

package vmctrl

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/internal/backlog"
	"github.com/virtloom/virtloom/vm"
)

// queued is a queue with a fixed length.
type queued struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	waiting int
}

func (q *queued) Len() int { return q.waiting }

// condition returns a condition of a VM.
func condition(t v1.VirtualMachineConditionType, status corev1.ConditionStatus, reason string) v1.VirtualMachineCondition {
	return v1.VirtualMachineCondition{Type: t, Status: status, Reason: reason}
}

// A status is deferred only while a VMI starts, only what follows from the VMI, and not for ever.
func TestDeferStatus(t *testing.T) {
	const waiting, idle = 5, 0
	begun := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	unready := condition(v1.VirtualMachineReady, corev1.ConditionFalse, "VMIConditionMissing")
	// starts is the status of a VM whose VMI has been created, stored and shown alike.
	starts := func() v1.VirtualMachineStatus {
		return v1.VirtualMachineStatus{PrintableStatus: v1.VirtualMachineStatusStarting, Created: true, RunStrategy: v1.RunStrategyAlways,
			ObservedGeneration: 1, DesiredGeneration: 1, Conditions: []v1.VirtualMachineCondition{unready}}
	}
	type edit = func(was, want *v1.VirtualMachineStatus)
	adds := func(c v1.VirtualMachineCondition) edit {
		return func(_, want *v1.VirtualMachineStatus) { want.Conditions = append(want.Conditions, c) }
	}
	first := func(was, _ *v1.VirtualMachineStatus) { *was = v1.VirtualMachineStatus{} }
	first1 := func(more edit) edit {
		return func(was, want *v1.VirtualMachineStatus) { first(was, want); more(was, want) }
	}
	pending := false // whether the creation of the VMI is
	quiet := adds(condition("PodScheduled", corev1.ConditionTrue, ""))
	for name, tc := range map[string]struct {
		queue int
		age   time.Duration
		edit  edit
		after time.Duration // zero if it is stored
	}{
		"Starting, while others wait":                   {waiting, 0, first, backlog.Again},
		"Starting, for longer than others may delay it": {waiting, backlog.Patience, first, 0},
		"Starting, and nobody waits":                    {idle, 0, first, 0},
		"Starting again, while others wait": {waiting, 0, func(was, _ *v1.VirtualMachineStatus) {
			was.PrintableStatus, was.Created = v1.VirtualMachineStatusStopped, false
		}, backlog.Again},
		"Starting after a crash loop":        {waiting, 0, func(was, _ *v1.VirtualMachineStatus) { was.PrintableStatus = v1.VirtualMachineStatusCrashLoopBackOff }, 0},
		"nothing has changed":                {waiting, 0, func(_, _ *v1.VirtualMachineStatus) {}, 0},
		"its VMI is not there yet":           {waiting, 0, first1(func(_, want *v1.VirtualMachineStatus) { want.Created = false }), 0},
		"its VMI is on its way to the cache": {waiting, 0, first1(func(_, want *v1.VirtualMachineStatus) { want.Created = false; pending = true }), backlog.Again},
		"Running":                            {waiting, 0, func(_, want *v1.VirtualMachineStatus) { want.PrintableStatus = v1.VirtualMachineStatusRunning }, 0},
		"Stopping":                           {waiting, 0, func(_, want *v1.VirtualMachineStatus) { want.PrintableStatus = v1.VirtualMachineStatusStopping }, 0},
		"ready":                              {waiting, 0, func(_, want *v1.VirtualMachineStatus) { want.Ready = true }, 0},
		"a request is carried out": {waiting, 0, func(was, _ *v1.VirtualMachineStatus) {
			was.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{{Action: v1.StartRequest}}
		}, 0},
		"an instance type is recorded":    {waiting, 0, first1(func(_, want *v1.VirtualMachineStatus) { want.InstancetypeRef = &v1.InstancetypeStatusRef{Name: "two"} }), 0},
		"it has run under RerunOnFailure": {waiting, 0, first1(func(_, want *v1.VirtualMachineStatus) { want.RunStrategy = v1.RunStrategyRerunOnFailure }), 0},
		"another strategy is recorded":    {waiting, 0, func(was, _ *v1.VirtualMachineStatus) { was.RunStrategy = v1.RunStrategyManual }, 0},
		"a failure is counted":            {waiting, 0, func(_, want *v1.VirtualMachineStatus) { want.StartFailure = &v1.VirtualMachineStartFailure{} }, 0},
		"a failure":                       {waiting, 0, adds(condition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FailedCreate")), 0},
		"a failure is over": {waiting, 0, func(was, _ *v1.VirtualMachineStatus) {
			was.Conditions = append(was.Conditions, condition(v1.VirtualMachineFailure, corev1.ConditionTrue, "FailedCreate"))
		}, 0},
		"a restart is needed":                {waiting, 0, adds(condition(v1.VirtualMachineRestartRequired, corev1.ConditionTrue, "")), 0},
		"its VMI is not synchronized":        {idle, 0, adds(condition("Synchronized", corev1.ConditionFalse, "FailedCreate")), 0},
		"a condition of its VMI":             {idle, 0, quiet, settles},
		"a condition for a while":            {idle, settles - time.Second, quiet, time.Second},
		"a condition for long enough":        {idle, settles, quiet, 0},
		"a condition, while others wait":     {waiting, settles, quiet, backlog.Again},
		"a condition, for as long as it may": {waiting, backlog.Patience, quiet, 0},
		"another reason not to be ready":     {idle, 0, func(_, want *v1.VirtualMachineStatus) { want.Conditions[0].Reason = "GuestNotRunning" }, settles},
		"a condition of its VMI is gone": {idle, 0, func(was, _ *v1.VirtualMachineStatus) {
			was.Conditions = append(was.Conditions, condition("PodScheduled", corev1.ConditionTrue, ""))
		}, settles},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(begun.Add(tc.age))
			r := &Reconciler{Clock: clock, Workers: 4}
			r.backlog.Use(&queued{waiting: tc.queue})
			g := &gathered{owner: expectations.Owner{Key: types.NamespacedName{Namespace: "ns", Name: "vm"}}}
			r.backlog.Put(g.owner.Key, begun)
			g.VM = &v1.VirtualMachine{Status: starts()}
			plan := vm.Plan{VM: &v1.VirtualMachine{Status: starts()}}
			pending = false
			tc.edit(&g.VM.Status, &plan.VM.Status)
			if pending {
				g.Pending = []vm.Write{{Verb: vm.CreateVMI, Name: "vm"}}
			}
			after, yes := actor{r}.deferStatus(g, plan)
			if after != tc.after || yes != (tc.after > 0) {
				t.Errorf("deferred %v for %s, want %s", yes, after, tc.after)
			}
			g.VM.DeletionTimestamp = new(metav1.Now())
			if _, yes := (actor{r}).deferStatus(g, plan); yes {
				t.Error("the status of a VM that is being deleted is deferred")
			}
			g.VM.DeletionTimestamp, plan.Events = nil, []vm.Event{{Reason: "News"}}
			if _, yes := (actor{r}).deferStatus(g, plan); yes {
				t.Error("an event is deferred")
			}
		})
	}
}
