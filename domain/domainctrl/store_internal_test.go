// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmipatch"
)

func TestStore_GuardsOfReports(t *testing.T) {
	report := func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.Phase = v1.Running
		vmi.Status.Conditions = append(vmi.Status.Conditions, v1.VirtualMachineInstanceCondition{Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionTrue})
	}
	note := action.Action{Verb: action.Apply, Operation: domain.Operation{Verb: domain.SetMetadata}}
	for name, tc := range map[string]struct {
		edit    func(*v1.VirtualMachineInstance)
		tasks   []action.Action
		binding bool
	}{
		"a report":            {edit: report},
		"a report and a note": {edit: report, tasks: []action.Action{note}},
		"a guest is touched":  {edit: report, tasks: []action.Action{note, {Verb: action.Abort}}, binding: true},
		"files are removed":   {edit: report, tasks: []action.Action{{Verb: action.Cleanup}}, binding: true},
		"the lease changes":   {edit: func(vmi *v1.VirtualMachineInstance) { vmi.Annotations[handoff.Annotation] = "{}" }, binding: true},
		"the lease goes":      {edit: func(vmi *v1.VirtualMachineInstance) { vmi.Annotations = nil }, binding: true},
		"a label changes":     {edit: func(vmi *v1.VirtualMachineInstance) { vmi.Labels = map[string]string{"a": "b"} }, binding: true},
		"the node changes":    {edit: func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = "b" }, binding: true},
		"a move is reported":  {edit: func(vmi *v1.VirtualMachineInstance) { vmi.Status.MigrationState.Completed = true }, binding: true},
		"a move is forgotten": {edit: func(vmi *v1.VirtualMachineInstance) { vmi.Status.MigrationState = nil }, binding: true},
	} {
		t.Run(name, func(t *testing.T) {
			was := &v1.VirtualMachineInstance{}
			was.Annotations = map[string]string{handoff.Annotation: "lease"}
			was.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{}
			want := was.DeepCopy()
			tc.edit(want)
			guards := pass{observed: observed{vmi: was}, plan: plan.Plan{VMI: want, Actions: tc.tasks}}.guards()
			if got := reflect.DeepEqual(guards, []vmipatch.Guard{vmipatch.Version}); got != tc.binding {
				t.Errorf("the guards are %v", guards)
			}
		})
	}
}
