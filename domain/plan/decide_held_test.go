// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// disked is a domain with one disk, in a file unless it says otherwise.
func disked(d libvirtxml.DomainDisk) *libvirtxml.Domain {
	d.Target = &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"}
	if d.Source == nil {
		d.Source = &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: "/disk.img"}}
	}
	return &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{Disks: []libvirtxml.DomainDisk{d}}}
}

func held(st *domain.State) bool {
	return st != nil && st.Status == domain.StatusPaused && st.Reason == domain.ReasonUser && st.Metadata.Held
}

func hold(s *domain.State) { s.Metadata.Held = true }

// A domain is held where nothing else prevents that it runs twice.
func TestDecide_Held(t *testing.T) {
	file, block := libvirtxml.DomainDisk{}, libvirtxml.DomainDisk{Source: &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: "/dev/vg/disk"}}}
	stock := func(vmi *v1.VirtualMachineInstance) {
		delete(vmi.Annotations, handoff.Annotation)
		vmi.Labels[v1.NodeNameLabel] = here
	}
	postCopy := func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.MigrationState.VMIMConfigurationOptions = &v1.VMIMConfigurationOptions{AllowPostCopy: new(true)}
	}
	for name, tt := range map[string]struct {
		def    *libvirtxml.Domain
		copied []string
		edit   func(*v1.VirtualMachineInstance)
		want   bool
	}{
		"its disk is locked":             {disked(file), nil, nil, false},
		"its disk is copied":             {disked(file), []string{"vda"}, nil, true},
		"it has none":                    {&libvirtxml.Domain{}, nil, nil, true},
		"what it has is not known":       {nil, nil, nil, true},
		"its disk cannot be written":     {disked(libvirtxml.DomainDisk{ReadOnly: &libvirtxml.DomainDiskReadOnly{}}), nil, nil, true},
		"its disk is for many":           {disked(libvirtxml.DomainDisk{Shareable: &libvirtxml.DomainDiskShareable{}}), nil, nil, true},
		"its disk is a block device":     {disked(block), nil, nil, true},
		"its disk is a drive":            {disked(libvirtxml.DomainDisk{Device: "cdrom"}), nil, nil, true},
		"the target knows no lease":      {disked(file), []string{"vda"}, stock, false},
		"it may run ahead of its memory": {disked(file), []string{"vda"}, postCopy, false},
	} {
		t.Run(name, func(t *testing.T) {
			edit := tt.edit
			if edit == nil {
				edit = func(*v1.VirtualMachineInstance) {}
			}
			got, _ := decide(t, plan.Snapshot{
				VMI: placed(v1.Running, moved(here, there, handoff.Ready), edit), CopyDisks: tt.copied,
				State: runs(domain.StatusRunning, "", func(s *domain.State) { s.Domain = tt.def }),
			})
			a, asked := migration(got)
			if !asked || a.Request.Paused != tt.want {
				t.Fatalf("actions %v, the request is %+v, want Paused %v", got.Actions, a.Request, tt.want)
			}
			if noted := got.Actions[0].Operation.Metadata.Held; noted != tt.want {
				t.Errorf("the domain carries Held %v, want %v", noted, tt.want)
			}
		})
	}
}

