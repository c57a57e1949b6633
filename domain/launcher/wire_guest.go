// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"time"

	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/launcher/launcherpb"
	"github.com/virtloom/virtloom/domain/stats"
)

// A guest's own values are arbitrary bytes; see text.

func texts(in []string) []string { return eachOnWire(in, validUTF8) }

func shorts(in []string) []string { return eachOnWire(fewOnWire(in), shortWireText) }

func guestToWire(g guestagent.Info) *launcherpb.GuestInfoResponse {
	return &launcherpb.GuestInfoResponse{
		AgentVersion: validUTF8(g.AgentVersion), Commands: texts(g.Commands), Hostname: validUTF8(g.Hostname), Timezone: validUTF8(g.Timezone),
		Os: &launcherpb.GuestOS{
			Name: validUTF8(g.OS.Name), Id: validUTF8(g.OS.ID), PrettyName: validUTF8(g.OS.PrettyName), Version: validUTF8(g.OS.Version), VersionId: validUTF8(g.OS.VersionID),
			KernelRelease: validUTF8(g.OS.KernelRelease), KernelVersion: validUTF8(g.OS.KernelVersion), Machine: validUTF8(g.OS.Machine),
		},
		Users: eachOnWire(g.Users, func(u guestagent.User) *launcherpb.GuestUser {
			return &launcherpb.GuestUser{Name: validUTF8(u.Name), Domain: validUTF8(u.Domain), LoginTime: toNanos(u.LoginTime)}
		}),
		Filesystems: eachOnWire(g.Filesystems, func(f guestagent.Filesystem) *launcherpb.GuestFilesystem {
			return &launcherpb.GuestFilesystem{
				Name: validUTF8(f.Name), Mountpoint: validUTF8(f.Mountpoint), Type: validUTF8(f.Type),
				UsedBytes: f.UsedBytes, TotalBytes: f.TotalBytes, Disks: texts(f.Disks),
			}
		}),
		Interfaces: eachOnWire(g.Interfaces, func(i guestagent.Interface) *launcherpb.GuestInterface {
			return &launcherpb.GuestInterface{Name: validUTF8(i.Name), Mac: validUTF8(i.MAC), Ips: texts(i.IPs)}
		}),
		Frozen: g.Frozen,
	}
}

// guestFromWire bounds the values of the guest, or its launcher.
func guestFromWire(g *launcherpb.GuestInfoResponse) guestagent.Info {
	os := g.GetOs()
	return guestagent.Info{
		AgentVersion: shortWireText(g.AgentVersion), Commands: shorts(g.Commands), Hostname: shortWireText(g.Hostname), Timezone: shortWireText(g.Timezone),
		OS: guestagent.OS{
			Name: shortWireText(os.GetName()), ID: shortWireText(os.GetId()), PrettyName: shortWireText(os.GetPrettyName()), Version: shortWireText(os.GetVersion()),
			VersionID: shortWireText(os.GetVersionId()), KernelRelease: shortWireText(os.GetKernelRelease()), KernelVersion: shortWireText(os.GetKernelVersion()),
			Machine: shortWireText(os.GetMachine()),
		},
		Users: eachOnWire(fewOnWire(g.Users), func(u *launcherpb.GuestUser) guestagent.User {
			return guestagent.User{Name: shortWireText(u.Name), Domain: shortWireText(u.Domain), LoginTime: fromNanos(u.LoginTime)}
		}),
		Filesystems: eachOnWire(fewOnWire(g.Filesystems), func(f *launcherpb.GuestFilesystem) guestagent.Filesystem {
			return guestagent.Filesystem{
				Name: shortWireText(f.Name), Mountpoint: shortWireText(f.Mountpoint), Type: shortWireText(f.Type), UsedBytes: f.UsedBytes, TotalBytes: f.TotalBytes,
				Disks: shorts(f.Disks),
			}
		}),
		Interfaces: eachOnWire(fewOnWire(g.Interfaces), func(i *launcherpb.GuestInterface) guestagent.Interface {
			return guestagent.Interface{Name: shortWireText(i.Name), MAC: shortWireText(i.Mac), IPs: shorts(i.Ips)}
		}),
		Frozen: g.Frozen,
	}
}

