// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	k8sv1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

var statusNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// plainLive is a running domain with one disk and one card, and whether its agent
// is connected.
func plainLive(agent bool) *libvirtxml.Domain {
	state := "disconnected"
	if agent {
		state = "connected"
	}
	return &libvirtxml.Domain{
		Type: "kvm", OS: &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Machine: "pc-q35-7.2"}},
		Memory: &libvirtxml.DomainMemory{Value: 65536, Unit: "KiB"}, CurrentMemory: &libvirtxml.DomainCurrentMemory{Value: 65536, Unit: "KiB"},
		VCPU: &libvirtxml.DomainVCPU{Value: 1}, CPU: &libvirtxml.DomainCPU{Topology: &libvirtxml.DomainCPUTopology{Sockets: 1, Cores: 1, Threads: 1}},
		Devices: &libvirtxml.DomainDeviceList{
			Disks:      []libvirtxml.DomainDisk{liveDisk("root", "vda")},
			Interfaces: []libvirtxml.DomainInterface{liveNIC("default", mac1)},
			Channels: []libvirtxml.DomainChannel{{
				Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: convert.AgentChannel, State: state}},
			}},
		},
	}
}

func liveDisk(name, target string) libvirtxml.DomainDisk {
	return libvirtxml.DomainDisk{
		Alias: xmlspec.Alias(name), Target: &libvirtxml.DomainDiskTarget{Dev: target},
		Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: "/x"}},
	}
}

// seen returns the observation of a domain in that state.
func seen(s domain.Status, r domain.Reason, live *libvirtxml.Domain) Observation {
	return Observation{Node: "here", State: &domain.State{Name: "mynamespace_testvmi", Status: s, Reason: r, Domain: live}}
}

// saying prints a condition: status, reason.
func saying(vmi *v1.VirtualMachineInstance, t v1.VirtualMachineInstanceConditionType) string {
	c := vmistatus.Condition(vmi, t)
	if c == nil {
		return ""
	}
	return strings.TrimSuffix(fmt.Sprintf("%s %s", c.Status, c.Reason), " ")
}

func TestReflect_PausedReason(t *testing.T) {
	migration := func(m v1.VirtualMachineInstanceMigrationState) *v1.VirtualMachineInstanceMigrationState { return &m }
	for name, tt := range map[string]struct {
		status domain.Status
		reason domain.Reason
		marked bool
		m      *v1.VirtualMachineInstanceMigrationState
		want   string
	}{
		"by a user":                       {domain.StatusPaused, domain.ReasonUser, true, nil, "True PausedByUser"},
		"by a disk":                       {domain.StatusPaused, domain.ReasonIOError, false, nil, "True PausedIOError"},
		"by a disk, and by a user":        {domain.StatusPaused, domain.ReasonIOError, true, nil, "True PausedIOError"},
		"by a user, the cause is lost":    {domain.StatusPaused, domain.ReasonUnknown, true, nil, "True PausedByUser"},
		"nobody knows by whom":            {domain.StatusPaused, domain.ReasonUnknown, false, nil, ""},
		"by its migration, here":          {domain.StatusPaused, domain.ReasonMigration, false, migration(v1.VirtualMachineInstanceMigrationState{SourceNode: "here", Mode: v1.MigrationPaused}), "True PausedByMigrationMonitor"},
		"by its migration, at the target": {domain.StatusPaused, domain.ReasonMigration, false, migration(v1.VirtualMachineInstanceMigrationState{SourceNode: "there", Mode: v1.MigrationPaused}), ""},
		"by a migration that is over":     {domain.StatusPaused, domain.ReasonMigration, false, migration(v1.VirtualMachineInstanceMigrationState{SourceNode: "here", Mode: v1.MigrationPaused, Completed: true}), ""},
		"by the switch of a migration":    {domain.StatusPaused, domain.ReasonMigration, false, migration(v1.VirtualMachineInstanceMigrationState{SourceNode: "here", Mode: v1.MigrationPreCopy}), ""},
		"to be saved, marked or not":      {domain.StatusPaused, domain.ReasonSave, true, nil, ""},
		"by its watchdog":                 {domain.StatusPaused, domain.ReasonWatchdog, false, nil, ""},
		"it runs, though it is marked":    {domain.StatusRunning, "", true, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := domainfixture.Small()
			vmi.Status.MigrationState = tt.m
			o := seen(tt.status, tt.reason, nil)
			o.State.Metadata.Paused = tt.marked
			for _, was := range []string{"", ReasonPausedByUser, ReasonPausedIOError} {
				vmi.Status.Conditions = nil
				if was != "" {
					setTrue(vmi, v1.VirtualMachineInstancePaused, was, "old", statusNow.Add(-time.Hour))
				}
				if got := saying(Reflect(vmi, o, statusNow), v1.VirtualMachineInstancePaused); got != tt.want {
					t.Errorf("after %q the condition is %q, want %q", was, got, tt.want)
				}
			}
		})
	}
}

