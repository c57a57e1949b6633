// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/vm"
	"github.com/virtloom/virtloom/vm/restart"
)

func revisionSpec(t *testing.T, a vm.Action) v1.VirtualMachineSpec {
	t.Helper()
	var content struct{ Spec v1.VirtualMachineSpec }
	if err := json.Unmarshal(a.Revision.Data.Raw, &content); err != nil {
		t.Fatal(err)
	}
	return content.Spec
}

func migrates(g *v1.VirtualMachineInstance) {
	g.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{StartTimestamp: &metav1.Time{Time: now}}
}

func claim(name string, phase corev1.PersistentVolumeClaimPhase) change {
	return func(s *vm.Snapshot) {
		s.Claims = map[string]*corev1.PersistentVolumeClaim{name: {Status: corev1.PersistentVolumeClaimStatus{Phase: phase}}}
	}
}

func specPrintable() specRows {
	sync := func(reason string) func(*v1.VirtualMachineInstance) {
		return is(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, reason)
	}
	unschedulable := is("PodScheduled", corev1.ConditionFalse, "Unschedulable")
	rows := specRows{
		"56 Stopping":           {given: []change{vmi(v1.Running, leaving)}, printable: "Stopping"},
		"56 Migrating":          {given: []change{vmi(v1.Running, migrates)}, printable: "Migrating"},
		"56 Paused":             {given: []change{vmi(v1.Running, is(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, ""))}, printable: "Paused"},
		"56 Running":            {given: []change{vmi(v1.Running)}, printable: "Running"},
		"56 ErrorPvcNotFound":   {given: []change{vmi(v1.Pending, sync("FailedPvcNotFound"))}, printable: "ErrorPvcNotFound"},
		"56 ErrorUnschedulable": {given: []change{vmi(v1.Scheduling, unschedulable)}, printable: "ErrorUnschedulable"},
		"56 ErrImagePull":       {given: []change{vmi(v1.Scheduling, sync("ErrImagePull"))}, printable: "ErrImagePull"},
		"56 ImagePullBackOff":   {given: []change{vmi(v1.Scheduling, sync("ImagePullBackOff"))}, printable: "ImagePullBackOff"},
		"56 Starting":           {given: []change{vmi(v1.Scheduled)}, printable: "Starting"},
		"56 Unknown":            {given: []change{vmi(v1.Unknown)}, printable: "Unknown"},
		"56 DataVolume cannot run": {given: []change{templates("a"), strategy(v1.RunStrategyHalted),
			dataVolume("a", cdiv1.ImportInProgress, cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeRunning, Status: corev1.ConditionFalse, Reason: "ImagePullFailed"})}, printable: "DataVolumeError"},
		"59 first consumer, started": {given: []change{templates("a"), dataVolume("a", cdiv1.WaitForFirstConsumer), claim("a", corev1.ClaimPending), vmi(v1.Pending)}, printable: "WaitingForVolumeBinding"},
		"59 first consumer, stopped": {given: []change{templates("a"), dataVolume("a", cdiv1.WaitForFirstConsumer), claim("a", corev1.ClaimPending), strategy(v1.RunStrategyHalted)}, printable: "Stopped"},
		"59 first consumer, bound": {given: []change{templates("a"), vmi(v1.Pending),
			dataVolume("a", cdiv1.WaitForFirstConsumer, cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeBound, Status: corev1.ConditionTrue})}, printable: "Provisioning"},
		"61 crash loop, RerunOnFailure": {given: []change{strategy(v1.RunStrategyRerunOnFailure), failedTimes(1, "other", time.Minute)}, requeue: time.Minute, printable: "CrashLoopBackOff"},
		"61 crash loop, running":        {given: []change{vmi(v1.Running), failedTimes(1, "other", time.Minute)}, printable: "Running"},
		"61 Once starts at once":        {given: []change{strategy(v1.RunStrategyOnce), failedTimes(1, "other", time.Minute)}, do: created, printable: "Starting"},
	}
	for _, phase := range []v1.VirtualMachineInstancePhase{"", v1.Pending, v1.Scheduling, v1.Scheduled, v1.Running, v1.Succeeded, v1.Failed, v1.Unknown, v1.WaitingForSync} {
		rows["58 deleting in phase "+string(phase)] = specCase{given: []change{vmi(phase), edit(deleting)}, do: "DeleteVMI", printable: "Terminating"}
	}
	return rows
}