func statsToWire(s stats.Domain) *launcherpb.DomainStats {
	m := s.Memory
	return &launcherpb.DomainStats{
		Name: s.Name, Uuid: s.UUID, CpuTime: int64(s.CPUTime),
		Vcpus: eachOnWire(s.VCPUs, func(v stats.VCPU) *launcherpb.VCPUStats {
			return &launcherpb.VCPUStats{Time: int64(v.Time), Wait: int64(v.Wait)}
		}),
		Memory: &launcherpb.MemoryStats{
			Current: m.Current, Resident: m.Resident, Available: m.Available, Unused: m.Unused, Usable: m.Usable,
			SwappedIn: m.SwappedIn, SwappedOut: m.SwappedOut,
		},
		Disks: eachOnWire(s.Disks, func(d stats.Disk) *launcherpb.DiskStats {
			return &launcherpb.DiskStats{
				Target: d.Target, Alias: d.Alias, ReadRequests: d.ReadRequests, ReadBytes: d.ReadBytes, WriteRequests: d.WriteRequests,
				WriteBytes: d.WriteBytes, FlushRequests: d.FlushRequests, Capacity: d.Capacity, Allocation: d.Allocation,
			}
		}),
		Interfaces: eachOnWire(s.Interfaces, func(i stats.Interface) *launcherpb.InterfaceStats {
			return &launcherpb.InterfaceStats{
				Device: i.Device, Alias: i.Alias,
				ReceivedBytes: i.ReceivedBytes, ReceivedPackets: i.ReceivedPackets, ReceiveErrors: i.ReceiveErrors, ReceiveDrops: i.ReceiveDrops,
				SentBytes: i.SentBytes, SentPackets: i.SentPackets, SendErrors: i.SendErrors, SendDrops: i.SendDrops,
			}
		}),
	}
}

func statsFromWire(s *launcherpb.DomainStats) stats.Domain {
	m := s.GetMemory()
	return stats.Domain{
		Name: s.Name, UUID: s.Uuid, CPUTime: time.Duration(s.CpuTime),
		VCPUs: eachOnWire(s.Vcpus, func(v *launcherpb.VCPUStats) stats.VCPU {
			return stats.VCPU{Time: time.Duration(v.Time), Wait: time.Duration(v.Wait)}
		}),
		Memory: stats.Memory{
			Current: m.GetCurrent(), Resident: m.GetResident(), Available: m.GetAvailable(), Unused: m.GetUnused(), Usable: m.GetUsable(),
			SwappedIn: m.GetSwappedIn(), SwappedOut: m.GetSwappedOut(),
		},
		Disks: eachOnWire(s.Disks, func(d *launcherpb.DiskStats) stats.Disk {
			return stats.Disk{
				Target: d.Target, Alias: d.Alias, ReadRequests: d.ReadRequests, ReadBytes: d.ReadBytes, WriteRequests: d.WriteRequests,
				WriteBytes: d.WriteBytes, FlushRequests: d.FlushRequests, Capacity: d.Capacity, Allocation: d.Allocation,
			}
		}),
		Interfaces: eachOnWire(s.Interfaces, func(i *launcherpb.InterfaceStats) stats.Interface {
			return stats.Interface{
				Device: i.Device, Alias: i.Alias,
				ReceivedBytes: i.ReceivedBytes, ReceivedPackets: i.ReceivedPackets, ReceiveErrors: i.ReceiveErrors, ReceiveDrops: i.ReceiveDrops,
				SentBytes: i.SentBytes, SentPackets: i.SentPackets, SendErrors: i.SendErrors, SendDrops: i.SendDrops,
			}
		}),
	}
}