// volumeRow is an entry of volumeStatus, what is known of it, and what it becomes.
type volumeRow struct {
	was              v1.VolumeStatus
	spec, here, live bool
	trouble          *action.Failure
	want             v1.VolumeStatus
}

func TestVolumeStatus_HotplugPhases(t *testing.T) {
	volume := func(p v1.VolumePhase, target, reason string) v1.VolumeStatus {
		return v1.VolumeStatus{Name: "plug", Phase: p, Target: target, Reason: reason, HotplugVolume: &v1.HotplugVolumeStatus{AttachPodName: "hp"}}
	}
	permanent := func(target, reason string) v1.VolumeStatus {
		return v1.VolumeStatus{Name: "plug", Target: target, Reason: reason, Size: 7}
	}
	dump := volume(v1.HotplugVolumeMounted, "", "")
	dump.MemoryDumpVolume = &v1.DomainMemoryDumpInfo{ClaimName: "c"}
	failed := func(op domain.Operation) *action.Failure {
		return &action.Failure{Action: action.Action{Verb: action.Apply, Operation: op}, Err: errors.New("no slot left")}
	}
	attach := failed(domain.Operation{Verb: domain.AttachDevice, Device: &libvirtxml.DomainDisk{Alias: xmlspec.Alias("plug")}})
	other := failed(domain.Operation{Verb: domain.AttachDevice, Device: &libvirtxml.DomainDisk{Alias: xmlspec.Alias("another")}})
	resize := failed(domain.Operation{Verb: domain.ResizeDisk, Disk: "ua-plug"})
	for name, tt := range map[string]volumeRow{
		"pending, not here":              {volume(v1.VolumePending, "", "PVCNotReady"), true, false, false, nil, volume(v1.VolumePending, "", "PVCNotReady")},
		"bound, and here":                {volume(v1.VolumeBound, "", "PVCNotReady"), true, true, false, nil, volume(v1.HotplugVolumeMounted, "", "VolumeMountedToPod")},
		"attached to the node, and here": {volume(v1.HotplugVolumeAttachedToNode, "", ""), true, true, false, nil, volume(v1.HotplugVolumeMounted, "", "VolumeMountedToPod")},
		"here, and in the guest":         {volume(v1.HotplugVolumeMounted, "", "VolumeMountedToPod"), true, true, true, nil, volume(v1.VolumeReady, "sda", "VolumeReady")},
		"ready, and said so":             {volume(v1.VolumeReady, "sda", "VolumeReady"), true, true, true, nil, volume(v1.VolumeReady, "sda", "VolumeReady")},
		"ready, and taken by hand":       {volume(v1.VolumeReady, "sda", "VolumeReady"), true, true, false, nil, volume(v1.HotplugVolumeMounted, "sda", "VolumeMountedToPod")},
		"unwanted, the guest holds it":   {volume(v1.VolumeReady, "sda", "VolumeReady"), false, false, true, nil, volume(v1.VolumeReady, "sda", "VolumeDetaching")},
		"wanted again in time":           {volume(v1.VolumeReady, "sda", "VolumeDetaching"), true, true, true, nil, volume(v1.VolumeReady, "sda", "VolumeReady")},
		"unwanted, and released":         {volume(v1.VolumeReady, "sda", "VolumeDetaching"), false, false, false, nil, volume(v1.HotplugVolumeUnMounted, "sda", "VolumeUnMountedFromPod")},
		"the controller detaches it":     {volume(v1.HotplugVolumeDetaching, "sda", "x"), false, false, false, nil, volume(v1.HotplugVolumeDetaching, "sda", "x")},
		"a memory dump is no disk":       {dump, true, true, false, nil, dump},
		"it cannot be plugged":           {volume(v1.HotplugVolumeMounted, "", "VolumeMountedToPod"), true, true, false, attach, volume(v1.HotplugVolumeMounted, "", "HotplugFailed")},
		"it could not, and now is":       {volume(v1.HotplugVolumeMounted, "", "HotplugFailed"), true, true, true, nil, volume(v1.VolumeReady, "sda", "VolumeReady")},
		"it could not, and may again":    {volume(v1.HotplugVolumeMounted, "", "HotplugFailed"), true, true, false, nil, volume(v1.HotplugVolumeMounted, "", "VolumeMountedToPod")},
		"another cannot":                 {volume(v1.VolumeReady, "sda", "VolumeReady"), true, true, true, other, volume(v1.VolumeReady, "sda", "VolumeReady")},
		"a fixed disk has no phase":      {permanent("", ""), true, true, true, nil, permanent("sda", "")},
		"it cannot grow":                 {permanent("sda", ""), true, true, true, resize, permanent("sda", "ResizeFailed")},
		"it has grown":                   {permanent("sda", "ResizeFailed"), true, true, true, nil, permanent("sda", "")},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := domainfixture.Small()
			vmi.Spec.Volumes = vmi.Spec.Volumes[:1]
			if tt.spec {
				vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "plug"})
			}
			vmi.Status.VolumeStatus = []v1.VolumeStatus{tt.was}
			live := plainLive(false)
			o := seen(domain.StatusRunning, "", live)
			if tt.live {
				live.Devices.Disks = append(live.Devices.Disks, liveDisk("plug", "sda"))
			}
			if tt.here {
				o.Facts.Disks = map[string]convert.DiskSource{"plug": {Path: "/x"}}
			}
			if tt.trouble != nil {
				o.Failures = []action.Failure{*tt.trouble}
			}
			got := VolumeStatus(vmi, o)
			again := vmi.DeepCopy()
			again.Status.VolumeStatus = got
			if diff := cmp.Diff(got, VolumeStatus(again, o)); diff != "" {
				t.Errorf("a second look changes (-first +second):\n%s", diff)
			}
			i := slices.IndexFunc(got, func(s v1.VolumeStatus) bool { return s.Name == "plug" })
			message := got[i].Message
			got[i].Message = ""
			if diff := cmp.Diff(tt.want, got[i]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if strings.HasSuffix(tt.want.Reason, "Failed") && !strings.Contains(message, "no slot left") {
				t.Errorf("the message %q does not say why", message)
			}
			if !slices.IsSortedFunc(got, func(a, b v1.VolumeStatus) int { return strings.Compare(a.Name, b.Name) }) {
				t.Errorf("not sorted: %+v", got)
			}
		})
	}
}

