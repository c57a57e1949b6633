// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vm"
)

const (
	created = "CreateRevision CreateVMI"
	started = "SuccessfulCreate: Started the virtual machine by creating the new virtual machine instance vm"
	stopped = "SuccessfulDelete: Stopped the virtual machine by deleting the virtual machine instance uid-vmi"
)

func foreign(g *v1.VirtualMachineInstance) {
	g.OwnerReferences[0].UID, g.OwnerReferences[0].Name = "another", "another"
}

func specLifecycle() specRows {
	orphan := func(g *v1.VirtualMachineInstance) { g.OwnerReferences = nil }
	bare := func(o *v1.VirtualMachine) { o.Finalizers, o.Annotations = nil, nil }
	orphaned := func(o *v1.VirtualMachine) { o.Finalizers = append(o.Finalizers, metav1.FinalizerOrphanDependents) }
	released := func(t *testing.T, p vm.Plan) {
		if a := action(t, p, vm.UpdateVM); len(p.VM.Finalizers) != 0 || a.If.ResourceVersion != "7" {
			t.Errorf("finalizers %v under %+v", p.VM.Finalizers, a.If)
		}
	}
	return specRows{
		"1 Always":         {do: created, done: started, printable: "Starting"},
		"1 Once":           {given: []change{strategy(v1.RunStrategyOnce)}, do: created, done: started},
		"1 RerunOnFailure": {given: []change{strategy(v1.RunStrategyRerunOnFailure)}, do: created, done: started},
		"7 finalizer added (better: with the observed versions, before anything is created)": {given: []change{edit(bare)}, do: "UpdateVM " + created, check: func(t *testing.T, p vm.Plan) {
			if diff := cmp.Diff(newVM().Finalizers, p.VM.Finalizers); diff != "" || p.VM.Annotations[v1.ControllerAPILatestVersionObservedAnnotation] != "v1" {
				t.Errorf("%s %v", diff, p.VM.Annotations)
			}
		}},
		"8 deleting, with a VMI":              {given: []change{vmi(v1.Running), edit(deleting)}, do: "DeleteVMI", done: stopped, printable: "Terminating"},
		"8 deleting, the VMI leaves":          {given: []change{vmi(v1.Running, leaving), edit(deleting)}, printable: "Terminating"},
		"8 deleting, without a VMI":           {given: []change{edit(deleting)}, do: "UpdateVM", check: released},
		"8 deleting, dependents are orphaned": {given: []change{vmi(v1.Running), edit(deleting), edit(orphaned)}, do: "UpdateVM"},
		"8 deleting, a creation is pending":   {given: []change{edit(deleting), pending(vm.CreateVMI, "vm")}},
		"3.1 an orphan is adopted": {given: []change{vmi(v1.Running, orphan)}, do: "AdoptVMI", check: func(t *testing.T, p vm.Plan) {
			if diff := cmp.Diff(vm.Precondition{UID: "uid-vmi", OwnerLive: true}, action(t, p, vm.AdoptVMI).If); diff != "" {
				t.Error(diff)
			}
		}},
		"3.1 not one that leaves": {given: []change{vmi(v1.Running, orphan, leaving)}, says: "of this name is being deleted"},
		"13 that of a deleted VM of the same name": {given: []change{vmi(v1.Running, func(g *v1.VirtualMachineInstance) { g.OwnerReferences[0].UID = "uid-earlier" })},
			printable: "Stopped", failure: "FailedCreate: Failure while starting VMI: VirtualMachineInstance ns/vm exists and is controlled by VirtualMachine vm; delete it, or rename the VirtualMachine"},
		"13 another VM's (better: it is named)": {given: []change{vmi(v1.Running, foreign)}, printable: "Stopped",
			failure: "FailedCreate: Failure while starting VMI: VirtualMachineInstance ns/vm exists and is controlled by VirtualMachine another; delete it, or rename the VirtualMachine"},
		"14 create fails": {given: []change{func(s *vm.Snapshot) {
			s.Failure = &vm.Failure{Reason: "FailedCreate", Message: "Failure while starting VMI: no"}
		}},
			do: created, failure: "FailedCreate: Failure while starting VMI: no", printable: "Stopped"},
		"14 what a failing deletion reports": {given: []change{vmi(v1.Running), strategy(v1.RunStrategyHalted)}, do: "DeleteVMI", check: func(t *testing.T, p vm.Plan) {
			a := action(t, p, vm.DeleteVMI)
			if a.Fault != (vm.Failure{Reason: "FailedDelete", Message: "Failure attempting to delete VMI: "}) || a.Failed.Message != "Error deleting virtual machine instance vm: " || a.If.UID != "uid-vmi" {
				t.Errorf("%+v", a)
			}
		}},
		"17 manual recovery": {given: []change{edit(func(o *v1.VirtualMachine) {
			o.Status.Conditions = []v1.VirtualMachineCondition{{Type: v1.VirtualMachineManualRecoveryRequired, Status: corev1.ConditionTrue}}
		})}, says: "ended during the migration of its volumes"},
		"92 a creation is pending: nothing is created": {given: []change{pending(vm.CreateVMI, "vm")}, printable: "Starting", says: "CreateVMI vm"},
		"92 (better: what the creation led to is not taken back until the cache has it)": {given: []change{pending(vm.CreateVMI, "vm"), func(s *vm.Snapshot) {
			s.VM.Status.Created = true
			s.VM.Status.Conditions = []v1.VirtualMachineCondition{{Type: v1.VirtualMachineReady, Status: corev1.ConditionFalse, Reason: "VMIConditionMissing"}}
		}}, printable: "Starting", check: func(t *testing.T, p vm.Plan) {
			if st := p.VM.Status; !st.Created || len(st.Conditions) != 1 || st.Conditions[0].Reason != "VMIConditionMissing" {
				t.Errorf("status %+v", st)
			}
		}},
		"92 a revision is pending": {given: []change{pending(vm.CreateRevision, "r")}, printable: "Stopped"},
		"92 nothing is deleted":    {given: []change{vmi(v1.Running), strategy(v1.RunStrategyHalted), pending(vm.DeleteVMI, "vm")}, printable: "Stopping"},
		"no template":              {given: []change{edit(func(o *v1.VirtualMachine) { o.Spec.Template = nil })}, failure: "FailedCreate: spec.template: missing virtual machine template"},
	}
}

