// SPDX-License-Identifier: Apache-2.0

package plan_test

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
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/handoff"
)

// condition adds a condition that is True.
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

// bound binds the VMI's interface to a plugin.
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

// Pending changes are done before the migration is marked as complete.
func TestFinalize_PendingChanges(t *testing.T) {
	arrived := moved(there, here, handoff.TakeOver)
	refresh := convert.Facts{Cluster: convert.Cluster{RefreshedBindings: []string{"dhcp"}}}
	agent := machine(2)
	agent.Devices.Channels = []libvirtxml.DomainChannel{{Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: convert.AgentChannel, State: "connected"}}}}
	for name, tt := range map[string]struct {
		edit    func(*v1.VirtualMachineInstance)
		facts   convert.Facts
		live    *libvirtxml.Domain
		want    *libvirtxml.Domain
		actions string
	}{
		"nothing":                             {all(), convert.Facts{}, machine(2), machine(2), "SetMetadata"},
		"its clock":                           {all(), convert.Facts{}, agent, machine(2), "SyncTime, SetMetadata"},
		"a link that is refreshed":            {bound("dhcp", ""), refresh, machine(2), machine(2), strings.Repeat("UpdateDevice, ", 2) + "SetMetadata"},
		"another plugin's is not":             {bound("other", ""), refresh, machine(2), machine(2), "SetMetadata"},
		"nor one that shall be down":          {bound("dhcp", v1.InterfaceStateLinkDown), refresh, machine(2), machine(2), "SetMetadata"},
		"CPUs that it was migrated for":       {all(condition(v1.VirtualMachineInstanceVCPUChange), sockets(4, false, "")), convert.Facts{}, machine(2), machine(4), "SetVCPUs, SetMetadata"},
		"CPUs of its own, with room":          {all(condition(v1.VirtualMachineInstanceVCPUChange), sockets(4, true, "4")), convert.Facts{}, machine(2), machine(4), "SetVCPUs, SetMetadata"},
		"CPUs of its own, without room":       {all(condition(v1.VirtualMachineInstanceVCPUChange), sockets(4, true, "2")), convert.Facts{}, machine(2), machine(4), "SetMetadata"},
		"CPUs of its own, of unknown number":  {all(condition(v1.VirtualMachineInstanceVCPUChange), sockets(4, true, "many")), convert.Facts{}, machine(2), machine(4), "SetMetadata"},
		"CPUs that nobody migrated it for":    {sockets(4, false, ""), convert.Facts{}, machine(2), machine(4), "SetMetadata"},
		"CPUs, and how many is not known yet": {all(condition(v1.VirtualMachineInstanceVCPUChange), sockets(4, false, "")), convert.Facts{}, machine(2), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := plan.Snapshot{VMI: placed(v1.Running, arrived, tt.edit), Facts: tt.facts, Desired: tt.want, State: runs(domain.StatusRunning, "", epoch(2))}
			s.State.Domain = tt.live
			got, l := decide(t, s)
			if verbs(got) != tt.actions || l.State != handoff.Arrived || got.RequeueAt == nil {
				t.Fatalf("actions %q, lease %s, next look %v; want %q and the move not complete", verbs(got), l.State, got.RequeueAt, tt.actions)
			}
			if got.VMI.Status.MigrationState != nil && got.VMI.Status.MigrationState.Completed {
				t.Error("the migration is said to be complete")
			}
			for _, a := range got.Actions[:max(len(got.Actions)-1, 0)] {
				if a.Independent() {
					t.Errorf("%s may fail, and the rest be taken for done", a)
				}
			}
			if tt.actions == "" {
				return
			}
			if last := got.Actions[len(got.Actions)-1].Operation.Metadata; last.Epoch != l.Epoch {
				t.Errorf("that it is done is noted under epoch %d, want %d", last.Epoch, l.Epoch)
			}
			again, _ := decide(t, s)
			if verbs(again) != verbs(got) {
				t.Errorf("after a crash it does %q, want %q", verbs(again), verbs(got))
			}
			s.VMI, s.State.Metadata = got.VMI, got.Actions[len(got.Actions)-1].Operation.Metadata
			if done, l := decide(t, s); verbs(done) != "" || l.State != handoff.Owned {
				t.Errorf("once it is done: actions %q, lease %s", verbs(done), l.State)
			}
		})
	}
}

func TestFinalize_LinkRefresh(t *testing.T) {
	s := plan.Snapshot{
		VMI:   placed(v1.Running, moved(there, here, handoff.TakeOver), bound("dhcp", "")),
		Facts: convert.Facts{Cluster: convert.Cluster{RefreshedBindings: []string{"dhcp"}}}, State: runs(domain.StatusRunning, "", epoch(2)),
	}
	for _, before := range []string{"up", "down"} { // down: a crash came between the two
		s.State.Domain = machine(2)
		s.State.Domain.Devices.Interfaces[0].Link.State = before
		decided, _ := decide(t, s)
		got := ""
		for _, a := range decided.Actions {
			if card, ok := a.Operation.Device.(*libvirtxml.DomainInterface); ok {
				got += card.Link.State + " "
			}
		}
		if got != "down up " {
			t.Errorf("a link that is %s goes %s", before, got)
		}
	}
}

