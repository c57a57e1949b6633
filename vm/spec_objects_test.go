// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/vm"
	"github.com/virtloom/virtloom/vm/instancetype"
)

// failedTimes sets the number of VMIs that failed, and when the next may start.
func failedTimes(n int, uid string, in time.Duration) change {
	return edit(func(o *v1.VirtualMachine) {
		o.Status.StartFailure = &v1.VirtualMachineStartFailure{ConsecutiveFailCount: n, LastFailedVMIUID: "uid-" + "vmi", RetryAfterTimestamp: &metav1.Time{Time: now.Add(in)}}
		if uid != "" {
			o.Status.StartFailure.LastFailedVMIUID = "other"
		}
	})
}

func ran(g *v1.VirtualMachineInstance) {
	g.Status.PhaseTransitionTimestamps = []v1.VirtualMachineInstancePhaseTransitionTimestamp{{Phase: v1.Running}}
}

// failures checks the number of failures, and the range of the delay in seconds.
func failures(count int, least, most float64) func(*testing.T, vm.Plan) {
	return func(t *testing.T, p vm.Plan) {
		f := p.VM.Status.StartFailure
		if count == 0 {
			if f != nil {
				t.Errorf("start failure %+v", f)
			}
			return
		}
		if f == nil || f.ConsecutiveFailCount != count {
			t.Fatalf("start failure %+v, want %d", f, count)
		}
		if d := f.RetryAfterTimestamp.Sub(now).Seconds(); d < least || d > most {
			t.Errorf("delay %f, want %f to %f", d, least, most)
		}
	}
}

func specBackOff() specRows {
	const other = "other"
	manual, once := strategy(v1.RunStrategyManual), strategy(v1.RunStrategyOnce)
	failed := vmi(v1.Failed)
	return specRows{
		"35 first":                {given: []change{failed}, do: "DeleteVMI", check: failures(1, 10, 15), printable: "CrashLoopBackOff"},
		"35 second":               {given: []change{failed, failedTimes(1, other, 0)}, do: "DeleteVMI", check: failures(2, 40, 60)},
		"35 third":                {given: []change{failed, failedTimes(2, other, 0)}, do: "DeleteVMI", check: failures(3, 90, 135)},
		"35 fourth":               {given: []change{failed, failedTimes(3, other, 0)}, do: "DeleteVMI", check: failures(4, 160, 240)},
		"35 fifth":                {given: []change{failed, failedTimes(4, other, 0)}, do: "DeleteVMI", check: failures(5, 250, 300)},
		"35 sixth":                {given: []change{failed, failedTimes(5, other, 0)}, do: "DeleteVMI", check: failures(6, 300, 300)},
		"35 a forged number":      {given: []change{failed, failedTimes(1<<40, other, 0)}, do: "DeleteVMI", check: failures(1<<40+1, 300, 300)},
		"35 each VMI counts once": {given: []change{failed, failedTimes(2, "", time.Minute)}, do: "DeleteVMI", check: failures(2, 60, 60)},
		"36 the start waits":      {given: []change{failedTimes(2, other, time.Minute)}, requeue: time.Minute, printable: "CrashLoopBackOff", says: "the next start is at 2026-01-02T03:05:05Z"},
		"36 the wait is over":     {given: []change{failedTimes(2, other, 0)}, do: created, printable: "Starting"},
		"37 a VMI that once ran":  {given: []change{vmi(v1.Failed, ran), failedTimes(2, other, 0)}, do: "DeleteVMI", check: failures(0, 0, 0)},
		"38 Halted clears":        {given: []change{strategy(v1.RunStrategyHalted), failedTimes(2, other, time.Minute)}, check: failures(0, 0, 0), printable: "Stopped"},
		"38 Manual clears":        {given: []change{manual, failedTimes(2, other, time.Minute)}, check: failures(0, 0, 0)},
		"38 Once keeps":           {given: []change{once, failed, failedTimes(2, "", time.Minute)}, do: "PatchVMI", check: failures(2, 60, 60)},
		"40 Once ignores it":      {given: []change{once, failedTimes(2, other, time.Minute)}, do: created},
		"41 finalizer stays with a VMI that lives": {given: []change{once, vmi(v1.Running)}},
		"41 finalizer waits for the status":        {given: []change{once, failed}, check: failures(1, 10, 15)},
		"41 finalizer goes": {given: []change{once, failed, failedTimes(1, "", time.Minute)}, do: "PatchVMI", check: func(t *testing.T, p vm.Plan) {
			if a := action(t, p, vm.PatchVMI); len(a.VMI.Finalizers) != 0 || a.If.ResourceVersion != "5" {
				t.Errorf("%v %+v", a.VMI.Finalizers, a.If)
			}
		}},
		"41 nor before the strategy is recorded": {given: []change{strategy(v1.RunStrategyRerunOnFailure), vmi(v1.Succeeded, ran, leaving)}},
	}
}

