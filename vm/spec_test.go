// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vm"
)

// A specCase is one row of the cases of the specification (VM reconciliation 13): a situation and the decision.
//
// Where the decision intentionally differs from KubeVirt, the name of the row says so: (better: ...).
type specCase struct {
	given []change
	// do are the verbs of all actions.
	do string
	// printable is status.printableStatus; empty is not compared.
	printable v1.VirtualMachinePrintableStatus
	// failure is reason and message of condition Failure.
	failure string
	// events are reasons and messages, done those of the actions.
	events, done string
	// requests are the state change requests left.
	requests string
	requeue  time.Duration
	// says is part of a message of a wait, or of a condition.
	says string
	// check looks at the rest.
	check func(*testing.T, vm.Plan)
}

type specRows = map[string]specCase

type change func(*vm.Snapshot)

func TestSpecCases(t *testing.T) {
	for heading, all := range map[string][]func() specRows{
		"lifecycle": {specLifecycle, specVMI}, "strategies": {specStrategies, specRequests, specReceivers}, "back-off": {specBackOff}, "DataVolumes": {specDataVolumes},
		"revisions and generations": {specRevisions, specInstancetypes}, "printableStatus": {specPrintable}, "conditions": {specConditions},
		"live update": {specVolumes, specDumps, specLive, specRestart},
	} {
		t.Run(heading, func(t *testing.T) {
			for _, rows := range all {
				for name, row := range rows() {
					t.Run(name, row.run)
				}
			}
		})
	}
}

func (c specCase) run(t *testing.T) {
	s := vm.Snapshot{VM: newVM()}
	for _, g := range c.given {
		g(&s)
	}
	before, vmiBefore := s.VM.DeepCopy(), s.VMI.DeepCopy()
	plan := vm.Decide(s, now)
	if diff := cmp.Diff(before, s.VM) + cmp.Diff(vmiBefore, s.VMI); diff != "" {
		t.Fatalf("Decide changed its input:\n%s", diff)
	}
	if diff := cmp.Diff(plan.Waits, vm.Explain(s, now)); diff != "" {
		t.Errorf("Explain says other things:\n%s", diff)
	}
	type result struct {
		Do, Failure, Events, Done, Requests string
		Requeue                             time.Duration
	}
	want := result{c.do, c.failure, c.events, c.done, c.requests, c.requeue}
	got := result{Events: spellEvents(plan.Events)}
	var verbs, done, requests []string
	for _, a := range plan.Actions {
		verbs = append(verbs, string(a.Verb))
		if a.Done != nil {
			done = append(done, a.Done.Reason+": "+a.Done.Message)
		}
	}
	for _, r := range plan.VM.Status.StateChangeRequests {
		requests = append(requests, string(r.Action))
	}
	got.Do, got.Done, got.Requests = strings.Join(verbs, " "), strings.Join(done, "; "), strings.Join(requests, " ")
	if f := condition(plan.VM, v1.VirtualMachineFailure); f != nil {
		got.Failure = f.Reason + ": " + f.Message
	}
	if plan.RequeueAt != nil {
		got.Requeue = plan.RequeueAt.Sub(now)
	}
	if c.done == "" {
		got.Done = ""
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, plan)
	}
	if p := plan.VM.Status.PrintableStatus; c.printable != "" && p != c.printable {
		t.Errorf("printableStatus %s, want %s", p, c.printable)
	}
	if !says(plan, c.says) {
		t.Errorf("nothing says %q:\n%s", c.says, plan)
	}
	if c.check != nil {
		c.check(t, plan)
	}
}

func says(p vm.Plan, text string) bool {
	return text == "" || slices.ContainsFunc(p.Waits, func(w vm.Wait) bool { return strings.Contains(w.Message, text) }) ||
		slices.ContainsFunc(p.VM.Status.Conditions, func(c v1.VirtualMachineCondition) bool { return strings.Contains(c.Message, text) })
}

func spellEvents(events []vm.Event) string {
	var all []string
	for _, e := range events {
		all = append(all, e.Reason+": "+e.Message)
	}
	return strings.Join(all, "; ")
}

func condition(o *v1.VirtualMachine, t v1.VirtualMachineConditionType) *v1.VirtualMachineCondition {
	for i := range o.Status.Conditions {
		if o.Status.Conditions[i].Type == t {
			return &o.Status.Conditions[i]
		}
	}
	return nil
}

// action returns the action of a kind, which must be in the plan.
func action(t *testing.T, p vm.Plan, verb vm.Verb) vm.Action {
	t.Helper()
	for _, a := range p.Actions {
		if a.Verb == verb {
			return a
		}
	}
	t.Fatalf("no %s in\n%s", verb, p)
	return vm.Action{}
}

// vmi adds a VMI of the VM in a phase.
func vmi(phase v1.VirtualMachineInstancePhase, edit ...func(*v1.VirtualMachineInstance)) change {
	return func(s *vm.Snapshot) {
		s.VMI = &v1.VirtualMachineInstance{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "uid-vmi", ResourceVersion: "5", Annotations: map[string]string{v1.VirtualMachineGenerationAnnotation: "3"},
				Finalizers:      []string{v1.VirtualMachineControllerFinalizer},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.VM, v1.VirtualMachineGroupVersionKind)}},
			Spec:   *s.VM.Spec.Template.Spec.DeepCopy(),
			Status: v1.VirtualMachineInstanceStatus{Phase: phase, VirtualMachineRevisionName: "revision-start-vm-uid-vm-3"},
		}
		for _, e := range edit {
			e(s.VMI)
		}
	}
}

func edit(f func(*v1.VirtualMachine)) change { return func(s *vm.Snapshot) { f(s.VM) } }

func strategy(r v1.VirtualMachineRunStrategy) change {
	return edit(func(o *v1.VirtualMachine) { o.Spec.RunStrategy = &r })
}

// ranAs sets the run strategy that the status records.
func ranAs(r v1.VirtualMachineRunStrategy) change {
	return edit(func(o *v1.VirtualMachine) { o.Status.RunStrategy = r })
}

func requests(all ...v1.VirtualMachineStateChangeRequest) change {
	return edit(func(o *v1.VirtualMachine) { o.Status.StateChangeRequests = all })
}

var (
	start = v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest}
	stop  = v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest, UID: new(types.UID("uid-vmi"))}
)

func is(t v1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus, reason string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Status.Conditions = append(g.Status.Conditions, v1.VirtualMachineInstanceCondition{Type: t, Status: status, Reason: reason})
	}
}

func leaving(g *v1.VirtualMachineInstance) { g.DeletionTimestamp = &metav1.Time{Time: now} }

func deleting(o *v1.VirtualMachine) { o.DeletionTimestamp = &metav1.Time{Time: now} }

func pending(verb vm.Verb, name string) change {
	return func(s *vm.Snapshot) { s.Pending = append(s.Pending, vm.Write{Verb: verb, Name: name}) }
}

// revision adds the start revision of a generation with the current spec, changed.
func revision(generation int64, edit ...func(*v1.VirtualMachineSpec)) change {
	return func(s *vm.Snapshot) {
		spec := s.VM.Spec.DeepCopy()
		for _, e := range edit {
			e(spec)
		}
		raw, err := json.Marshal(map[string]any{"spec": spec})
		if err != nil {
			panic(err)
		}
		s.Revisions = append(s.Revisions, &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: raw}, Revision: generation,
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("revision-start-vm-uid-vm-%d", generation), UID: "uid-revision"}})
	}
}