func specConditions() specRows {
	has := func(c ...v1.VirtualMachineCondition) change {
		return edit(func(o *v1.VirtualMachine) { o.Status.Conditions = c })
	}
	earlier := metav1.Time{Time: now.Add(-time.Hour)}
	ready := func(want string) func(*testing.T, vm.Plan) {
		return func(t *testing.T, p vm.Plan) {
			c := condition(p.VM, v1.VirtualMachineReady)
			if got := string(c.Status) + " " + c.Reason + " " + c.Message; got != want {
				t.Errorf("Ready %q, want %q", got, want)
			}
			if p.VM.Status.Ready != (c.Status == corev1.ConditionTrue) {
				t.Errorf("status.ready %t", p.VM.Status.Ready)
			}
		}
	}
	absent := func(types ...v1.VirtualMachineConditionType) func(*testing.T, vm.Plan) {
		return func(t *testing.T, p vm.Plan) {
			for _, c := range types {
				if condition(p.VM, c) != nil {
					t.Errorf("condition %s", c)
				}
			}
		}
	}
	agent := v1.VirtualMachineCondition{Type: "AgentConnected", Status: corev1.ConditionTrue}
	old := v1.VirtualMachineCondition{Type: v1.VirtualMachineFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "old", LastTransitionTime: earlier}
	return specRows{
		"62 no VMI":     {given: []change{strategy(v1.RunStrategyHalted)}, check: ready("False VMINotExists VMI does not exist")},
		"62 missing":    {given: []change{vmi(v1.Running)}, check: ready("False VMIConditionMissing VMI is missing the Ready condition")},
		"62 true":       {given: []change{vmi(v1.Running, is(v1.VirtualMachineInstanceReady, corev1.ConditionTrue, ""))}, check: ready("True  ")},
		"62 false":      {given: []change{vmi(v1.Running, is(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, "Why"))}, check: ready("False Why ")},
		"64 not copied": {given: []change{vmi(v1.Running, is("RestartRequired", corev1.ConditionTrue, ""), is("Failure", corev1.ConditionTrue, ""))}, check: absent("RestartRequired", "Failure")},
		"64 others follow": {given: []change{vmi(v1.Running, is("Paused", corev1.ConditionTrue, "")), has(agent)}, check: func(t *testing.T, p vm.Plan) {
			absent("AgentConnected")(t, p)
			if condition(p.VM, "Paused") == nil {
				t.Error("Paused is missing")
			}
		}},
		"64 without a VMI they stay": {given: []change{strategy(v1.RunStrategyHalted), has(agent)}, check: func(t *testing.T, p vm.Plan) {
			if condition(p.VM, "AgentConnected") == nil {
				t.Error("AgentConnected is gone")
			}
		}},
		"65 only the message changed": {given: []change{strategy("Never"), has(old)}, failure: "FailedCreate: old", check: func(t *testing.T, p vm.Plan) {
			if c := condition(p.VM, v1.VirtualMachineFailure); !c.LastTransitionTime.Equal(&earlier) {
				t.Errorf("%+v", c)
			}
		}},
		"9.3 a failure goes":                             {given: []change{strategy(v1.RunStrategyHalted), has(old)}},
		"9.3 (better: not while own writes are pending)": {given: []change{pending(vm.CreateVMI, "vm"), has(old)}, failure: "FailedCreate: old"},
		"9.3 (better: manual recovery outlives a final VMI)": {given: []change{strategy(v1.RunStrategyOnce), vmi(v1.Failed, ran), has(v1.VirtualMachineCondition{Type: v1.VirtualMachineManualRecoveryRequired, Status: corev1.ConditionTrue})},
			do: "PatchVMI", check: func(t *testing.T, p vm.Plan) {
				if condition(p.VM, v1.VirtualMachineManualRecoveryRequired) == nil {
					t.Error("it is gone")
				}
			}},
	}
}

