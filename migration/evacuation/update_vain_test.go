// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"
)

// TestUpdatesInVain updates a VMI whose Pod has an old image afterwards as well.
func TestUpdatesInVain(t *testing.T) {
	made := UpdateWorkloads(workloads(guestWith(old)), start).Standings[0].Migration
	updated := func(phase v1.VirtualMachineInstanceMigrationPhase) func(*Candidate) {
		return has("m", phase, 10*time.Minute, moved("before", sourceNode), func(m *v1.VirtualMachineInstanceMigration) {
			m.Annotations = made.Annotations
		})
	}
	done := updated(v1.MigrationSucceeded)
	for name, tc := range map[string]struct {
		guest []func(*Candidate)
		edit  func(*Workloads)
		held  bool
	}{
		"nothing has changed": {guest: []func(*Candidate){done}, held: true},
		"it has yet another image": {
			guest: []func(*Candidate){done, image("mirror.test/virt-launcher:2")}, held: true,
		},
		"other nodes are there":           {guest: []func(*Candidate){done}, edit: func(w *Workloads) { w.Fleet = "other" }, held: true},
		"it was evacuated since":          {guest: []func(*Candidate){done, has("n", v1.MigrationSucceeded, 6*time.Minute, evacuates("before"), moved("before", sourceNode))}, held: true},
		"the update has failed":           {guest: []func(*Candidate){updated(v1.MigrationFailed)}},
		"it was only evacuated":           {guest: []func(*Candidate){has("n", v1.MigrationSucceeded, 6*time.Minute, evacuates("before"), moved("before", sourceNode))}},
		"there is another launcher image": {guest: []func(*Candidate){done}, edit: func(w *Workloads) { w.LauncherImage += "1" }},
		"KubeVirt is configured": {guest: []func(*Candidate){done}, edit: func(w *Workloads) {
			w.KubeVirt.Spec.Configuration.MachineType = "odd"
		}},
		"the guest's spec has changed": {guest: []func(*Candidate){done, is(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.NodeSelector = map[string]string{"a": "b"} })}},
		"its owner asks for something": {guest: []func(*Candidate){done, cpu}},
	} {
		t.Run(name, func(t *testing.T) {
			w := workloads(guestWith(append([]func(*Candidate){old}, tc.guest...)...))
			if tc.edit != nil {
				tc.edit(&w)
			}
			out := UpdateWorkloads(w, start)
			s := out.Standings[0]
			if tc.held != (s.Verb == "" && s.Reason == ReasonUpdateInVain && s.Migration.Name == "m" && s.At.IsZero()) || !tc.held && s.Verb != Create {
				t.Errorf("%q, %s: %s", s.Verb, s.Reason, s.Message)
			}
			if out.Outdated != 1 {
				t.Errorf("%d are outdated", out.Outdated)
			}
		})
	}
}
