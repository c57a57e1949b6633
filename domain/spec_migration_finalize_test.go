// SPDX-License-Identifier: Apache-2.0

package domain_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

// condition gives the guest a condition that is true.
func condition(c v1.VirtualMachineInstanceConditionType) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.Conditions = append(vmi.Status.Conditions, v1.VirtualMachineInstanceCondition{Type: c, Status: corev1.ConditionTrue})
	}
}

// machine is a domain with that many CPUs of four, and a card with a link.
func machine(cpus uint) *libvirtxml.Domain {
	card := libvirtxml.DomainInterface{Alias: &libvirtxml.DomainAlias{Name: "ua-net"}, Link: &libvirtxml.DomainInterfaceLink{State: "up"}}
	return &libvirtxml.Domain{
		Name: "ns_guest", VCPU: &libvirtxml.DomainVCPU{Value: 4, Current: cpus},
		Devices: &libvirtxml.DomainDeviceList{Interfaces: []libvirtxml.DomainInterface{card}},
	}
}

// bound binds the guest's interface to a plugin.
func bound(plugin string, state v1.InterfaceState) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "net", State: state, Binding: &v1.PluginBinding{Name: plugin}}}
	}
}

func sockets(n uint32, own bool, label string) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.CPU = &v1.CPU{Sockets: n, DedicatedCPUPlacement: own}
		vmi.Labels[v1.VirtualMachinePodCPULimitsLabel] = label
	}
}

func all(edits ...func(*v1.VirtualMachineInstance)) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		for _, edit := range edits {
			edit(vmi)
		}
	}
}

// What waits for the guest is done before the migration is said to be complete.
func TestFinalizeDoesWhatWaited(t *testing.T) {
	arrived := moved(there, here, handoff.TakeOver)
	refresh := domain.Facts{Cluster: domain.Cluster{RefreshedBindings: []string{"dhcp"}}}
	agent := machine(2)
	agent.Devices.Channels = []libvirtxml.DomainChannel{{Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: domain.AgentChannel, State: "connected"}}}}
	for name, tt := range map[string]struct {
		edit  func(*v1.VirtualMachineInstance)
		facts domain.Facts
		live  *libvirtxml.Domain
		want  *libvirtxml.Domain
		tasks string
	}{
		"nothing":                             {all(), domain.Facts{}, machine(2), machine(2), "SetMetadata"},
		"its clock":                           {all(), domain.Facts{}, agent, machine(2), "SyncTime, SetMetadata"},
		"a link that is refreshed":            {bound("dhcp", ""), refresh, machine(2), machine(2), strings.Repeat("UpdateDevice, ", 2) + "SetMetadata"},
		"another plugin's is not":             {bound("other", ""), refresh, machine(2), machine(2), "SetMetadata"},
		"nor one that shall be down":          {bound("dhcp", v1.InterfaceStateLinkDown), refresh, machine(2), machine(2), "SetMetadata"},
		"CPUs that it was migrated for":       {all(condition(v1.VirtualMachineInstanceVCPUChange), sockets(4, false, "")), domain.Facts{}, machine(2), machine(4), "SetVCPUs, SetMetadata"},
		"CPUs of its own, with room":          {all(condition(v1.VirtualMachineInstanceVCPUChange), sockets(4, true, "4")), domain.Facts{}, machine(2), machine(4), "SetVCPUs, SetMetadata"},
		"CPUs of its own, without room":       {all(condition(v1.VirtualMachineInstanceVCPUChange), sockets(4, true, "2")), domain.Facts{}, machine(2), machine(4), "SetMetadata"},
		"CPUs of its own, of unknown number":  {all(condition(v1.VirtualMachineInstanceVCPUChange), sockets(4, true, "many")), domain.Facts{}, machine(2), machine(4), "SetMetadata"},
		"CPUs that nobody migrated it for":    {sockets(4, false, ""), domain.Facts{}, machine(2), machine(4), "SetMetadata"},
		"CPUs, and how many is not known yet": {all(condition(v1.VirtualMachineInstanceVCPUChange), sockets(4, false, "")), domain.Facts{}, machine(2), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := domain.Sight{VMI: placed(v1.Running, arrived, tt.edit), Facts: tt.facts, Desired: tt.want, State: runs(domain.StatusRunning, "", epoch(2))}
			s.State.Domain = tt.live
			plan, l := decide(t, s)
			if verbs(plan) != tt.tasks || l.State != handoff.Arrived || plan.RequeueAt == nil {
				t.Fatalf("tasks %q, lease %s, next look %v; want %q and the move not complete", verbs(plan), l.State, plan.RequeueAt, tt.tasks)
			}
			if plan.VMI.Status.MigrationState != nil && plan.VMI.Status.MigrationState.Completed {
				t.Error("the migration is said to be complete")
			}
			for _, task := range plan.Tasks[:max(len(plan.Tasks)-1, 0)] {
				if task.Independent() {
					t.Errorf("%s may fail, and the rest be taken for done", task)
				}
			}
			if tt.tasks == "" {
				return
			}
			if last := plan.Tasks[len(plan.Tasks)-1].Operation.Metadata; last.Epoch != l.Epoch {
				t.Errorf("that it is done is noted under epoch %d, want %d", last.Epoch, l.Epoch)
			}
			again, _ := decide(t, s)
			if verbs(again) != verbs(plan) {
				t.Errorf("after a crash it does %q, want %q", verbs(again), verbs(plan))
			}
			s.VMI, s.State.Metadata = plan.VMI, plan.Tasks[len(plan.Tasks)-1].Operation.Metadata
			if done, l := decide(t, s); verbs(done) != "" || l.State != handoff.Owned {
				t.Errorf("once it is done: tasks %q, lease %s", verbs(done), l.State)
			}
		})
	}
}

