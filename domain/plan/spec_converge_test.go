// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/diff"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// claimedDisk returns a VMI with a disk of a claim, its domain and its facts.
func claimedDisk(bytes int64, known map[string]int64, change ...func(*convert.DiskSource)) plan.Snapshot {
	live := &libvirtxml.Domain{Name: "ns_guest", Devices: &libvirtxml.DomainDeviceList{Disks: []libvirtxml.DomainDisk{{
		Alias: &libvirtxml.DomainAlias{Name: "ua-root"}, Target: &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"},
		Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: "/r"}},
	}}}}
	src := convert.DiskSource{Path: "/r", Bytes: bytes}
	for _, c := range change {
		c(&src)
	}
	return plan.Snapshot{
		VMI: placed(v1.Running, owned, func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}}}}
		}),
		State:   runs(domain.StatusRunning, "", func(s *domain.State) { s.Domain, s.Metadata.DiskBytes = live, known }),
		Desired: live, Facts: convert.Facts{Disks: map[string]convert.DiskSource{"root": src}},
	}
}

func TestDecide_DiskGrows(t *testing.T) {
	const gib = int64(1) << 30
	had := func() map[string]int64 { return map[string]int64{"root": 2 * gib} }
	for name, tt := range map[string]struct {
		snapshot plan.Snapshot
		actions  string
		asked    uint64
		kept     int64
	}{
		"first snapshot only records":    {claimedDisk(2*gib, nil), "SetMetadata", 0, 2 * gib},
		"as large as it was":             {claimedDisk(2*gib, had()), "", 0, 2 * gib},
		"it has grown":                   {claimedDisk(3*gib, had()), "ResizeDisk, SetMetadata", uint64(3 * gib), 3 * gib},
		"a block device has grown":       {claimedDisk(3*gib, had(), func(s *convert.DiskSource) { s.Block = true }), "ResizeDisk, SetMetadata", 0, 3 * gib},
		"it never shrinks":               {claimedDisk(gib, had()), "", 0, 2 * gib},
		"its size is not known any more": {claimedDisk(0, had()), "", 0, 2 * gib},
		"nothing may be written":         {claimedDisk(3*gib, had(), func(s *convert.DiskSource) { s.ReadOnly = true }), "", 0, 2 * gib},
	} {
		t.Run(name, func(t *testing.T) {
			before := tt.snapshot.State.Metadata.DiskBytes["root"]
			decided, _ := decide(t, tt.snapshot)
			if got := verbs(decided); got != tt.actions {
				t.Fatalf("actions %q, want %q", got, tt.actions)
			}
			kept := before
			for _, a := range decided.Actions {
				switch op := a.Operation; op.Verb {
				case domain.ResizeDisk:
					if op.Disk != "ua-root" || op.Bytes != tt.asked {
						t.Errorf("disk %s shall have %d bytes, want %d", op.Disk, op.Bytes, tt.asked)
					}
					if a.Independent() {
						t.Error("its size would be kept even if it could not grow")
					}
				case domain.SetMetadata:
					kept = op.Metadata.DiskBytes["root"]
				}
			}
			if kept != tt.kept {
				t.Errorf("%d bytes are kept, want %d", kept, tt.kept)
			}
			if got := tt.snapshot.State.Metadata.DiskBytes["root"]; got != before {
				t.Errorf("Decide changed its input: %d bytes, was %d", got, before)
			}
		})
	}
}