// The write that completes a migration leaves nothing of it behind.
func TestFinalize_Completes(t *testing.T) {
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
		event string
	}{
		"the migration":              {all(), func(vmi *v1.VirtualMachineInstance) bool { return vmi.Status.MigrationState.Completed }, ""},
		"a change of CPUs":           {condition(v1.VirtualMachineInstanceVCPUChange), func(vmi *v1.VirtualMachineInstance) bool { return len(vmi.Status.Conditions) == 0 }, ""},
		"one that had no room":       {all(condition(v1.VirtualMachineInstanceVCPUChange), sockets(4, true, "2")), func(vmi *v1.VirtualMachineInstance) bool { return len(vmi.Status.Conditions) == 0 }, "4 CPUs requested, limit of the Pod is 2"},
		"a change of memory":         {memory("1224Mi"), memoryFailed, "does not accept it while it runs"},
		"one that had no room, too":  {memory("1223Mi"), memoryFailed, "1224Mi of memory required, request of the Pod is 1223Mi"},
		"nor is it known to have it": {memory("much"), memoryFailed, "must be the memory request of the Pod"},
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
			got, l := decide(t, plan.Snapshot{VMI: vmi, State: runs(domain.StatusRunning, "", epoch(3))})
			if l.State != handoff.Owned || verbs(got) != "" {
				t.Fatalf("lease %s, actions %q", l.State, verbs(got))
			}
			if !tt.holds(got.VMI) || got.VMI.Labels[v1.VirtualMachinePodCPULimitsLabel] != "" && tt.event != "" {
				t.Errorf("labels %v, status %+v", got.VMI.Labels, got.VMI.Status)
			}
			says := ""
			for _, n := range got.Events {
				says += n.Message
			}
			if (tt.event == "") != (says == "") || !strings.Contains(says, tt.event) {
				t.Errorf("event %q, want %q", says, tt.event)
			}
		})
	}
}

func createTarget(vmi *v1.VirtualMachineInstance) {
	vmi.Annotations[v1.CreateMigrationTarget] = "true"
}

func memoryFailed(vmi *v1.VirtualMachineInstance) bool {
	c := vmi.Status.Conditions
	return len(c) == 1 && c[0].Status == corev1.ConditionFalse && c[0].Reason == status.ReasonMemoryHotplugFailed &&
		vmi.Labels[v1.VirtualMachinePodMemoryRequestsLabel] == ""
}

// Failed changes delay the migration until its deadline only.
func TestFinalize_Overdue(t *testing.T) {
	arrived := moved(there, here, handoff.TakeOver)
	s := plan.Snapshot{
		Failures: []action.Failure{{Err: errors.New("no such card")}}, State: runs(domain.StatusRunning, "", epoch(2)),
		VMI: placed(v1.Running, arrived),
	}
	if got, l := decide(t, s); l.State != handoff.Arrived || verbs(got) != "SetMetadata" {
		t.Fatalf("in time: lease %s, actions %q", l.State, verbs(got))
	}
	s.VMI = placed(v1.Running, late(arrived))
	got, l := decide(t, s)
	if l.State != handoff.Owned || len(got.Events) != 1 || !strings.Contains(got.Events[0].Message, "no such card") {
		t.Fatalf("out of time: lease %s, events %v", l.State, got.Events)
	}
}

// A target whose migration has failed keeps only the marks of a target.
func TestSpecMigrationFailedTarget(t *testing.T) {
	incoming := runs(domain.StatusShutoff, domain.ReasonFailed)
	got, l := decide(t, plan.Snapshot{VMI: placed(v1.Running, stalled(moved(there, here, handoff.Begin)), createTarget), State: incoming})
	for name, ok := range map[string]bool{
		"M17: what came of it is cleaned up":   verbs(got) == "Undefine, Cleanup",
		"M17: the label goes":                  got.VMI.Labels[v1.MigrationTargetNodeNameLabel] == "" && l.Target == "",
		"M17: it can be a target another time": got.VMI.IsMigrationTarget(),
		"M17: the migration has failed":        got.VMI.Status.MigrationState.Failed && got.VMI.Status.MigrationState.Completed,
	} {
		t.Run(name, func(t *testing.T) {
			if !ok {
				t.Errorf("actions %q, labels %v, annotations %v, migration state %+v", verbs(got), got.VMI.Labels, got.VMI.Annotations, got.VMI.Status.MigrationState)
			}
		})
	}
	reverted := on(moved(there, here, handoff.Begin), decideNow, handoff.Event{Kind: handoff.Revert, Node: there})
	if got, _ := decide(t, plan.Snapshot{VMI: placed(v1.Running, reverted, createTarget)}); verbs(got) != "Cleanup" || !got.VMI.IsMigrationTarget() {
		t.Errorf("M17: once the source has said so: actions %q, annotations %v", verbs(got), got.VMI.Annotations)
	}
}

func TestSpecMigrationTunnelKey(t *testing.T) {
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
			if got := transport.TunnelOf(vmi, here).Key; got != tt.want || transport.TunnelKey(vmi) != got {
				t.Errorf("the key is %q, want %q", got, tt.want)
			}
		})
	}
}