func TestLinksGoDownThenUp(t *testing.T) {
	s := domain.Sight{
		VMI:   placed(v1.Running, moved(there, here, handoff.TakeOver), bound("dhcp", "")),
		Facts: domain.Facts{Cluster: domain.Cluster{RefreshedBindings: []string{"dhcp"}}}, State: runs(domain.StatusRunning, "", epoch(2)),
	}
	for _, before := range []string{"up", "down"} { // down: a crash came between the two
		s.State.Domain = machine(2)
		s.State.Domain.Devices.Interfaces[0].Link.State = before
		plan, _ := decide(t, s)
		got := ""
		for _, task := range plan.Tasks {
			if card, ok := task.Operation.Device.(*libvirtxml.DomainInterface); ok {
				got += card.Link.State + " "
			}
		}
		if got != "down up " {
			t.Errorf("a link that is %s goes %s", before, got)
		}
	}
}

// The write that completes a migration leaves nothing of it behind.
func TestFinalizeCompletes(t *testing.T) {
	memory := func(label string) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			condition(v1.VirtualMachineInstanceMemoryChange)(vmi)
			vmi.Labels[v1.VirtualMachinePodMemoryRequestsLabel] = label
			vmi.Spec.Domain.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
			vmi.Status.Memory = &v1.MemoryStatus{MemoryOverhead: new(resource.MustParse("200Mi"))}
		}
	}
	tracked := func(s v1.ChangedBlockTrackingState) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{State: s}
		}
	}
	cbt := func(vmi *v1.VirtualMachineInstance) v1.ChangedBlockTrackingState {
		return vmi.Status.ChangedBlockTracking.State
	}
	for name, tt := range map[string]struct {
		edit  func(*v1.VirtualMachineInstance)
		holds func(*v1.VirtualMachineInstance) bool
		told  string
	}{
		"the migration":              {all(), func(vmi *v1.VirtualMachineInstance) bool { return vmi.Status.MigrationState.Completed }, ""},
		"a change of CPUs":           {condition(v1.VirtualMachineInstanceVCPUChange), func(vmi *v1.VirtualMachineInstance) bool { return len(vmi.Status.Conditions) == 0 }, ""},
		"one that had no room":       {all(condition(v1.VirtualMachineInstanceVCPUChange), sockets(4, true, "2")), func(vmi *v1.VirtualMachineInstance) bool { return len(vmi.Status.Conditions) == 0 }, "4 are asked for, and its Pod has 2"},
		"a change of memory":         {memory("1224Mi"), memoryFailed, "cannot take it while it runs"},
		"one that had no room, too":  {memory("1223Mi"), memoryFailed, "1224Mi are needed, and its Pod has 1223Mi"},
		"nor is it known to have it": {memory("much"), memoryFailed, "does not say how much"},
		"replaced volumes": {all(replaces("data", "old", "new"), condition(v1.VirtualMachineInstanceVolumesChange)), func(vmi *v1.VirtualMachineInstance) bool {
			return len(vmi.Status.MigratedVolumes) == 0 && len(vmi.Status.Conditions) == 0
		}, ""},
		"block tracking begins anew":                           {tracked(v1.ChangedBlockTrackingEnabled), func(vmi *v1.VirtualMachineInstance) bool { return cbt(vmi) == v1.ChangedBlockTrackingInitializing }, ""},
		"none stays none":                                      {tracked(v1.ChangedBlockTrackingDisabled), func(vmi *v1.VirtualMachineInstance) bool { return cbt(vmi) == v1.ChangedBlockTrackingDisabled }, ""},
		"M17: success removes what made it a migration target": {createTarget, func(vmi *v1.VirtualMachineInstance) bool { return !vmi.IsMigrationTarget() }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := placed(v1.Running, moved(there, here, handoff.TakeOver), func(vmi *v1.VirtualMachineInstance) {
				vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: job, SourceNode: there, TargetNode: here}
			}, tt.edit)
			plan, l := decide(t, domain.Sight{VMI: vmi, State: runs(domain.StatusRunning, "", epoch(3))})
			if l.State != handoff.Owned || verbs(plan) != "" {
				t.Fatalf("lease %s, tasks %q", l.State, verbs(plan))
			}
			if !tt.holds(plan.VMI) || plan.VMI.Labels[v1.VirtualMachinePodCPULimitsLabel] != "" && tt.told != "" {
				t.Errorf("labels %v, status %+v", plan.VMI.Labels, plan.VMI.Status)
			}
			says := ""
			for _, n := range plan.Notices {
				says += n.Message
			}
			if (tt.told == "") != (says == "") || !strings.Contains(says, tt.told) {
				t.Errorf("it tells %q, want %q", says, tt.told)
			}
		})
	}
}

