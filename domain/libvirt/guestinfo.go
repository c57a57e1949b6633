// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	virt "libvirt.org/go/libvirt"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/guestagent"
)

// Agent commands for which libvirt has no call.
const (
	guestInfo    = "guest-info"
	freezeStatus = "guest-fsfreeze-status"
)

// plain is a command without arguments in the agent's JSON; its name is one of the constants.
func plain(command string) string { return `{"execute":"` + command + `"}` }

// commandName parses the name of a command.
func commandName(command string) (string, error) {
	var c struct {
		Execute string `json:"execute"`
	}
	if err := json.Unmarshal([]byte(command), &c); err != nil {
		return "", fmt.Errorf("libvirt: command for the guest agent: %w: %w", domain.ErrInvalid, err)
	}
	if c.Execute == "" {
		return "", fmt.Errorf("libvirt: command for the guest agent: execute: Required value: %w", domain.ErrInvalid)
	}
	return c.Execute, nil
}

// knows reports whether the agent has enabled a command.
func knows(info guestagent.Info, command string) bool {
	return slices.Contains(info.Commands, command)
}

// parseAgent parses the answer to guest-info.
func parseAgent(answer string) (guestagent.Info, error) {
	var a struct {
		Return struct {
			Version  string `json:"version"`
			Commands []struct {
				Name    string `json:"name"`
				Enabled bool   `json:"enabled"`
			} `json:"supported_commands"`
		} `json:"return"`
	}
	if err := json.Unmarshal([]byte(answer), &a); err != nil {
		return guestagent.Info{}, fmt.Errorf("libvirt: answer of the guest agent to %s: %w", guestInfo, err)
	}
	info := guestagent.Info{AgentVersion: a.Return.Version}
	for _, c := range a.Return.Commands {
		if c.Enabled {
			info.Commands = append(info.Commands, c.Name)
		}
	}
	slices.Sort(info.Commands)
	return info, nil
}

// parseFrozen parses the answer to guest-fsfreeze-status.
func parseFrozen(answer string) (bool, error) {
	var a struct {
		Return string `json:"return"`
	}
	if err := json.Unmarshal([]byte(answer), &a); err != nil {
		return false, fmt.Errorf("libvirt: answer of the guest agent to %s: %w", freezeStatus, err)
	}
	return a.Return == "frozen", nil
}

// describeGuest adds what libvirt has read from the agent.
func describeGuest(out *guestagent.Info, in *virt.DomainGuestInfo) {
	out.Hostname = in.Hostname
	if in.TimeZone != nil && in.TimeZone.NameSet {
		out.Timezone = fmt.Sprintf("%s, %d", in.TimeZone.Name, in.TimeZone.Offset)
	}
	if o := in.OS; o != nil {
		out.OS = guestagent.OS{
			Name: o.Name, ID: o.ID, PrettyName: o.PrettyName, Version: o.Version, VersionID: o.VersionID,
			KernelRelease: o.KernelRelease, KernelVersion: o.KernelVersion, Machine: o.Machine,
		}
	}
	for _, u := range in.Users {
		out.Users = append(out.Users, guestagent.User{Name: u.Name, Domain: u.Domain, LoginTime: time.UnixMilli(int64(u.LoginTime)).UTC()})
	}
	for _, f := range in.FileSystems {
		fs := guestagent.Filesystem{Name: f.Name, Mountpoint: f.MountPoint, Type: f.FSType, UsedBytes: f.UsedBytes, TotalBytes: f.TotalBytes}
		for _, disk := range f.Disks {
			if disk.AliasSet { // libvirt's name for the target
				fs.Disks = append(fs.Disks, disk.Alias)
			}
		}
		out.Filesystems = append(out.Filesystems, fs)
	}
	for _, i := range in.Interfaces {
		link := guestagent.Interface{Name: i.Name, MAC: i.Hwaddr}
		for _, a := range i.Addrs {
			link.IPs = append(link.IPs, a.Addr)
		}
		out.Interfaces = append(out.Interfaces, link)
	}
}