func specVMI() specRows {
	template := func(o *v1.VirtualMachine) {
		o.Labels = map[string]string{"vm": "only"}
		o.Spec.Template.ObjectMeta = metav1.ObjectMeta{Name: "ignored", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}}
		o.Spec.Template.Spec.Volumes = []v1.Volume{{Name: "root"}}
	}
	noUUID := func(o *v1.VirtualMachine) { o.Spec.Template.Spec.Domain.Firmware = nil }
	paused := start
	paused.Data = map[string]string{"paused": "true"}
	dump := func(phase v1.MemoryDumpPhase) change {
		return edit(func(o *v1.VirtualMachine) {
			o.Spec.Template.Spec.Volumes = []v1.Volume{{Name: "dump", VolumeSource: v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{}}}}
			o.Status.MemoryDumpRequest = &v1.VirtualMachineMemoryDumpRequest{ClaimName: "dump", Phase: phase}
		})
	}
	volumes := func(n int) func(*testing.T, vm.Plan) {
		return func(t *testing.T, p vm.Plan) {
			if g := action(t, p, vm.CreateVMI).VMI; len(g.Spec.Volumes) != n {
				t.Errorf("volumes %v", g.Spec.Volumes)
			}
		}
	}
	return specRows{
		"2 4 5 16 the VMI": {given: []change{edit(template)}, do: created, check: func(t *testing.T, p vm.Plan) {
			g := action(t, p, vm.CreateVMI).VMI
			want := metav1.ObjectMeta{Namespace: "ns", Name: "vm", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d", "kubevirt.io/vm-generation": "3"},
				Finalizers: []string{"kubevirt.io/virtualMachineControllerFinalize"}, OwnerReferences: []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "vm", UID: "uid-vm", Controller: new(true), BlockOwnerDeletion: new(true)}}}
			if diff := cmp.Diff(want, g.ObjectMeta); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			devices := g.Spec.Domain.Devices
			if g.Spec.Domain.Firmware.UUID != "given" || len(devices.Disks) != 1 || devices.Disks[0].Name != "root" || devices.Interfaces[0].Bridge == nil || g.Status.VirtualMachineRevisionName != "revision-start-vm-uid-vm-3" {
				t.Errorf("%+v", g)
			}
		}},
		"4 no UUID (better: stored before the VMI is made)": {given: []change{edit(noUUID)}, do: "UpdateVM", says: "the spec is not stored yet", check: func(t *testing.T, p vm.Plan) {
			if u := p.VM.Spec.Template.Spec.Domain.Firmware.UUID; u != "d633a622-2335-5606-93ae-d432b7c7f2d2" {
				t.Errorf("UUID %s", u)
			}
		}},
		"4 no UUID, halted": {given: []change{edit(noUUID), strategy(v1.RunStrategyHalted)}, do: "UpdateVM"},
		"4.4 paused": {given: []change{strategy(v1.RunStrategyManual), requests(paused)}, do: created, requests: "Start", check: func(t *testing.T, p vm.Plan) {
			if s := action(t, p, vm.CreateVMI).VMI.Spec.StartStrategy; s == nil || *s != v1.StartStrategyPaused {
				t.Errorf("start strategy %v", s)
			}
		}},
		"16 slirp":                             {given: []change{func(s *vm.Snapshot) { s.Config.Cluster.NetworkInterface = v1.DeprecatedSlirpInterface }}, failure: "FailedCreate: Failure while starting VMI: slirp interface is deprecated as of v1.3", events: "FailedCreate: Error creating virtual machine instance: slirp interface is deprecated as of v1.3"},
		"85 a dump that runs keeps its volume": {given: []change{dump(v1.MemoryDumpInProgress)}, do: created, check: volumes(1)},
		"85 one that is complete does not":     {given: []change{dump(v1.MemoryDumpCompleted)}, do: created, check: volumes(0)},
		"8.10 metadata": {given: []change{vmi(v1.Running, func(g *v1.VirtualMachineInstance) { g.Annotations["descheduler.alpha.kubernetes.io/evict"] = "true" }),
			edit(func(o *v1.VirtualMachine) { o.Annotations["kubevirt.io/skip-backup-hooks"] = "true" })}, do: "PatchVMI", check: func(t *testing.T, p vm.Plan) {
			want := map[string]string{"kubevirt.io/vm-generation": "3", "kubevirt.io/skip-backup-hooks": "true"}
			if diff := cmp.Diff(want, action(t, p, vm.PatchVMI).VMI.Annotations); diff != "" {
				t.Error(diff)
			}
		}},
		"PCI topology is kept": {given: []change{vmi(v1.Running, func(g *v1.VirtualMachineInstance) {
			g.Annotations[v1.PciTopologyVersionAnnotation], g.Annotations[v1.PciInterfaceSlotCountAnnotation] = "v2", "4"
		})}, do: "UpdateVM", check: func(t *testing.T, p vm.Plan) {
			want := map[string]string{v1.PciTopologyVersionAnnotation: "v2", v1.PciInterfaceSlotCountAnnotation: "4"}
			if diff := cmp.Diff(want, p.VM.Spec.Template.ObjectMeta.Annotations); diff != "" {
				t.Error(diff)
			}
		}},
	}
}