func specVolumes() specRows {
	request := func(r v1.VirtualMachineVolumeRequest) change {
		return edit(func(o *v1.VirtualMachine) { o.Status.VolumeRequests = []v1.VirtualMachineVolumeRequest{r} })
	}
	source := &v1.HotplugVolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}
	add := request(v1.VirtualMachineVolumeRequest{AddVolumeOptions: &v1.AddVolumeOptions{Name: "new", Disk: &v1.Disk{}, VolumeSource: source}})
	drop := request(v1.VirtualMachineVolumeRequest{RemoveVolumeOptions: &v1.RemoveVolumeOptions{Name: "new"}})
	there := edit(func(o *v1.VirtualMachine) {
		s := &o.Spec.Template.Spec
		s.Volumes, s.Domain.Devices.Disks = []v1.Volume{{Name: "new"}}, []v1.Disk{{Name: "new"}}
	})
	halted := strategy(v1.RunStrategyHalted)
	count := func(template, requests int) func(*testing.T, vm.Plan) {
		return func(t *testing.T, p vm.Plan) {
			s := p.VM.Spec.Template.Spec
			if len(s.Volumes) != template || len(s.Domain.Devices.Disks) != template || len(p.VM.Status.VolumeRequests) != requests {
				t.Errorf("%d volumes, %d disks, %d requests", len(s.Volumes), len(s.Domain.Devices.Disks), len(p.VM.Status.VolumeRequests))
			}
		}
	}
	return specRows{
		"68 added, running: the VMI first": {given: []change{vmi(v1.Running), add}, do: "PatchVMI UpdateVM", check: func(t *testing.T, p vm.Plan) {
			count(1, 1)(t, p)
			if v := action(t, p, vm.PatchVMI).VMI.Spec.Volumes; len(v) != 1 || !v[0].PersistentVolumeClaim.Hotpluggable {
				t.Errorf("%+v", v)
			}
		}},
		"68 added, stopped":               {given: []change{halted, add}, do: "UpdateVM", check: count(1, 1)},
		"70 removed, running":             {given: []change{there, vmi(v1.Running), drop}, do: "PatchVMI UpdateVM", check: count(0, 1)},
		"70 removed, stopped":             {given: []change{there, halted, drop}, do: "UpdateVM", check: count(0, 1)},
		"71 added already":                {given: []change{there, vmi(v1.Running), add}, check: count(1, 0)},
		"71 removed already":              {given: []change{vmi(v1.Running), drop}, check: count(0, 0)},
		"68 template has it, not the VMI": {given: []change{vmi(v1.Running), there, add}, do: "PatchVMI", check: count(1, 0)},
	}
}

// sized gives VM and VMI a CPU and memory; the VMI can grow to 8 sockets and 8Gi.
func sized(g *v1.VirtualMachineInstance) {
	gi := resource.MustParse("2Gi")
	g.Spec.Domain.CPU.MaxSockets = 8
	g.Spec.Domain.Memory.MaxGuest = new(resource.MustParse("8Gi"))
	g.Status.Memory = &v1.MemoryStatus{GuestCurrent: &gi, GuestAtBoot: &gi}
	g.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue}}
}

var base = edit(func(o *v1.VirtualMachine) {
	d := &o.Spec.Template.Spec.Domain
	d.CPU, d.Memory = &v1.CPU{Sockets: 2, Cores: 2}, &v1.Memory{Guest: new(resource.MustParse("2Gi"))}
	d.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi"), corev1.ResourceCPU: resource.MustParse("400m")}
	d.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("3Gi")}
})

func sockets(n uint32) change {
	return edit(func(o *v1.VirtualMachine) { o.Spec.Template.Spec.Domain.CPU.Sockets = n })
}

func memory(s string) change {
	return edit(func(o *v1.VirtualMachine) { o.Spec.Template.Spec.Domain.Memory.Guest = new(resource.MustParse(s)) })
}