// TestVolumeStatus_NotFound: of a volume that its Pod has carried here and that is not found, the status has the reason until it is,
// and is not written for what only differs from attempt to attempt.
func TestVolumeStatus_NotFound(t *testing.T) {
	vmi := domainfixture.Small()
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "plug"})
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "plug", Phase: v1.HotplugVolumeAttachedToNode, Reason: "SuccessfulCreate",
		HotplugVolume: &v1.HotplugVolumeStatus{AttachPodUID: "hp"}}}
	o := seen(domain.StatusRunning, "", plainLive(false))
	for _, tt := range []struct {
		missing, reason, message string
		phase                    v1.VolumePhase
	}{
		{"no disk.img, process 4711", "HotplugFailed", "no disk.img, process 4711", v1.HotplugVolumeAttachedToNode},
		{"no disk.img, process 4712", "HotplugFailed", "no disk.img, process 4711", v1.HotplugVolumeAttachedToNode},
		{"a link", "HotplugFailed", "a link", v1.HotplugVolumeAttachedToNode},
		{"", "VolumeMountedToPod", "Volume plug has been mounted in virt-launcher pod", v1.HotplugVolumeMounted},
	} {
		o.Facts.Missing, o.Facts.Disks = map[string]string{"plug": tt.missing}, nil
		if tt.missing == "" {
			o.Facts.Missing, o.Facts.Disks = nil, map[string]convert.DiskSource{"plug": {Path: "/x"}}
		}
		vmi.Status.VolumeStatus = VolumeStatus(vmi, o)
		i := slices.IndexFunc(vmi.Status.VolumeStatus, func(s v1.VolumeStatus) bool { return s.Name == "plug" })
		if got := vmi.Status.VolumeStatus[i]; got.Reason != tt.reason || got.Message != tt.message || got.Phase != tt.phase {
			t.Errorf("%q: %+v", tt.missing, got)
		}
	}
}