func runStrategyIs(want v1.VirtualMachineRunStrategy) func(*testing.T, vm.Plan) {
	return func(t *testing.T, p vm.Plan) {
		if got, err := p.VM.RunStrategy(); got != want || err != nil {
			t.Errorf("run strategy %s, want %s: %v", got, want, err)
		}
	}
}

func specStrategies() specRows {
	rerun, manual, halted, once := strategy(v1.RunStrategyRerunOnFailure), strategy(v1.RunStrategyManual), strategy(v1.RunStrategyHalted), strategy(v1.RunStrategyOnce)
	ran := ranAs(v1.RunStrategyRerunOnFailure)
	both := func(o *v1.VirtualMachine) { o.Spec.Running = new(true) }
	return specRows{
		"4.1 Always, running":              {given: []change{vmi(v1.Running)}, printable: "Running"},
		"4.1 Always, ended":                {given: []change{vmi(v1.Succeeded)}, do: "DeleteVMI", done: stopped},
		"4.1 Always, ended and leaving":    {given: []change{vmi(v1.Succeeded, leaving)}, says: "in phase Succeeded"},
		"4.1 Halted, running":              {given: []change{vmi(v1.Running), halted}, do: "DeleteVMI", done: stopped, printable: "Stopping"},
		"4.1 Halted":                       {given: []change{halted}, printable: "Stopped"},
		"10 Once, failed":                  {given: []change{vmi(v1.Failed), once}, printable: "CrashLoopBackOff"},
		"10 Manual, failed":                {given: []change{vmi(v1.Failed), manual}, do: "PatchVMI", printable: "Stopped"},
		"19 RerunOnFailure, never started": {given: []change{rerun}, do: created, check: recordedAs("")},
		"20 RerunOnFailure, ran":           {given: []change{rerun, ran}, printable: "Stopped"},
		"22 RerunOnFailure after Always":   {given: []change{rerun, ranAs(v1.RunStrategyAlways)}, do: created, check: recordedAs(v1.RunStrategyAlways)},
		"22 RerunOnFailure after Halted":   {given: []change{rerun, ranAs(v1.RunStrategyHalted)}, do: created},
		"22 RerunOnFailure after Manual (better: recorded when the VMI exists)": {given: []change{rerun, ranAs(v1.RunStrategyManual)}, do: created, check: recordedAs(v1.RunStrategyManual)},
		"22 RerunOnFailure, the VMI exists":                                     {given: []change{rerun, vmi(v1.Pending)}, check: recordedAs(v1.RunStrategyRerunOnFailure), says: "in phase Pending"},
		"23 RerunOnFailure, failed (better: the request is stored first)":       {given: []change{rerun, ran, vmi(v1.Failed)}, requests: "Start"},
		"23 RerunOnFailure, failed, then deleted":                               {given: []change{rerun, ran, vmi(v1.Failed), requests(start)}, do: "DeleteVMI", requests: "Start"},
		"23 RerunOnFailure, then started":                                       {given: []change{rerun, ran, requests(start)}, do: created, requests: "Start"},
		"23 RerunOnFailure, succeeded":                                          {given: []change{rerun, ran, vmi(v1.Succeeded)}, do: "DeleteVMI", done: stopped},
		"23 RerunOnFailure, to be stopped":                                      {given: []change{rerun, ran, vmi(v1.Running), requests(stop)}, do: "DeleteVMI", requests: "Stop"},
		"34 unknown":                                                            {given: []change{strategy("Never")}, failure: "FailedCreate: unknown runstrategy: Never"},
		"0 both fields":                                                         {given: []change{edit(both)}, failure: "FailedCreate: Error fetching RunStrategy: running and runstrategy are mutually exclusive"},
		"0 running is Always":                                                   {given: []change{edit(both), edit(func(o *v1.VirtualMachine) { o.Spec.RunStrategy = nil })}, do: created},
		"0 neither is Halted":                                                   {given: []change{edit(func(o *v1.VirtualMachine) { o.Spec.RunStrategy = nil })}, printable: "Stopped"},
	}
}