// live is a VMI of the base VM that runs, then a change of the template.
func live(after ...change) []change {
	return append([]change{base, vmi(v1.Running, sized), revision(3)}, after...)
}

func edited(f func(*v1.VirtualMachineInstance)) change { return func(s *vm.Snapshot) { f(s.VMI) } }

func patched(check func(*v1.VirtualMachineInstance) (got, want any)) func(*testing.T, vm.Plan) {
	return func(t *testing.T, p vm.Plan) {
		got, want := check(action(t, p, vm.PatchVMI).VMI)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func specLive() specRows {
	text := func(l corev1.ResourceList, name corev1.ResourceName) string {
		q := l[name]
		return q.String()
	}
	busy := func(t v1.VirtualMachineInstanceConditionType) change {
		return edited(func(g *v1.VirtualMachineInstance) { is(t, corev1.ConditionTrue, "")(g) })
	}
	placed := edit(func(o *v1.VirtualMachine) {
		s := &o.Spec.Template.Spec
		s.NodeSelector, s.Affinity = map[string]string{"a": "b"}, &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	})
	tolerant := edit(func(o *v1.VirtualMachine) { o.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "k"}} })
	return specRows{
		"73 sockets": {given: live(sockets(4)), do: "PatchVMI", check: patched(func(g *v1.VirtualMachineInstance) (any, any) {
			return []any{g.Spec.Domain.CPU.Sockets, text(g.Spec.Domain.Resources.Requests, corev1.ResourceCPU)}, []any{uint32(4), "800m"}
		})},
		"73 another CPU hotplug":     {given: live(sockets(4), busy(v1.VirtualMachineInstanceVCPUChange)), failure: "HotPlugCPUError: another CPU hotplug is in progress"},
		"73 sockets while migrating": {given: live(sockets(4), edited(migrates)), failure: "HotPlugCPUError: CPU hotplug is not allowed while VMI is migrating"},
		"74 memory": {given: live(memory("4Gi")), do: "PatchVMI", check: patched(func(g *v1.VirtualMachineInstance) (any, any) {
			d := g.Spec.Domain
			return []string{d.Memory.Guest.String(), text(d.Resources.Requests, corev1.ResourceMemory), text(d.Resources.Limits, corev1.ResourceMemory)}, []string{"4Gi", "4Gi", "5Gi"}
		})},
		"89 memory request raised (better: the limit grows too)": {given: live(memory("4Gi"), edited(func(g *v1.VirtualMachineInstance) {
			g.Spec.Domain.Resources.Requests[corev1.ResourceMemory] = resource.MustParse("1Gi")
		})), do: "PatchVMI", check: patched(func(g *v1.VirtualMachineInstance) (any, any) {
			r := g.Spec.Domain.Resources
			return []string{text(r.Requests, corev1.ResourceMemory), text(r.Limits, corev1.ResourceMemory)}, []string{"4Gi", "5Gi"}
		})},
		"74 in progress":     {given: live(memory("4Gi"), busy(v1.VirtualMachineInstanceMemoryChange)), failure: "HotPlugMemoryError: another memory hotplug is in progress"},
		"74 migrating":       {given: live(memory("4Gi"), edited(migrates)), failure: "HotPlugMemoryError: memory hotplug is not allowed while VMI is migrating"},
		"74 equal":           {given: live()},
		"74 both, one patch": {given: live(memory("4Gi"), sockets(4)), do: "PatchVMI"},
		"76 affinity, selector": {given: live(placed), do: "PatchVMI", check: patched(func(g *v1.VirtualMachineInstance) (any, any) {
			return []any{g.Spec.NodeSelector["a"], g.Spec.Affinity != nil}, []any{"b", true}
		})},
		"76 affinity, migrating":          {given: live(placed, edited(migrates)), failure: "AffinityChangeError: Node affinity should not be changed during VMI migration"},
		"76 tolerations added":            {given: live(tolerant), do: "PatchVMI"},
		"76 tolerations cleared":          {given: live(edited(func(g *v1.VirtualMachineInstance) { g.Spec.Tolerations = []corev1.Toleration{{}} })), do: "PatchVMI"},
		"76 tolerations, migrating":       {given: live(tolerant, edited(migrates)), failure: "TolerationsChangeError: tolerations should not be changed during VMI migration"},
		"76 nothing on a VMI that leaves": {given: live(tolerant, edited(leaving))},
		"77 Stage":                        {given: live(sockets(4), func(s *vm.Snapshot) { s.Config.Stage = true }), says: restart.Message},
	}
}

