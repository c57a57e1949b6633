// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/internal/vmifixture"
)

// A specCase is one row of the cases of the specification (VMI reconciliation 13): a
// situation and the complete decision.
//
// Where the decision intentionally differs from KubeVirt, the name of the row says so:
// (better: ...). Events of created and deleted Pods are emitted by package vmictrl; events
// here are those of the plan.
type specCase struct {
	given []func(*vmi.Snapshot)
	phase v1.VirtualMachineInstancePhase
	// do are the actions, separated by semicolons.
	do string
	// conditions are all conditions, by type: Type=Status/Reason.
	conditions string
	// says is part of the message of one of them, or of a wait.
	says string
	// events are the emitted ones: Warning or Normal, and the reason.
	events string
	// waits are the reasons of all waits.
	waits string
	// requeue is when the VMI is requeued without an event; 0 is never.
	requeue time.Duration
	// fields are other parts of the object by their path, with spaces between names: a
	// string unquoted, anything else as JSON, a missing value as a dash. Finalizers
	// that are not listed stay unchanged.
	fields texts
	// settled is true if nothing changes, and no event is emitted, once this is stored.
	settled bool
}

type specRows = map[string]specCase

// specCases are the headings of section 13.
var specCases = []struct {
	heading string
	rows    []func() specRows
}{
	{"creation and gating", []func() specRows{specCreation, specMigrations, specClocks}},
	{"storage before the Pod", []func() specRows{specClaims, specFirstConsumer, specAggregate, specState}},
	{"scheduling", []func() specRows{specScheduling, specReadyPods, specHandoff, specLostPods}},
	{"scheduled and running", []func() specRows{specHanded, specRunning, specPodSync, specEviction, specPaused}},
	{"live updates", []func() specRows{specLiveUpdates, specMustMigrate}},
	{"final, deletion, finalizers", []func() specRows{specFinal, specDeletion, specFailedDeletion}},
	{"decentralized migration targets", []func() specRows{specReceivers}},
	{"hotplug", []func() specRows{specPlugging, specUnplugging, specCleanUp, specVolumeStatus, specOverhead}},
	{"neighbours", []func() specRows{specSilence}},
	{"corner cases", []func() specRows{specCorners, specStateClaims}},
}

func TestSpecCases(t *testing.T) {
	for _, c := range specCases {
		t.Run(c.heading, func(t *testing.T) {
			for _, rows := range c.rows {
				for name, row := range rows() {
					t.Run(name, func(t *testing.T) { row.run(t) })
				}
			}
		})
	}
}

// specResult is what a specCase compares.
type specResult struct {
	Phase, Do, Conditions, Events, Waits, Finalizers string
	Requeue                                          time.Duration
	Fields                                           texts
}

func (c specCase) run(t *testing.T) {
	var s vmi.Snapshot
	for _, change := range c.given {
		change(&s)
	}
	before := s.VMI.DeepCopy()
	plan := vmi.Decide(s, now)
	if diff := gocmp.Diff(before, s.VMI); diff != "" {
		t.Fatalf("Decide changed its input:\n%s", diff)
	}
	if diff := gocmp.Diff(plan.Waits, vmi.Explain(s, now)); diff != "" {
		t.Errorf("Explain says other things:\n%s", diff)
	}
	vmifixture.Diagnosed(t, s, plan)
	want := specResult{Phase: string(c.phase), Do: c.do, Conditions: c.conditions, Events: c.events, Waits: c.waits,
		Finalizers: strings.Join(before.Finalizers, " "), Requeue: c.requeue, Fields: c.fields}
	got := resultOf(plan, slices.Collect(maps.Keys(c.fields)))
	if _, given := c.fields["metadata finalizers"]; given {
		want.Finalizers = got.Finalizers
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, plan)
	}
	if !says(plan, c.says) {
		t.Errorf("nothing says %q:\n%s", c.says, plan)
	}
	if c.settled {
		s.VMI = plan.VMI
		again := vmi.Decide(s, now.Add(time.Second))
		if diff := gocmp.Diff(plan.VMI, again.VMI); diff != "" || len(again.Events) > 0 || len(again.Actions) > 0 {
			t.Errorf("a second pass wants %v, emits %v and changes\n%s", again.Actions, again.Events, diff)
		}
	}
}