func TestReflect_FixedDiskFailure(t *testing.T) {
	vmi := domainfixture.Small()
	o := seen(domain.StatusRunning, "", plainLive(false))
	o.Failures = []action.Failure{
		{Action: action.Action{Operation: domain.Operation{Verb: domain.AttachDevice, Device: &libvirtxml.DomainDisk{Alias: xmlspec.Alias("data")}}}, Err: errors.New("busy")},
		{Action: action.Action{Operation: domain.Operation{Verb: domain.DetachDevice, Device: &libvirtxml.DomainDisk{Alias: xmlspec.Alias("gone")}}}, Err: errors.New("held")},
	}
	out := Reflect(vmi, o, statusNow)
	got := map[string]string{}
	for _, s := range out.Status.VolumeStatus {
		got[s.Name] = s.Reason
	}
	if diff := cmp.Diff(map[string]string{"data": "HotplugFailed", "root": ""}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if c := vmistatus.Condition(out, v1.VirtualMachineInstanceSynchronized); c == nil || c.Reason != ReasonSyncFailed ||
		!strings.Contains(c.Message, "ua-data: busy") || !strings.Contains(c.Message, "ua-gone: held") {
		t.Errorf("the condition is %+v, want both devices and causes", c)
	}
}

func TestReflect_AgentConditions(t *testing.T) {
	all := slices.Concat(basicCommands, sshCommands, passwdCommands)
	sshAndPassword := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.AccessCredentials = []v1.AccessCredential{
			{SSHPublicKey: &v1.SSHPublicKeyAccessCredential{PropagationMethod: v1.SSHPublicKeyAccessCredentialPropagationMethod{QemuGuestAgent: &v1.QemuGuestAgentSSHPublicKeyAccessCredentialPropagation{}}}},
			{UserPassword: &v1.UserPasswordAccessCredential{PropagationMethod: v1.UserPasswordAccessCredentialPropagationMethod{QemuGuestAgent: &v1.QemuGuestAgentUserPasswordAccessCredentialPropagation{}}}},
		}
	}
	none := func(*v1.VirtualMachineInstance) {}
	for name, tt := range map[string]struct {
		connected bool
		guest     *guestagent.Info
		edit      func(*v1.VirtualMachineInstance)
		was       bool
		missing   string
	}{
		"not connected, as said before":      {false, nil, none, true, ""},
		"not connected, whatever it said":    {false, &guestagent.Info{AgentVersion: "1.0"}, none, true, ""},
		"it has not reported yet":            {true, nil, none, false, ""},
		"it has not reported yet, as before": {true, &guestagent.Info{}, none, true, "as before"},
		"it has all":                         {true, &guestagent.Info{Commands: all}, sshAndPassword, true, ""},
		"it lacks one":                       {true, &guestagent.Info{Commands: basicCommands[1:]}, none, false, "guest-ping"},
		"it lacks those for keys":            {true, &guestagent.Info{Commands: slices.Concat(basicCommands, passwdCommands, sshCommands[1:])}, sshAndPassword, false, "guest-ssh-get-authorized-keys"},
		"the older ones for keys will do":    {true, &guestagent.Info{Commands: slices.Concat(basicCommands, passwdCommands, oldSSHCommands)}, sshAndPassword, false, ""},
		"it lacks the one for passwords":     {true, &guestagent.Info{Commands: slices.Concat(basicCommands, sshCommands)}, sshAndPassword, false, "guest-set-user-password"},
		"nobody asks for those":              {true, &guestagent.Info{Commands: basicCommands}, none, false, ""},
		"it lists none, and is new enough":   {true, &guestagent.Info{AgentVersion: "7.2.0"}, none, false, ""},
		"it lists none, and is too old":      {true, &guestagent.Info{AgentVersion: "1.5.3"}, none, false, `version "1.5.3"`},
		"it lists none, and has no version":  {true, &guestagent.Info{AgentVersion: "x2"}, none, false, `version "x2"`},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := domainfixture.Small()
			tt.edit(vmi)
			if tt.was {
				setTrue(vmi, v1.VirtualMachineInstanceUnsupportedAgent, reasonMissingCommands, "as before", statusNow)
				setTrue(vmi, v1.VirtualMachineInstanceAgentConnected, "", "", statusNow)
			}
			o := seen(domain.StatusRunning, "", plainLive(tt.connected))
			o.Guest = tt.guest
			out := Reflect(vmi, o, statusNow)
			if got := vmistatus.IsTrue(out, v1.VirtualMachineInstanceAgentConnected); got != tt.connected {
				t.Errorf("AgentConnected is %t", got)
			}
			c := vmistatus.Condition(out, v1.VirtualMachineInstanceUnsupportedAgent)
			if (c != nil) != (tt.missing != "") || c != nil && (c.Status != k8sv1.ConditionTrue || !strings.Contains(c.Message, tt.missing)) {
				t.Errorf("the condition is %+v, want %q", c, tt.missing)
			}
		})
	}
}