// Whatever fails meanwhile: a held domain runs at the target only once the source has stored
// that it has stopped for good.
func TestDecide_HeldAwaitsSource(t *testing.T) {
	out, in := moved(here, there, handoff.Begin), moved(there, here, handoff.Begin)
	waits := runs(domain.StatusPaused, domain.ReasonUser, hold)
	wants := runs(domain.StatusPaused, domain.ReasonUser, hold, func(s *domain.State) { s.Metadata.Paused = true })
	lost := runs(domain.StatusPaused, domain.ReasonUser, func(s *domain.State) {
		s.Metadata, s.UUID = domain.Metadata{}, convert.UUID(placed(v1.Running, in))
	})
	left := runs(domain.StatusShutoff, domain.ReasonMigrated, hold)
	taken := moved(there, here, handoff.TakeOver)
	runRows(t, v1.Running, map[string]row{
		"source: it has left":                          {out, plan.Snapshot{State: left, MigrationEnded: decideNow}, nil, "", "Moving 2", ""},
		"source: its hypervisor is not done":           {out, plan.Snapshot{State: left, Migrating: true}, nil, "", "Moving 2", ""},
		"source: the answer was lost, it runs on":      {out, plan.Snapshot{State: runs(domain.StatusRunning, "", hold), MigrationEnded: decideNow}, nil, "", "Owned 3", ""},
		"source: the answer was lost, it stands still": {out, plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonMigration, hold)}, nil, "", "Moving 2", ""},
		"target: it has arrived":                       {in, plan.Snapshot{State: waits}, nil, "", "Moving 2", ""},
		"target: it has arrived late":                  {late(in), plan.Snapshot{State: waits}, nil, "", "Moving 2", ""},
		"target: its source is silent":                 {suspect(in), plan.Snapshot{State: waits}, nil, "", "Lost 3", ""},
		"target: its source has left it":               {stalled(in), plan.Snapshot{State: waits}, nil, "Resume", "Arrived 3", ""},
		"source: it ran on, and has ended":             {out, plan.Snapshot{State: runs(domain.StatusShutoff, domain.ReasonShutdown, hold)}, nil, "", "Owned 3", ""},
		"source: it ran on, and has crashed":           {out, plan.Snapshot{State: runs(domain.StatusShutoff, domain.ReasonCrashed, hold)}, nil, "", "Owned 3", ""},
		"target: its source is gone without a word":    {fenced(in), plan.Snapshot{State: waits}, nil, "Destroy, Undefine, Cleanup", "Fenced 5", ""},
		"target: its source has it still":              {on(in, decideNow, handoff.Event{Kind: handoff.Revert, Node: there}), plan.Snapshot{State: waits}, nil, "Destroy, Undefine, Cleanup", "Owned 3", ""},
		"target: it shall stand still":                 {in, plan.Snapshot{State: wants}, nil, "", "Moving 2", ""},
		"target: it shall, and its source has left it": {stalled(in), plan.Snapshot{State: wants}, nil, "", "Arrived 3", ""},
		"target: its marks are lost":                   {in, plan.Snapshot{State: lost}, nil, "", "Moving 2", ""},
		"target: they are, and its source has left it": {stalled(in), plan.Snapshot{State: lost}, nil, "", "Arrived 3", ""},
		"target: taken over, and a crash":              {taken, plan.Snapshot{State: waits}, nil, "Resume", "Arrived 3", ""},
		"target: taken over, late":                     {late(taken), plan.Snapshot{State: waits}, nil, "Resume", "Arrived 3", ""},
		"target: taken over, it runs":                  {taken, plan.Snapshot{State: runs(domain.StatusRunning, "", hold, epoch(2))}, nil, "SetMetadata", "Arrived 3", ""},
		"target: taken over, it shall stand still":     {taken, plan.Snapshot{State: wants}, nil, "SetMetadata", "Arrived 3", ""},
	})
	for name, vmi := range map[string]*v1.VirtualMachineInstance{
		"no object": nil, "another object": placed(v1.Running, in, func(vmi *v1.VirtualMachineInstance) { vmi.UID = "later" }),
	} {
		if got, _ := decide(t, plan.Snapshot{VMI: vmi, State: waits}); verbs(got) != "Destroy, Undefine, Cleanup" {
			t.Errorf("%s: actions are %q", name, verbs(got))
		}
	}
	if _, l := decide(t, plan.Snapshot{VMI: placed(v1.Running, out), State: left, MigrationEnded: decideNow}); !l.Stalled {
		t.Errorf("the source does not say that the guest has left: %+v", l)
	}
	got, _ := decide(t, plan.Snapshot{VMI: placed(v1.Running, stalled(in)), State: waits})
	if vmistatus.IsTrue(got.VMI, v1.VirtualMachineInstancePaused) {
		t.Error("the condition Paused is True")
	}
	got, _ = decide(t, plan.Snapshot{VMI: placed(v1.Running, taken), State: runs(domain.StatusRunning, "", hold)})
	if got.Actions[0].Operation.Metadata.Held {
		t.Error("the mark outlives the move")
	}
}