func specRestart() specRows {
	earlier := metav1.Time{Time: now.Add(-time.Hour)}
	required := edit(func(o *v1.VirtualMachine) {
		o.Status.Conditions = []v1.VirtualMachineCondition{{Type: v1.VirtualMachineRestartRequired, Status: corev1.ConditionTrue, Message: "old", LastTransitionTime: earlier}}
	})
	stays := func(t *testing.T, p vm.Plan) {
		if c := condition(p.VM, v1.VirtualMachineRestartRequired); c == nil || !c.LastTransitionTime.Equal(&earlier) {
			t.Errorf("%+v", c)
		}
	}
	gone := func(t *testing.T, p vm.Plan) {
		if c := condition(p.VM, v1.VirtualMachineRestartRequired); c != nil {
			t.Errorf("%+v", c)
		}
	}
	arm := edit(func(o *v1.VirtualMachine) { o.Spec.Template.Spec.Architecture = "arm64" })
	armed := append([]change{base, arm, vmi(v1.Running, sized), revision(3)}, sockets(4))
	cores := edit(func(o *v1.VirtualMachine) { o.Spec.Template.Spec.Domain.CPU.Cores = 9 })
	failed := edited(func(g *v1.VirtualMachineInstance) {
		is(v1.VirtualMachineInstanceMemoryChange, corev1.ConditionFalse, "")(g)
	})
	stuck := edited(func(g *v1.VirtualMachineInstance) { g.Status.Conditions = nil })
	bounded := edited(func(g *v1.VirtualMachineInstance) { g.Spec.Domain.Memory.MaxGuest = nil })
	boot := edited(func(g *v1.VirtualMachineInstance) { g.Status.Memory.GuestAtBoot = new(resource.MustParse("3Gi")) })
	return specRows{
		"73 arm64":                            {given: armed, says: "ARM doesn't support CPU hotplug"},
		"73 fewer sockets":                    {given: live(sockets(1)), says: "Reduction of CPU socket count requires a restart"},
		"73 too many sockets":                 {given: live(sockets(9)), says: "CPU sockets updated in template spec to a value higher than what's available"},
		"77 another field":                    {given: live(cores), says: restart.Message},
		"77 then nothing is live":             {given: live(cores, sockets(4)), says: restart.Message},
		"79 specs match again":                {given: live(required), check: gone},
		"79 no last-start spec":               {given: []change{base, vmi(v1.Running, sized), required}, check: stays},
		"88 (better: the time does not move)": {given: live(sockets(9), required), check: stays, says: "higher than what's available"},
		"4.3 a start drops it":                {given: []change{required}, do: created, check: gone},
		"4.2 a stop drops it":                 {given: []change{required, vmi(v1.Running), strategy(v1.RunStrategyHalted)}, do: "DeleteVMI", check: gone},
		"8.4 failed":                          {given: live(failed), says: "Memory-hotplug failed and is not available for this VM configuration"},
		"8.4 not migratable":                  {given: live(memory("4Gi"), stuck), says: "memory updated in template spec. Memory-hotplug is only available for migratable VMs"},
		"8.4 no maximum":                      {given: live(memory("4Gi"), bounded), says: "memory updated in template spec. Memory-hotplug is not available for this VM configuration"},
		"8.4 more than the maximum":           {given: live(memory("9Gi")), says: "memory hotplug not supported, spec.domain.memory.guest 9Gi is greater than the maximum 8Gi"},
		"8.4 not aligned":                     {given: live(memory("3145729Ki")), says: "must be multiples of 2Mi"},
		"8.4 less than at boot":               {given: live(memory("2560Mi"), boot), says: "to a value lower than what the VM started with"},
	}
}
