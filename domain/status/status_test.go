// SPDX-License-Identifier: Apache-2.0

package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	k8sv1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

func TestPhase(t *testing.T) {
	type in struct {
		now    v1.VirtualMachineInstancePhase
		status domain.Status
		reason domain.Reason
		change func(*v1.VirtualMachineInstance)
	}
	noACPI := func(v *v1.VirtualMachineInstance) {
		v.Spec.Domain.Features = &v1.Features{ACPI: v1.FeatureState{Enabled: new(false)}}
	}
	postCopy := func(v *v1.VirtualMachineInstance) {
		noACPI(v)
		v.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{Failed: true, Mode: v1.MigrationPostCopy}
	}
	for name, row := range map[string]struct {
		in   in
		want v1.VirtualMachineInstancePhase
	}{
		"not started yet":         {in{now: v1.Scheduled}, v1.Scheduled},
		"gone while running":      {in{now: v1.Running}, v1.Running},
		"not handed over yet":     {in{now: v1.Scheduling}, v1.Scheduled},
		"final stays final":       {in{now: v1.Failed, status: domain.StatusRunning}, v1.Failed},
		"final without domain":    {in{now: v1.Succeeded}, v1.Succeeded},
		"runs":                    {in{now: v1.Scheduled, status: domain.StatusRunning}, v1.Running},
		"blocked":                 {in{now: v1.Running, status: domain.StatusBlocked}, v1.Running},
		"asleep":                  {in{now: v1.Running, status: domain.StatusPMSuspended}, v1.Running},
		"paused":                  {in{now: v1.Scheduled, status: domain.StatusPaused, reason: domain.ReasonUser}, v1.Running},
		"paused by storage":       {in{now: v1.Running, status: domain.StatusPaused, reason: domain.ReasonIOError}, v1.Running},
		"lost in post-copy":       {in{now: v1.Running, status: domain.StatusPaused, reason: domain.ReasonPostcopyFailed}, v1.Failed},
		"crashed":                 {in{now: v1.Running, status: domain.StatusShutoff, reason: domain.ReasonCrashed}, v1.Failed},
		"panicked":                {in{now: v1.Running, status: domain.StatusCrashed, reason: domain.ReasonPanicked}, v1.Failed},
		"shut down":               {in{now: v1.Running, status: domain.StatusShutoff, reason: domain.ReasonShutdown}, v1.Succeeded},
		"saved":                   {in{now: v1.Running, status: domain.StatusShutoff, reason: domain.ReasonSaved}, v1.Succeeded},
		"from a snapshot":         {in{now: v1.Running, status: domain.StatusShutoff, reason: domain.ReasonFromSnapshot}, v1.Succeeded},
		"killed with ACPI":        {in{now: v1.Running, status: domain.StatusShutoff, reason: domain.ReasonDestroyed}, v1.Failed},
		"killed without ACPI":     {in{now: v1.Running, status: domain.StatusShutoff, reason: domain.ReasonDestroyed, change: noACPI}, v1.Succeeded},
		"killed without time":     {in{now: v1.Running, status: domain.StatusShutoff, reason: domain.ReasonDestroyed, change: func(v *v1.VirtualMachineInstance) { v.Spec.TerminationGracePeriodSeconds = new(int64(0)) }}, v1.Succeeded},
		"killed after post-copy":  {in{now: v1.Running, status: domain.StatusShutoff, reason: domain.ReasonDestroyed, change: postCopy}, v1.Failed},
		"migrated away":           {in{now: v1.Running, status: domain.StatusShutoff, reason: domain.ReasonMigrated}, v1.Running},
		"failed to start":         {in{now: v1.Scheduled, status: domain.StatusShutoff, reason: domain.ReasonFailed}, v1.Scheduled},
		"off for no known reason": {in{now: v1.Scheduled, status: domain.StatusShutoff, reason: domain.ReasonUnknown}, v1.Scheduled},
		"shutting down":           {in{now: v1.Running, status: domain.StatusShuttingDown, reason: domain.ReasonUser}, v1.Running},
		"nothing known":           {in{now: v1.Running, status: domain.StatusNoState}, v1.Running},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := domainfixture.Small()
			vmi.Status.Phase = row.in.now
			if row.in.change != nil {
				row.in.change(vmi)
			}
			var s *domain.State
			if row.in.status != "" {
				s = &domain.State{Status: row.in.status, Reason: row.in.reason}
			}
			if got := Phase(vmi, s); got != row.want {
				t.Errorf("phase is %s, want %s", got, row.want)
			}
		})
	}
}