func says(plan vmi.Plan, text string) bool {
	return text == "" ||
		slices.ContainsFunc(plan.VMI.Status.Conditions, func(c v1.VirtualMachineInstanceCondition) bool { return strings.Contains(c.Message, text) }) ||
		slices.ContainsFunc(plan.Waits, func(w vmi.Wait) bool { return strings.Contains(w.Message, text) })
}

func resultOf(plan vmi.Plan, fields []string) specResult {
	r := specResult{Phase: string(plan.VMI.Status.Phase), Finalizers: strings.Join(plan.VMI.Finalizers, " ")}
	conditions := slices.Clone(plan.VMI.Status.Conditions)
	slices.SortFunc(conditions, func(a, b v1.VirtualMachineInstanceCondition) int { return cmp.Compare(a.Type, b.Type) })
	r.Conditions = spellAll(conditions, " ", func(c v1.VirtualMachineInstanceCondition) string {
		return strings.TrimSuffix(fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason), "/")
	})
	r.Do = spellAll(plan.Actions, "; ", spell)
	r.Waits = spellAll(plan.Waits, " ", func(w vmi.Wait) string { return w.Reason })
	r.Events = spellAll(plan.Events, " ", func(e vmi.Event) string {
		if e.Warning {
			return "Warning/" + e.Reason
		}
		return "Normal/" + e.Reason
	})
	if plan.RequeueAt != nil {
		r.Requeue = plan.RequeueAt.Sub(now)
	}
	for _, f := range fields {
		if r.Fields == nil {
			r.Fields = texts{}
		}
		r.Fields[f] = fieldOf(plan.VMI, f)
	}
	return r
}

func spellAll[T any](all []T, separator string, spell func(T) string) string {
	var words []string
	for _, one := range all {
		words = append(words, spell(one))
	}
	return strings.Join(words, separator)
}

// spell returns an action as one line, with all its changes.
func spell(a vmi.Action) string {
	change := func(of map[string]*string) string {
		var words []string
		for _, key := range slices.Sorted(maps.Keys(of)) {
			if of[key] == nil {
				words = append(words, key+"-")
			} else {
				words = append(words, key+"="+*of[key])
			}
		}
		return strings.Join(words, ",")
	}
	text, _, _ := strings.Cut(a.String(), " (")
	text, _, _ = strings.Cut(text, " labels=")
	text, _, _ = strings.Cut(text, " annotations=")
	if a.Labels != nil {
		text += " labels[" + change(a.Labels) + "]"
	}
	if a.Annotations != nil {
		text += " annotations[" + change(a.Annotations) + "]"
	}
	if c := a.Claim; c != nil && a.Verb == vmi.CreateClaim {
		size := c.Spec.Resources.Requests[corev1.ResourceStorage]
		text = fmt.Sprintf("%s %s=%s class=%s %s %s owner=%s/%s", a.Verb, "persistent-state-for", c.Labels["persistent-state-for"],
			*c.Spec.StorageClassName, c.Spec.AccessModes[0], size.String(), c.OwnerReferences[0].Kind, c.OwnerReferences[0].Name)
	}
	return text
}

// fieldOf returns a part of an object as text.
func fieldOf(of *v1.VirtualMachineInstance, path string) string {
	raw, err := json.Marshal(of)
	if err != nil {
		return err.Error()
	}
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		return err.Error()
	}
	for name := range strings.FieldsSeq(path) {
		m, _ := value.(map[string]any)
		value = m[name]
	}
	switch value := value.(type) {
	case nil:
		return "-"
	case string:
		return value
	default:
		raw, err := json.Marshal(value)
		if err != nil {
			return err.Error()
		}
		return string(raw)
	}
}

// of sets a VMI in a phase.
func of(phase v1.VirtualMachineInstancePhase, change ...func(*v1.VirtualMachineInstance)) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) { s.VMI = guest(phase, change...) }
}

// given lists the parts of a situation.
func given(all ...func(*vmi.Snapshot)) []func(*vmi.Snapshot) { return all }

func set(change func(*vmi.Config)) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) { change(&s.Config) }
}

func failed(reason, message string) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) { s.Failure = &vmi.Failure{Reason: reason, Message: message} }
}
