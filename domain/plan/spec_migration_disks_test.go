// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// diskOn returns a disk on a file or, without one, on a device.
func diskOn(name, target, file, dev string) libvirtxml.DomainDisk {
	d := libvirtxml.DomainDisk{
		Device: "disk", Alias: &libvirtxml.DomainAlias{Name: "ua-" + name},
		Target: &libvirtxml.DomainDiskTarget{Dev: target, Bus: "virtio"}, Source: &libvirtxml.DomainDiskSource{Index: 1},
	}
	if file != "" {
		d.Source.File = &libvirtxml.DomainDiskSourceFile{File: file}
	} else {
		d.Source.Block = &libvirtxml.DomainDiskSourceBlock{Dev: dev}
	}
	return d
}

// replaces makes the VMI's migration replace the claim of a volume.
func replaces(volume, from, to string) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: volume, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}})
		vmi.Spec.Volumes[len(vmi.Spec.Volumes)-1].PersistentVolumeClaim.ClaimName = to // whoever asks for it writes the new one
		vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, v1.VolumeStatus{Name: volume, PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: from}})
		vmi.Status.MigratedVolumes = append(vmi.Status.MigratedVolumes, v1.StorageMigratedVolumeInfo{
			VolumeName: volume, SourcePVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: from}, DestinationPVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: to},
		})
	}
}

func TestSpecMigrationCopiedDisks(t *testing.T) {
	readOnly := func(d libvirtxml.DomainDisk) libvirtxml.DomainDisk {
		d.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
		return d
	}
	cdrom := func(d libvirtxml.DomainDisk) libvirtxml.DomainDisk { d.Device = "cdrom"; return d }
	disk := diskOn("data", "vda", "/data/disk.img", "")
	for name, tt := range map[string]struct {
		disk   libvirtxml.DomainDisk
		source convert.DiskSource
		edit   func(*v1.VirtualMachineInstance)
		copied bool
	}{
		"M11: a shared claim is not copied":              {disk, convert.DiskSource{Path: "/data/disk.img", Shared: true}, nil, false},
		"M11: a claim of this node alone is":             {disk, convert.DiskSource{Path: "/data/disk.img"}, nil, true},
		"M11: one that is replaced is, though shared":    {disk, convert.DiskSource{Path: "/data/disk.img", Shared: true}, replaces("data", "old", "new"), true},
		"M11: another one's replacement changes nothing": {disk, convert.DiskSource{Path: "/data/disk.img", Shared: true}, replaces("logs", "old", "new"), false},
		// KubeVirt copies it into an empty image. Here the target makes it of the same
		// ConfigMap itself, since nothing can be written to a disk that is read-only.
		"M11: a read-only ConfigMap is not copied": {readOnly(disk), convert.DiskSource{Path: "/data/disk.img", ReadOnly: true}, nil, false},
		"M11: a drive is skipped":                  {cdrom(disk), convert.DiskSource{Path: "/data/disk.img"}, nil, false},
		"M11: an empty drive is, too":              {libvirtxml.DomainDisk{Device: "cdrom", Alias: disk.Alias, Target: disk.Target}, convert.DiskSource{}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := placed(v1.Running, moved(here, there, handoff.Ready))
			if tt.edit != nil {
				tt.edit(vmi)
			}
			live := &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{Disks: []libvirtxml.DomainDisk{tt.disk}}}
			facts := convert.Facts{Disks: map[string]convert.DiskSource{"data": tt.source}}
			if got := slices.Contains(status.CopyDisks(vmi, live, facts), "vda"); got != tt.copied {
				t.Errorf("copied: %t, want %t", got, tt.copied)
			}
			if got := len(status.CopySources(vmi, live, facts)) == 1; got != tt.copied {
				t.Errorf("its size counts: %t, want %t", got, tt.copied)
			}
		})
	}
}