const createDV = "CreateDataVolume"

func templates(names ...string) change {
	return edit(func(o *v1.VirtualMachine) {
		for _, n := range names {
			o.Spec.DataVolumeTemplates = append(o.Spec.DataVolumeTemplates, v1.DataVolumeTemplateSpec{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{"l": "1"}}})
			o.Spec.Template.Spec.Volumes = append(o.Spec.Template.Spec.Volumes, v1.Volume{Name: n, VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: n}}})
		}
	})
}

func dataVolume(name string, phase cdiv1.DataVolumePhase, conditions ...cdiv1.DataVolumeCondition) change {
	return func(s *vm.Snapshot) {
		if s.DataVolumes == nil {
			s.DataVolumes = map[string]*cdiv1.DataVolume{}
		}
		s.DataVolumes[name] = &cdiv1.DataVolume{Status: cdiv1.DataVolumeStatus{Phase: phase, Conditions: conditions},
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-dv", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.VM, v1.VirtualMachineGroupVersionKind)}}}
	}
}

func specDataVolumes() specRows {
	halted := strategy(v1.RunStrategyHalted)
	later := edit(func(o *v1.VirtualMachine) { o.Annotations[v1.ImmediateDataVolumeCreation] = "false" })
	orphan := func(s *vm.Snapshot) { s.DataVolumes["a"].OwnerReferences = nil }
	quota := cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeBound, Status: corev1.ConditionFalse, Reason: "ErrExceededQuota"}
	return specRows{
		"43 running": {given: []change{templates("a")}, do: "CreateDataVolume", done: "SuccessfulDataVolumeCreate: Created DataVolume a", printable: "Stopped", check: func(t *testing.T, p vm.Plan) {
			dv := action(t, p, vm.CreateDataVolume).DataVolume
			if dv.Labels["kubevirt.io/created-by"] != "uid-vm" || dv.Labels["l"] != "1" || dv.Annotations["cdi.kubevirt.io/allowClaimAdoption"] != "true" || dv.OwnerReferences[0].UID != "uid-vm" {
				t.Errorf("%+v", dv.ObjectMeta)
			}
		}},
		"43 stopped":                         {given: []change{templates("a"), halted}, do: "CreateDataVolume"},
		"43 annotation false, stopped":       {given: []change{templates("a"), halted, later}},
		"43 annotation false, running":       {given: []change{templates("a"), later}, do: "CreateDataVolume"},
		"91 two of them":                     {given: []change{templates("a", "b")}, do: createDV + " " + createDV},
		"5.6 ready":                          {given: []change{templates("a"), dataVolume("a", cdiv1.Succeeded)}, do: created},
		"5.6 waits for its first consumer":   {given: []change{templates("a"), dataVolume("a", cdiv1.WaitForFirstConsumer)}, do: created},
		"5.6 is imported":                    {given: []change{templates("a"), dataVolume("a", cdiv1.ImportInProgress)}, printable: "Provisioning", says: "DataVolume ns/a is in phase ImportInProgress"},
		"26 Manual, not ready: Start stays":  {given: []change{templates("a"), dataVolume("a", cdiv1.ImportInProgress), strategy(v1.RunStrategyManual), requests(start)}, requests: "Start"},
		"(better: not ready delays no stop)": {given: []change{templates("a"), dataVolume("a", cdiv1.ImportInProgress), strategy(v1.RunStrategyManual), vmi(v1.Running), requests(stop)}, do: "DeleteVMI", requests: "Stop"},
		"46 creation fails": {given: []change{templates("a")}, do: "CreateDataVolume", check: func(t *testing.T, p vm.Plan) {
			a := action(t, p, vm.CreateDataVolume)
			if a.Fault != (vm.Failure{Reason: "FailedCreate", Message: "Error encountered while creating DataVolumes: "}) || *a.Failed != (vm.Event{Warning: true, Reason: "FailedDataVolumeCreate", Message: "Error creating DataVolume a: "}) {
				t.Errorf("%+v", a)
			}
		}},
		"47 failed":         {given: []change{templates("a"), dataVolume("a", cdiv1.Failed)}, printable: "DataVolumeError", events: "FailedDataVolumeImport: DataVolume a failed to import disk image"},
		"47 failed, known":  {given: []change{templates("a"), dataVolume("a", cdiv1.Failed), edit(func(o *v1.VirtualMachine) { o.Status.PrintableStatus = "DataVolumeError" })}, printable: "DataVolumeError"},
		"5.6 quota":         {given: []change{templates("a"), dataVolume("a", cdiv1.Pending, quota)}, failure: "FailedCreate: Error encountered while creating DataVolumes: DataVolume a exceeds quota limits", events: "FailedDataVolumeImport: DataVolume a exceeds quota limits"},
		"49 kept on stop":   {given: []change{templates("a"), dataVolume("a", cdiv1.Succeeded), vmi(v1.Running), halted}, do: "DeleteVMI"},
		"50 clone denied":   {given: []change{templates("a"), func(s *vm.Snapshot) { s.Denied = map[string]string{"a": "no"} }}, failure: "FailedCreate: Error encountered while creating DataVolumes: not authorized to create DataVolume: no", events: "UnauthorizedDataVolumeCreate: Not authorized to create DataVolume a: no"},
		"50 source missing": {given: []change{templates("a"), func(s *vm.Snapshot) { s.NoSource = map[string]string{"a": "gold"} }}, do: "CreateDataVolume", events: "SourcePVCNotAvailabe: Source PVC gold not available: Target PVC a will remain unpopulated until source is created"},
		"3.4 adopted":       {given: []change{templates("a"), dataVolume("a", cdiv1.Succeeded), orphan}, do: "AdoptDataVolume " + created},
	}
}