func recordedAs(want v1.VirtualMachineRunStrategy) func(*testing.T, vm.Plan) {
	return func(t *testing.T, p vm.Plan) {
		if got := p.VM.Status.RunStrategy; got != want {
			t.Errorf("recorded %q, want %q", got, want)
		}
	}
}

func specRequests() specRows {
	manual, halted, rerun := strategy(v1.RunStrategyManual), strategy(v1.RunStrategyHalted), strategy(v1.RunStrategyRerunOnFailure)
	other := stop
	other.UID = nil
	running := func(o *v1.VirtualMachine) { o.Spec.RunStrategy, o.Spec.Running = nil, new(false) }
	return specRows{
		"25 Manual restart: stop":                                       {given: []change{manual, vmi(v1.Running), requests(stop, start)}, do: "DeleteVMI", requests: "Stop Start"},
		"25 Manual restart: it leaves":                                  {given: []change{manual, vmi(v1.Running, leaving), requests(stop, start)}, requests: "Stop Start"},
		"25 Manual restart: gone, only Stop is popped":                  {given: []change{manual, requests(stop, start)}, requests: "Start"},
		"25 Manual restart: start":                                      {given: []change{manual, requests(start)}, do: created, requests: "Start"},
		"25 Manual restart: seen":                                       {given: []change{manual, vmi(v1.Pending), requests(start)}},
		"24 Always restart: stop":                                       {given: []change{vmi(v1.Running), requests(stop, start)}, do: "DeleteVMI", requests: "Stop Start"},
		"24 Always restart: started as Stop is popped":                  {given: []change{requests(stop, start)}, do: created, requests: "Start"},
		"28 Stop without UID":                                           {given: []change{manual, vmi(v1.Running), requests(other)}},
		"28 Stop of another VMI":                                        {given: []change{manual, vmi(v1.Running, func(g *v1.VirtualMachineInstance) { g.UID = "next" }), requests(stop)}},
		"4.6 an unknown request (better: it blocks no other)":           {given: []change{manual, requests(v1.VirtualMachineStateChangeRequest{Action: "Jump"}, start)}, requests: "Start"},
		"4.6 (better: nothing is popped while own writes are pending)":  {given: []change{manual, requests(stop), pending(vm.CreateVMI, "vm")}, requests: "Stop"},
		"4.6 Manual, ended before it was seen (better: popped)":         {given: []change{manual, vmi(v1.Succeeded), requests(start)}, do: "PatchVMI"},
		"4.6 Manual, it leaves":                                         {given: []change{manual, vmi(v1.Succeeded, leaving), requests(start)}, do: "PatchVMI", requests: "Start"},
		"4.6 RerunOnFailure, ended before it was seen (better: popped)": {given: []change{rerun, ranAs(v1.RunStrategyRerunOnFailure), vmi(v1.Succeeded, ran), requests(start)}, do: "PatchVMI"},
		"4.6 RerunOnFailure, failed before it was seen":                 {given: []change{rerun, ranAs(v1.RunStrategyRerunOnFailure), vmi(v1.Failed, ran), requests(start)}, do: "DeleteVMI", requests: "Start"},
		"29 Halted, to be started (better: no failure)":                 {given: []change{halted, requests(start)}, do: "UpdateVM", requests: "Start", check: runStrategyIs(v1.RunStrategyAlways)},
		"29 running false, to be started": {given: []change{edit(running), requests(start)}, do: "UpdateVM", requests: "Start", check: func(t *testing.T, p vm.Plan) {
			if p.VM.Spec.Running == nil || !*p.VM.Spec.Running || p.VM.Spec.RunStrategy != nil {
				t.Errorf("%+v", p.VM.Spec)
			}
		}},
	}
}