// liveNIC is a card as a hypervisor shows it.
func liveNIC(name, mac string) libvirtxml.DomainInterface {
	return libvirtxml.DomainInterface{Alias: xmlspec.Alias(name), MAC: &libvirtxml.DomainInterfaceMAC{Address: mac}}
}

func TestInterfaces_Domain(t *testing.T) {
	vmi := domainfixture.Small()
	vmi.Spec.Networks = []v1.Network{
		{Name: "storage", NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "s"}}},
		{Name: "default", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}},
	}
	vmi.Status.Interfaces = []v1.VirtualMachineInstanceNetworkInterface{
		{Name: "default", IP: "10.0.2.2", IPs: []string{"10.0.2.2"}, PodInterfaceName: "eth0", InfoSource: "multus-status", LinkState: "up"},
		{Name: "coming", PodInterfaceName: "pod1", InfoSource: "multus-status"},
		{Name: "left", InfoSource: "domain"},
	}
	down := liveNIC("storage", "02:00:00:00:00:01")
	down.Link = &libvirtxml.DomainInterfaceLink{State: "down"}
	down.Driver = &libvirtxml.DomainInterfaceDriver{Queues: 4}
	live := &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{Interfaces: []libvirtxml.DomainInterface{
		down, liveNIC("default", "02:00:00:00:00:02"), {Alias: &libvirtxml.DomainAlias{Name: "net2"}},
	}}}
	want := []v1.VirtualMachineInstanceNetworkInterface{
		{Name: "default", MAC: "02:00:00:00:00:02", IP: "10.0.2.2", IPs: []string{"10.0.2.2"}, PodInterfaceName: "eth0",
			InfoSource: "domain, multus-status", QueueCount: 1, LinkState: "up"},
		{Name: "storage", MAC: "02:00:00:00:00:01", InfoSource: "domain", QueueCount: 4, LinkState: "down"},
		{Name: "coming", PodInterfaceName: "pod1", InfoSource: "multus-status"},
	}
	got := Interfaces(vmi, Observation{State: &domain.State{Domain: live}})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("interfaces (-want +got):\n%s", diff)
	}
	vmi.Status.Interfaces = got
	if diff := cmp.Diff(got, Interfaces(vmi, Observation{State: &domain.State{Domain: live}})); diff != "" {
		t.Errorf("a second reflection changes (-first +second):\n%s", diff)
	}
}

func TestVolumeStatus_Targets(t *testing.T) {
	vmi := domainfixture.Small()
	vmi.Status.VolumeStatus = []v1.VolumeStatus{
		{Name: "root", Target: "", Size: 7}, {Name: "later", Phase: v1.VolumePending},
	}
	file := &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: "/x"}}
	live := &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{Disks: []libvirtxml.DomainDisk{
		{Alias: xmlspec.Alias("root"), Source: file, Target: &libvirtxml.DomainDiskTarget{Dev: "vda"}},
		{Alias: xmlspec.Alias("data"), Source: file, Target: &libvirtxml.DomainDiskTarget{Dev: "vdb"}},
		{Alias: xmlspec.Alias("drive"), Target: &libvirtxml.DomainDiskTarget{Dev: "sda"}},
	}}}
	want := []v1.VolumeStatus{{Name: "data", Target: "vdb"}, {Name: "later", Phase: v1.VolumePending}, {Name: "root", Target: "vda", Size: 7}}
	if diff := cmp.Diff(want, VolumeStatus(vmi, Observation{State: &domain.State{Domain: live}})); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
}

func TestAgentConnected_Channel(t *testing.T) {
	live := func(state string) *libvirtxml.Domain {
		return &libvirtxml.Domain{Type: "qemu", Devices: &libvirtxml.DomainDeviceList{Channels: []libvirtxml.DomainChannel{{
			Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: convert.AgentChannel, State: state}},
		}}}}
	}
	if !AgentConnected(live("connected")) || AgentConnected(live("disconnected")) || AgentConnected(nil) {
		t.Error("the channel's state does not decide")
	}
	if !Emulated(live("")) || Emulated(nil) {
		t.Error("the type does not decide")
	}
}