// A running guest gets CPUs and memory at the end of a migration: its Pod is not larger than it was made.
func TestDecide_SizeWaitsForMigration(t *testing.T) {
	sized := func(cpus uint, mebibytes, requested uint) *libvirtxml.Domain {
		d := machine(cpus)
		size := func(n uint) libvirtxml.DomainMemorydevTargetSize {
			return libvirtxml.DomainMemorydevTargetSize{Value: n, Unit: "MiB"}
		}
		d.OS = &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Arch: "x86_64"}}
		d.CPU = &libvirtxml.DomainCPU{Numa: &libvirtxml.DomainNuma{Cell: []libvirtxml.DomainCell{{Memory: 1024, Unit: "MiB"}}}}
		d.MaximumMemory = &libvirtxml.DomainMaxMemory{Value: 4096, Unit: "MiB", Slots: 16}
		d.Memory = &libvirtxml.DomainMemory{Value: mebibytes, Unit: "MiB"}
		if requested > 0 {
			whole := size(3072)
			d.Devices.Memorydevs = []libvirtxml.DomainMemorydev{{Model: "virtio-mem", Target: &libvirtxml.DomainMemorydevTarget{
				Size: &whole, Requested: &libvirtxml.DomainMemorydevTargetRequested{Value: requested, Unit: "MiB"}}}}
		}
		return d
	}
	for name, tt := range map[string]struct {
		live, want *libvirtxml.Domain
		field      string
	}{
		"CPUs":         {sized(1, 1024, 0), sized(2, 1024, 0), "spec.domain.cpu.sockets"},
		"memory":       {sized(1, 1024, 0), sized(1, 2048, 0), "spec.domain.memory.guest"},
		"more of it":   {sized(1, 4096, 512), sized(1, 2048, 0), "spec.domain.memory.guest"},
		"less of it":   {sized(1, 4096, 1024), sized(1, 1536, 0), "spec.domain.memory.guest"},
		"nothing else": {sized(1, 1024, 0), sized(1, 1024, 0), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := plan.Snapshot{VMI: placed(v1.Running, owned), State: runs(domain.StatusRunning, ""), Desired: tt.want}
			s.State.Domain = tt.live
			got, _ := decide(t, s)
			if verbs(got) != "" {
				t.Errorf("actions %q", verbs(got))
			}
			var fields []string
			for _, d := range got.Differences {
				if d.Class != diff.NeedsMigration || d.Operation != nil || d.Reason == "" {
					t.Errorf("difference %s with operation %v", d, d.Operation)
				}
				fields = append(fields, d.Field)
			}
			if strings.Join(fields, ", ") != tt.field {
				t.Errorf("differences in %q, want %q", fields, tt.field)
			}
		})
	}
}

// eventsOf prints the events of a plan.
func eventsOf(p plan.Plan) string {
	var out []string
	for _, n := range p.Events {
		kind := "Normal"
		if n.Warning {
			kind = "Warning"
		}
		out = append(out, kind+" "+n.Reason)
		if n.Message == "" {
			out = append(out, "without a message")
		}
	}
	return strings.Join(out, ", ")
}