func specRevisions() specRows {
	other := func(s *v1.VirtualMachineSpec) { s.Template.Spec.Domain.CPU = &v1.CPU{Cores: 9} }
	annotated := func(text string) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) {
			g.Annotations = nil
			if text != "" {
				g.Annotations = map[string]string{v1.VirtualMachineGenerationAnnotation: text}
			}
			g.Status.VirtualMachineRevisionName = "revision-start-vm-uid-vm-2"
		}
	}
	fields := func(observed, desired int64) func(*testing.T, vm.Plan) {
		return func(t *testing.T, p vm.Plan) {
			if st := p.VM.Status; st.ObservedGeneration != observed || st.DesiredGeneration != desired {
				t.Errorf("%d/%d, want %d/%d", st.ObservedGeneration, st.DesiredGeneration, observed, desired)
			}
		}
	}
	return specRows{
		"52 created at the start, older deleted": {given: []change{revision(2)}, do: "DeleteRevision " + created, check: func(t *testing.T, p vm.Plan) {
			rev := action(t, p, vm.CreateRevision).Revision
			if rev.Name != "revision-start-vm-uid-vm-3" || rev.Revision != 3 || rev.OwnerReferences[0].UID != "uid-vm" || action(t, p, vm.DeleteRevision).If.UID != "uid-revision" {
				t.Errorf("%+v", rev)
			}
		}},
		"52 after a crash it is there":      {given: []change{revision(3)}, do: "CreateVMI"},
		"55 annotation 2, generation 3":     {given: []change{vmi(v1.Running, annotated("2")), revision(2, other)}, check: fields(2, 3), says: "non-live-updatable"},
		"55 annotation no number":           {given: []change{vmi(v1.Running, annotated("2b3c")), revision(2, other)}, do: "PatchVMI", check: fields(2, 3)},
		"55 no annotation":                  {given: []change{vmi(v1.Running, annotated("")), revision(2, other)}, do: "PatchVMI", check: fields(2, 3)},
		"55 neither":                        {given: []change{vmi(v1.Running, annotated(""), func(g *v1.VirtualMachineInstance) { g.Status.VirtualMachineRevisionName = "x" })}, check: fields(0, 0)},
		"7.1 bumped if only others changed": {given: []change{vmi(v1.Running, annotated("2")), revision(2)}, do: "PatchVMI", check: fields(3, 3)},
	}
}