func TestSpecMigrationReplacedVolumes(t *testing.T) {
	const gib = 1 << 30
	slice := func(bytes uint) *libvirtxml.DomainDiskSlices {
		return &libvirtxml.DomainDiskSlices{Slices: []libvirtxml.DomainDiskSlice{{Type: "storage", Size: bytes}}}
	}
	for name, tt := range map[string]struct {
		disk libvirtxml.DomainDisk
		to   map[string]convert.DiskSource
		want *libvirtxml.DomainDiskSource // nil if it is refused
	}{
		"M20: from a file to a device": {diskOn("data", "vda", "/old/disk.img", ""), map[string]convert.DiskSource{"data": {Path: "/dev/data", Block: true}},
			&libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: "/dev/data"}, Slices: slice(gib)}},
		"M20: from a device to a file": {diskOn("data", "vda", "", "/dev/old"), map[string]convert.DiskSource{"data": {Path: "/new/disk.img"}},
			&libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: "/new/disk.img"}, Slices: slice(gib)}},
		"M20: from a file to a file": {diskOn("data", "vda", "/old/disk.img", ""), map[string]convert.DiskSource{"data": {Path: "/new/disk.img"}},
			&libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: "/new/disk.img"}, Slices: slice(gib)}},
		"M20: to where nobody knows": {diskOn("data", "vda", "/old/disk.img", ""), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			other := diskOn("root", "vdb", "/root/disk.img", "")
			state := runs(domain.StatusRunning, "", func(s *domain.State) { s.Metadata.DiskBytes = map[string]int64{"data": gib} })
			state.Domain = &libvirtxml.Domain{Name: "ns_guest", Title: "the same", Devices: &libvirtxml.DomainDeviceList{Disks: []libvirtxml.DomainDisk{tt.disk, other}}}
			before := diskOn("data", "vda", "/old/disk.img", "").Source
			if tt.disk.Source.Block != nil {
				before = diskOn("data", "vda", "", "/dev/old").Source
			}
			decided, l := decide(t, plan.Snapshot{
				State: state, Destinations: tt.to, CopyDisks: []string{"vda"}, CopyBytes: gib,
				VMI: placed(v1.Running, moved(here, there, handoff.Ready), replaces("data", "old", "new")),
			})
			a, asked := migration(decided)
			if tt.want == nil {
				if why := decided.VMI.Status.MigrationState.FailureReason; asked || l.State != handoff.Owned || !strings.Contains(why, "status.migratedVolumes[data].destinationPVCInfo") {
					t.Fatalf("asked for: %t, lease %s, because %q", asked, l.State, why)
				}
				return
			}
			def := a.Request.Definition
			if def == nil || def.Title != "the same" {
				t.Fatalf("the destination's definition is %+v", def)
			}
			if md, ours, err := domain.MetadataOf(def); err != nil || !ours || md.MigrationUID != job || md.Epoch != l.Epoch {
				t.Errorf("it carries %+v, %v, and not what was noted for the move", md, err)
			}
			want := []libvirtxml.DomainDisk{tt.disk, other}
			want[0].Source = tt.want
			if diff := cmp.Diff(want, def.Devices.Disks); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, state.Domain.Devices.Disks[0].Source); diff != "" {
				t.Errorf("the running domain was changed:\n%s", diff)
			}
		})
	}
}

func TestClaimsAt_ReplacedVolumes(t *testing.T) {
	arrived := moved(there, here, handoff.TakeOver)
	for name, tt := range map[string]struct {
		lease handoff.Lease
		want  string
	}{
		"the source's own":                   {moved(here, there, handoff.Ready), "old"},
		"the source's own, on the way":       {moved(here, there, handoff.Begin), "old"},
		"the target's":                       {moved(there, here, handoff.Prepare), "new"},
		"the target's, on the way":           {moved(there, here, handoff.Begin), "new"},
		"the target's, not complete":         {arrived, "new"},
		"the source's once it has failed":    {on(moved(here, there, handoff.Begin), decideNow, handoff.Event{Kind: handoff.Revert, Node: here}), "old"},
		"the target's while nobody is there": {fenced(moved(there, here, handoff.Begin)), "new"},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := placed(v1.Running, tt.lease, replaces("data", "old", "new"))
			before := vmi.DeepCopy()
			got, err := status.ClaimsAt(vmi, here)
			if err != nil {
				t.Fatal(err)
			}
			if got.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != tt.want || got.Status.VolumeStatus[0].PersistentVolumeClaimInfo.ClaimName != tt.want {
				t.Errorf("volumes %+v, status %+v; want claim %s", got.Spec.Volumes, got.Status.VolumeStatus, tt.want)
			}
			if diff := cmp.Diff(before, vmi); diff != "" {
				t.Errorf("the object was changed:\n%s", diff)
			}
		})
	}
	whole := placed(v1.Running, moved(there, here, handoff.Prepare))
	if got, err := status.ClaimsAt(whole, here); err != nil || got != whole {
		t.Errorf("without such volumes it is %v, %v", got, err)
	}
	broken := placed(v1.Running, handoff.Lease{}, replaces("data", "old", "new"), func(vmi *v1.VirtualMachineInstance) { vmi.Annotations[handoff.Annotation] = "{" })
	if _, err := status.ClaimsAt(broken, here); err == nil {
		t.Error("a lease that cannot be read names claims")
	}
	data := placed(v1.Running, moved(there, here, handoff.Prepare), replaces("data", "old", "new"), func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Volumes[0].VolumeSource = v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "old"}}
	})
	if got, err := status.ClaimsAt(data, here); err != nil || got.Spec.Volumes[0].DataVolume.Name != "new" {
		t.Errorf("volumes %+v, %v", got.Spec.Volumes, err)
	}
}