func TestDecide_Events(t *testing.T) {
	plugged := func(s plan.Snapshot) plan.Snapshot {
		s.State.Domain = &libvirtxml.Domain{Name: "ns_guest", Devices: &libvirtxml.DomainDeviceList{Disks: []libvirtxml.DomainDisk{{
			Alias: &libvirtxml.DomainAlias{Name: "ua-plugged"}, Target: &libvirtxml.DomainDiskTarget{Dev: "sda"}, Source: &libvirtxml.DomainDiskSource{},
		}}}}
		s.Desired = nil
		return s
	}
	failing := with(domain.StatusRunning, "")
	failing.Failures = []action.Failure{{Err: errors.New("no slot left"), Action: action.Action{Verb: action.Apply, Operation: domain.Operation{
		Verb: domain.AttachDevice, Device: &libvirtxml.DomainDisk{Alias: &libvirtxml.DomainAlias{Name: "ua-plugged"}}}}}}
	failing.State.Domain = &libvirtxml.Domain{Name: "ns_guest"}
	failing.Desired = nil
	missing := failing
	missing.Failures, missing.Facts.Missing = nil, map[string]string{"plugged": "no disk.img"}
	pausedBefore := func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstancePaused, Status: "True", Reason: "PausedIOError"}}
	}
	for name, tt := range map[string]struct {
		snapshot plan.Snapshot
		lease    handoff.Lease
		edit     func(*v1.VirtualMachineInstance)
		want     string
	}{
		"nothing":                           {with(domain.StatusRunning, ""), owned, edits(), ""},
		"the first request to shut down":    {with(domain.StatusRunning, ""), owned, beingDeleted, "Normal ShuttingDown"},
		"but not the second":                {with(domain.StatusRunning, "", graceUntil(decideNow.Add(20*time.Second)), askedAt(decideNow.Add(-6*time.Second))), owned, beingDeleted, ""},
		"the end of its time":               {with(domain.StatusRunning, "", graceUntil(decideNow)), owned, beingDeleted, "Normal Deleted"},
		"a panic":                           {with(domain.StatusCrashed, domain.ReasonPanicked), owned, edits(), "Warning GuestPanicked"},
		"a crash":                           {with(domain.StatusShutoff, domain.ReasonCrashed), owned, edits(), "Warning GuestCrashed"},
		"an ordinary end":                   {with(domain.StatusShutoff, domain.ReasonShutdown), owned, edits(), ""},
		"a guest torn apart":                {with(domain.StatusPaused, domain.ReasonPostcopyFailed), owned, edits(), "Warning GuestLost, Normal Deleted"},
		"a disk that fails":                 {with(domain.StatusPaused, domain.ReasonIOError), owned, edits(), "Warning IOerror"},
		"but not while it keeps failing":    {with(domain.StatusPaused, domain.ReasonIOError), owned, pausedBefore, ""},
		"R31: a volume that is plugged":     {plugged(with(domain.StatusRunning, "")), owned, arrivingVolume(v1.HotplugVolumeMounted), "Normal VolumeReady"},
		"R31: one that is not found":        {missing, owned, arrivingVolume(v1.HotplugVolumeAttachedToNode), "Warning HotplugFailed"},
		"R31: one that cannot be":           {failing, owned, arrivingVolume(v1.HotplugVolumeMounted), "Warning HotplugFailed"},
		"nothing, of what is another guest": {with(domain.StatusRunning, "", graceUntil(decideNow)), handoff.Lease{State: handoff.Owned, Epoch: 3, Holder: there}, edits(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			tt.snapshot.VMI = placed(v1.Running, tt.lease, tt.edit)
			decided, _ := decide(t, tt.snapshot)
			if got := eventsOf(decided); got != tt.want {
				t.Errorf("events %q, want %q", got, tt.want)
			}
			_, failure, _ := strings.Cut(tt.want, "Warning Guest")
			if failure, _, _ = strings.Cut(failure, ","); failure != "" {
				failure = "Guest" + failure
			}
			if got := decided.VMI.Status.Reason; got != failure {
				t.Errorf("status.reason %q, want %q", got, failure)
			}
		})
	}
}