func createTarget(vmi *v1.VirtualMachineInstance) {
	vmi.Annotations[v1.CreateMigrationTarget] = "true"
}

func memoryFailed(vmi *v1.VirtualMachineInstance) bool {
	c := vmi.Status.Conditions
	return len(c) == 1 && c[0].Status == corev1.ConditionFalse && c[0].Reason == domain.ReasonMemoryHotplugFailed &&
		vmi.Labels[v1.VirtualMachinePodMemoryRequestsLabel] == ""
}

// What fails holds the migration up for a while, and no longer.
func TestFinalizeGivesUp(t *testing.T) {
	arrived := moved(there, here, handoff.TakeOver)
	s := domain.Sight{
		Troubles: []domain.Trouble{{Err: errors.New("no such card")}}, State: runs(domain.StatusRunning, "", epoch(2)),
		VMI: placed(v1.Running, arrived),
	}
	if plan, l := decide(t, s); l.State != handoff.Arrived || verbs(plan) != "SetMetadata" {
		t.Fatalf("in time: lease %s, tasks %q", l.State, verbs(plan))
	}
	s.VMI = placed(v1.Running, late(arrived))
	plan, l := decide(t, s)
	if l.State != handoff.Owned || len(plan.Notices) != 1 || !strings.Contains(plan.Notices[0].Message, "no such card") {
		t.Fatalf("out of time: lease %s, told %v", l.State, plan.Notices)
	}
}

// A target whose migration has failed keeps nothing but what makes it one.
func TestSpecMigrationFailedTarget(t *testing.T) {
	incoming := runs(domain.StatusShutoff, domain.ReasonFailed)
	plan, l := decide(t, domain.Sight{VMI: placed(v1.Running, stalled(moved(there, here, handoff.Begin)), createTarget), State: incoming})
	for name, ok := range map[string]bool{
		"M17: what came of it is cleaned up":   verbs(plan) == "Undefine, Cleanup",
		"M17: the label goes":                  plan.VMI.Labels[v1.MigrationTargetNodeNameLabel] == "" && l.Target == "",
		"M17: it can be a target another time": plan.VMI.IsMigrationTarget(),
		"M17: the migration has failed":        plan.VMI.Status.MigrationState.Failed && plan.VMI.Status.MigrationState.Completed,
	} {
		t.Run(name, func(t *testing.T) {
			if !ok {
				t.Errorf("tasks %q, labels %v, annotations %v, migration state %+v", verbs(plan), plan.VMI.Labels, plan.VMI.Annotations, plan.VMI.Status.MigrationState)
			}
		})
	}
	reverted := on(moved(there, here, handoff.Begin), decideNow, handoff.Event{Kind: handoff.Revert, Node: there})
	if plan, _ := decide(t, domain.Sight{VMI: placed(v1.Running, reverted, createTarget)}); verbs(plan) != "Cleanup" || !plan.VMI.IsMigrationTarget() {
		t.Errorf("M17: once the source has said so: tasks %q, annotations %v", verbs(plan), plan.VMI.Annotations)
	}
}

func TestSpecMigrationPassageKey(t *testing.T) {
	far := func(unix bool) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			decentral(0, false)(vmi)
			vmi.Status.MigrationState.SourceState.VirtualMachineInstanceUID = new(types.UID("uid-there"))
			if unix {
				vmi.Status.MigrationTransport = v1.MigrationTransportUnix
			}
		}
	}
	near := func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.MigrationTransport = v1.MigrationTransportUnix
	}
	for name, tt := range map[string]struct {
		edit func(*v1.VirtualMachineInstance)
		want types.UID
	}{
		"M19: from another cluster over unix sockets: the UID it has there": {far(true), "uid-there"},
		"M19: from another cluster over TCP: its own":                       {far(false), "uid-1"},
		"M19: within the cluster: its own":                                  {near, "uid-1"},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := placed(v1.Running, moved(there, here, handoff.Prepare), tt.edit)
			if got := domain.PassageOf(vmi, here).Key; got != tt.want || domain.PassageKey(vmi) != got {
				t.Errorf("the key is %q, want %q", got, tt.want)
			}
		})
	}
}