func TestReflect_AgentReport(t *testing.T) {
	old := v1.VirtualMachineInstanceGuestOSInfo{Name: "Debian", KernelRelease: "5"}
	debian := guestagent.OS{Name: "Debian", ID: "debian", PrettyName: "Debian 13", Version: "13 (trixie)", VersionID: "13", KernelRelease: "6", KernelVersion: "#1", Machine: "x86_64"}
	for name, tt := range map[string]struct {
		guest  *guestagent.Info
		thawAt *time.Time
		os     v1.VirtualMachineInstanceGuestOSInfo
		frozen string
	}{
		"nothing yet":                {nil, nil, old, "frozen"},
		"no name":                    {&guestagent.Info{OS: guestagent.OS{KernelRelease: "6"}}, nil, old, ""},
		"all, though the same name":  {&guestagent.Info{OS: debian}, nil, v1.VirtualMachineInstanceGuestOSInfo{Name: "Debian", ID: "debian", PrettyName: "Debian 13", Version: "13 (trixie)", VersionID: "13", KernelRelease: "6", KernelVersion: "#1", Machine: "x86_64"}, ""},
		"frozen":                     {&guestagent.Info{Frozen: true}, nil, old, "frozen"},
		"frozen since it was last":   {&guestagent.Info{}, &statusNow, old, "frozen"},
		"thawed":                     {&guestagent.Info{}, nil, old, ""},
		"frozen with a limit, alone": {nil, &statusNow, old, "frozen"},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := domainfixture.Small()
			vmi.Status.GuestOSInfo, vmi.Status.FSFreezeStatus = old, "frozen"
			o := seen(domain.StatusRunning, "", plainLive(true))
			o.Guest, o.State.Metadata.ThawAt = tt.guest, tt.thawAt
			out := Reflect(vmi, o, statusNow)
			if diff := cmp.Diff(tt.os, out.Status.GuestOSInfo); diff != "" {
				t.Errorf("guestOSInfo (-want +got):\n%s", diff)
			}
			if out.Status.FSFreezeStatus != tt.frozen {
				t.Errorf("fsFreezeStatus is %q, want %q", out.Status.FSFreezeStatus, tt.frozen)
			}
		})
	}
}

func TestReflect_EmulationAndCredentials(t *testing.T) {
	vmi := domainfixture.Small()
	live := plainLive(false)
	o := seen(domain.StatusRunning, "", live)
	if got := saying(Reflect(vmi, o, statusNow), v1.VirtualMachineInstanceSoftwareEmulation); got != "" {
		t.Errorf("with KVM the condition is %q", got)
	}
	live.Type = "qemu"
	out := Reflect(vmi, o, statusNow)
	if !vmistatus.IsTrue(out, v1.VirtualMachineInstanceSoftwareEmulation) {
		t.Error("the condition SoftwareEmulation is not True")
	}
	if got := saying(out, v1.VirtualMachineInstanceAccessCredentialsSynchronized); got != "" {
		t.Errorf("nothing is known of credentials, and the condition is %q", got)
	}
	for want, c := range map[string]*CredentialSync{"True": {Done: true}, "False": {Message: "no such user"}} {
		o.Credentials = c
		if got := saying(Reflect(out, o, statusNow), v1.VirtualMachineInstanceAccessCredentialsSynchronized); got != want {
			t.Errorf("the condition is %q, want %q", got, want)
		}
	}
}