func specReceivers() specRows {
	address := new("a")
	decentralized := func(done bool) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) {
			g.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{Completed: done,
				SourceState: &v1.VirtualMachineInstanceMigrationSourceState{}, TargetState: &v1.VirtualMachineInstanceMigrationTargetState{}}
			g.Status.MigrationState.TargetState.SyncAddress = address
			g.Status.PhaseTransitionTimestamps = []v1.VirtualMachineInstancePhaseTransitionTimestamp{{Phase: v1.Running}}
		}
	}
	receiver := strategy(v1.RunStrategyWaitAsReceiver)
	marked := func(g *v1.VirtualMachineInstance) { g.Annotations[v1.CreateMigrationTarget] = "true" }
	restore := edit(func(o *v1.VirtualMachine) { o.Annotations[v1.RestoreRunStrategy] = "Manual" })
	return specRows{
		"31 sent away, completed": {given: []change{vmi(v1.Succeeded, decentralized(true))}, do: "PatchVMI UpdateVM", check: runStrategyIs(v1.RunStrategyHalted)},
		"31 not completed":        {given: []change{vmi(v1.Succeeded, decentralized(false))}, do: "PatchVMI", requeue: 2 * time.Second},
		"32 receiver, started": {given: []change{receiver}, do: created, check: func(t *testing.T, p vm.Plan) {
			if g := action(t, p, vm.CreateVMI).VMI; g.Annotations[v1.CreateMigrationTarget] != "true" {
				t.Errorf("annotations %v", g.Annotations)
			}
		}},
		"32 receiver, waiting":      {given: []change{receiver, vmi(v1.WaitingForSync, marked)}, printable: "WaitingForReceiver"},
		"32 received: restored":     {given: []change{receiver, restore, vmi(v1.Running, decentralized(true))}, do: "UpdateVM", check: runStrategyIs("Manual")},
		"32 received, not restored": {given: []change{receiver, vmi(v1.Running, decentralized(true))}},
		"32 no receiver":            {given: []change{receiver, vmi(v1.Running)}, failure: "FailedCreate: Found non receiver VMI while VM is receiver"},
	}
}