func TestDecide_UnresponsiveHypervisor(t *testing.T) {
	since := decideNow.Add(-time.Minute)
	moving := moved(here, there, handoff.Begin)
	stopped := on(owned, decideNow, handoff.Event{Kind: handoff.Stop, Node: here})
	snapshot := func(s plan.Snapshot) plan.Snapshot {
		s.SilentSince = since
		return s
	}
	runRows(t, v1.Running, map[string]row{
		"nobody wants anything":        {owned, snapshot(with(domain.StatusRunning, "")), nil, "", "Owned 1", ""},
		"it looked as if it had ended": {owned, snapshot(with(domain.StatusShutoff, domain.ReasonCrashed)), nil, "", "Owned 1", ""},
		"its deletion is stored":       {owned, snapshot(with(domain.StatusRunning, "")), beingDeleted, "", "Releasing 1", ""},
		"there is time left":           {stopped, snapshot(with(domain.StatusRunning, "")), beingDeleted, "", "Releasing 1", ""},
		"its time is up":               {late(stopped), snapshot(with(domain.StatusRunning, "")), beingDeleted, "Destroy", "Releasing 1", ""},
		"it moves":                     {moving, snapshot(with(domain.StatusRunning, "", epoch(2))), nil, "", "Moving 2", ""},
		"it moves, and is deleted":     {moving, snapshot(with(domain.StatusRunning, "", epoch(2))), beingDeleted, "", "Moving 2", ""},
		"it was to come":               {moved(there, here, handoff.Begin), snapshot(with(domain.StatusRunning, "", epoch(2))), nil, "", "Moving 2", ""},
		"nobody knows whose it is":     {suspect(owned), snapshot(with(domain.StatusRunning, "")), beingDeleted, "", "Lost 2", ""},
		"it is another node's":         {handoff.Lease{State: handoff.Owned, Epoch: 3, Holder: there}, snapshot(with(domain.StatusRunning, "")), nil, "Destroy, Undefine, Cleanup", "Owned 3", ""},
	})
	earlier := runs(domain.StatusShuttingDown, domain.ReasonUser, graceUntil(since))
	earlier.Metadata.UID = "uid-0"
	for name, s := range map[string]plan.Snapshot{
		"an earlier guest of the name was there before": {VMI: placed(v1.Scheduled, leased(offerHere)), State: earlier, OrphanedUIDs: []types.UID{"uid-0"}},
		"the guest may have taken the place of another": {VMI: placed(v1.Running, owned), State: earlier},
		"an earlier guest may still run on its files":   {VMI: placed(v1.Scheduled, leased(offerHere)), OrphanedUIDs: []types.UID{"uid-0"}},
		"another may still run on files of this name":   {VMI: placed(v1.Running, owned), OrphanedUIDs: []types.UID{"uid-0"}},
	} {
		if got, _ := decide(t, snapshot(s)); len(got.Actions) > 0 || got.RequeueAt == nil {
			t.Errorf("%s: actions %s, looked at again at %v; want none, and soon", name, verbs(got), got.RequeueAt)
		}
	}
	got, _ := decide(t, plan.Snapshot{VMI: placed(v1.Running, owned), State: runs(domain.StatusRunning, ""), SilentSince: since})
	c := got.VMI.Status.Conditions
	if len(c) != 1 || c[0].Reason != status.ReasonUnresponsive || !strings.Contains(c[0].Message, "2026-01-02T03:03:05Z") {
		t.Errorf("conditions %+v, want since when it is silent", c)
	}
}

func TestDecide_RunningVMIWithInvalidSpec(t *testing.T) {
	s := with(domain.StatusRunning, "")
	s.Desired, s.PrepareError = nil, &convert.Error{Object: "VirtualMachineInstance ns/guest", Field: "spec.domain.cpu.model", Reason: "unknown"}
	s.VMI = placed(v1.Running, owned)
	got, _ := decide(t, s)
	if c := got.VMI.Status.Conditions; len(c) != 1 || c[0].Reason != status.ReasonInvalidSpec || verbs(got) != "" {
		t.Errorf("conditions %+v, actions %q", c, verbs(got))
	}
}

func TestFailure_String(t *testing.T) {
	disk := domain.Operation{Verb: domain.AttachDevice, Domain: "d", Device: &libvirtxml.DomainDisk{Alias: &libvirtxml.DomainAlias{Name: "ua-data"}}}
	for want, tt := range map[string]action.Failure{
		"AttachDevice ua-data: busy": {Action: action.Action{Verb: action.Apply, Operation: disk}, Err: errors.New("busy")},
		"ResizeDisk ua-data: busy":   {Action: action.Action{Operation: domain.Operation{Verb: domain.ResizeDisk, Disk: "ua-data"}}, Err: errors.New("busy")},
		"busy":                       {Action: action.Action{Verb: action.Freeze}, Err: errors.New("busy")},
		"unknown error":              {Action: action.Action{Operation: domain.Operation{Verb: domain.AttachDevice, Device: &libvirtxml.DomainDisk{}}}},
	} {
		if got := fmt.Sprint(tt); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	got := map[string][2]bool{}
	for _, a := range []action.Action{
		{Verb: action.Apply, Operation: disk}, {Verb: action.Apply, Operation: domain.Operation{Verb: domain.Start}},
		{Verb: action.SyncTime}, {Verb: action.Thaw},
	} {
		got[string(a.Verb)+string(a.Operation.Verb)] = [2]bool{a.Independent(), a.Optional()}
	}
	want := map[string][2]bool{"ApplyAttachDevice": {true, false}, "ApplyStart": {}, "SyncTime": {false, true}, "Thaw": {}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("independent, optional (-want +got):\n%s", diff)
	}
}
