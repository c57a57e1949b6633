// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"time"
)

// Info is the report of a guest agent.
type Info struct {
	// AgentVersion is the agent's version; Commands are those it has enabled,
	// sorted, such as guest-ping.
	AgentVersion string
	Commands     []string
	// Hostname and Timezone ("CET, 3600") are the guest's.
	Hostname, Timezone string
	// OS is the guest's operating system.
	OS OS
	// Users are the users who are logged in.
	Users []User
	// Filesystems are the mounted file systems.
	Filesystems []Filesystem
	// Interfaces are the guest's network interfaces, including the loopback.
	Interfaces []Interface
	// Frozen says that the file systems are frozen; see [domain.GuestAgent]. A frozen agent
	// reports little else, so the other fields are to be ignored.
	Frozen bool
}

// OS is the operating system of a guest, with the field names of the agent's
// guest-get-osinfo.
type OS struct {
	Name, ID, PrettyName, Version, VersionID, KernelRelease, KernelVersion, Machine string
}

// User is a user who is logged in.
type User struct {
	// Name and Domain (Windows) identify the user, LoginTime is the time of the login.
	Name, Domain string
	LoginTime    time.Time
}

// Filesystem is a mounted file system.
type Filesystem struct {
	// Name is the name of the device in the guest, Mountpoint the path at which it is
	// mounted, Type its file system type.
	Name, Mountpoint, Type string
	// UsedBytes and TotalBytes are its size; zero if unknown.
	UsedBytes, TotalBytes uint64
	// Disks are the targets (vda) of the disks below it, as far as they are known.
	Disks []string
}

// Interface is a network interface as the guest sees it.
type Interface struct {
	// Name is the guest's name for it (eth0), MAC its hardware address.
	Name, MAC string
	// IPs are its addresses without prefix lengths, in the agent's order.
	IPs []string
}