func TestLiveMigratable(t *testing.T) {
	type vmiT = v1.VirtualMachineInstance
	for name, row := range map[string]struct {
		change func(*vmiT, *convert.Facts)
		reason string
		method v1.VirtualMachineInstanceMigrationMethod
	}{
		"all is shared":     {func(*vmiT, *convert.Facts) {}, "", v1.LiveMigration},
		"disk is local":     {func(_ *vmiT, f *convert.Facts) { f.Disks["root"] = convert.DiskSource{Path: "/x"} }, "DisksNotLiveMigratable", v1.LiveMigration},
		"disk is not there": {func(_ *vmiT, f *convert.Facts) { f.Disks = nil }, "DisksNotLiveMigratable", v1.LiveMigration},
		"disk is moved": {func(v *vmiT, f *convert.Facts) {
			f.Disks = nil
			v.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "root"}}
		}, "", v1.BlockMigration},
		"scratch is copied": {func(v *vmiT, _ *convert.Facts) { v.Spec.Volumes = append(v.Spec.Volumes, v1.Volume{Name: "scratch"}) }, "", v1.BlockMigration},
		"bridge": {func(v *vmiT, _ *convert.Facts) {
			v.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}
		}, "InterfaceNotLiveMigratable", v1.LiveMigration},
		"bridge, allowed": {func(v *vmiT, _ *convert.Facts) {
			v.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}
			v.Annotations = map[string]string{allowBridgeMigration: ""}
		}, "", v1.LiveMigration},
		"bridge elsewhere": {func(v *vmiT, _ *convert.Facts) {
			v.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}
			v.Spec.Networks[0].NetworkSource = v1.NetworkSource{Multus: &v1.MultusNetwork{}}
		}, "", v1.LiveMigration},
		"host device":      {func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.Devices.HostDevices = []v1.HostDevice{{}} }, "HostDeviceNotLiveMigratable", v1.LiveMigration},
		"GPU":              {func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.Devices.GPUs = []v1.GPU{{}} }, "HostDeviceNotLiveMigratable", v1.LiveMigration},
		"SEV":              {func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.LaunchSecurity = &v1.LaunchSecurity{SEV: &v1.SEV{}} }, "SEVNotLiveMigratable", v1.LiveMigration},
		"TDX":              {func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.LaunchSecurity = &v1.LaunchSecurity{TDX: &v1.TDX{}} }, "TDXNotLiveMigratable", v1.LiveMigration},
		"secure execution": {func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.LaunchSecurity = &v1.LaunchSecurity{} }, "SecureExecutionNotLiveMigratable", v1.LiveMigration},
		"no TSC": {func(v *vmiT, _ *convert.Facts) {
			v.Spec.Domain.Features = &v1.Features{Hyperv: &v1.FeatureHyperv{Reenlightenment: &v1.FeatureState{}}}
		}, "NoTSCFrequencyNotLiveMigratable", v1.LiveMigration},
		"Hyper-V passthrough": {func(v *vmiT, _ *convert.Facts) {
			v.Spec.Domain.Features = &v1.Features{HypervPassthrough: &v1.HyperVPassthrough{}}
		}, "HypervPassthroughNotLiveMigratable", v1.LiveMigration},
	} {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[convert.Facts]()
			vmi.Spec.Volumes = vmi.Spec.Volumes[:1]
			row.change(vmi, &f)
			cond, method := LiveMigratable(vmi, f)
			status := k8sv1.ConditionTrue
			if row.reason != "" {
				status = k8sv1.ConditionFalse
			}
			if cond.Type != v1.VirtualMachineInstanceIsMigratable || cond.Status != status || cond.Reason != row.reason || method != row.method {
				t.Errorf("condition is %+v, method %s", cond, method)
			}
			if (cond.Message == "") != (row.reason == "") {
				t.Errorf("message is %q", cond.Message)
			}
		})
	}
}

func TestCopyDisks_WritableNotShared(t *testing.T) {
	f := domainfixture.Facts[convert.Facts]()
	d, err := convert.Convert(domainfixture.Read(t, "../convert/testdata/everything.yaml"), f)
	if err != nil {
		t.Fatal(err)
	}
	// root and data are shared, the CD-ROMs read-only.
	if diff := cmp.Diff([]string{"sdb", "vdb"}, CopyDisks(nil, d, f)); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
	if got := CopyDisks(nil, nil, f); got != nil {
		t.Errorf("targets of nothing: %v", got)
	}
	if got := CopySources(nil, d, f); len(got) != 2 || got[0].Shared || got[0].Path == "" || got[1].Path == "" {
		t.Errorf("sources %+v, want those of the two disks", got)
	}
}