func specInstancetypes() specRows {
	const name = "vm-large-v1beta1-uid-large-1"
	typed := edit(func(o *v1.VirtualMachine) { o.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "large"} })
	read := func(s *vm.Snapshot) {
		s.Objects = instancetype.Objects{largeRef: large(4), {Kind: instancetype.KindRevision, Namespace: "ns", Name: name}: nil}
	}
	policy := func(s *vm.Snapshot) { s.Config.Policy = instancetype.Expand }
	old := func(s *vm.Snapshot) {
		s.Revisions = append(s.Revisions, &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "old", Labels: map[string]string{"instancetype.kubevirt.io/object-version": "v1alpha1"}}})
	}
	return specRows{
		"6.1 it must be read": {given: []change{typed}, check: func(t *testing.T, p vm.Plan) {
			if len(p.Need) != 1 || p.Need[0] != largeRef {
				t.Errorf("needs %v", p.Need)
			}
		}},
		"53 stored, and named in the start revision": {given: []change{typed, read}, do: "CreateRevision " + created, check: func(t *testing.T, p vm.Plan) {
			g := action(t, p, vm.CreateVMI).VMI
			if g.Spec.Domain.CPU.Sockets != 4 || g.Annotations["kubevirt.io/cluster-instancetype-name"] != "large" || p.VM.Status.InstancetypeRef.ControllerRevisionRef.Name != name {
				t.Errorf("%+v", g)
			}
			spec := revisionSpec(t, p.Actions[1])
			if spec.Instancetype.RevisionName != name {
				t.Errorf("%+v", spec.Instancetype)
			}
		}},
		"53 not without a matcher": {do: created, check: func(t *testing.T, p vm.Plan) {
			if spec := revisionSpec(t, action(t, p, vm.CreateRevision)); spec.Instancetype != nil {
				t.Errorf("%+v", spec.Instancetype)
			}
		}},
		"67 error with a reason": {given: []change{typed, func(s *vm.Snapshot) { s.Objects = instancetype.Objects{largeRef: nil} }},
			failure: "FailedFindInstancetype: VirtualMachineClusterInstancetype large not found; create it, or correct spec.instancetype"},
		"6.4 conflicts": {given: []change{typed, read, edit(func(o *v1.VirtualMachine) { o.Spec.Template.Spec.Domain.CPU = &v1.CPU{Cores: 1} })},
			failure: "FailedCreate: error encountered while storing instancetype.kubevirt.io controllerRevisions: VM conflicts with instancetype spec in fields: [spec.template.spec.domain.cpu.cores]",
			events:  "FailedCreate: error encountered while storing instancetype.kubevirt.io controllerRevisions: VM conflicts with instancetype spec in fields: [spec.template.spec.domain.cpu.cores]"},
		"6.3b expanded": {given: []change{typed, read, policy}, do: "UpdateVM", check: func(t *testing.T, p vm.Plan) {
			if p.VM.Spec.Instancetype != nil || p.VM.Spec.Template.Spec.Domain.CPU.Sockets != 4 {
				t.Errorf("%+v", p.VM.Spec)
			}
		}},
		"6.3c an upgraded one is deleted later": {given: []change{old}, do: "DeleteRevision " + created},
		"6.3c (better: not while the VMI runs)": {given: []change{old, vmi(v1.Running)}},
	}
}
