// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

// Channels of a migration: the values KubeVirt gives, in the map of a target's ports
// (status.migrationState.targetDirectMigrationNodePorts), to the ports that lead to
// them.
const (
	// ChannelControl leads to the hypervisor's own socket.
	ChannelControl = 0
	// ChannelMemory carries the guest's memory.
	ChannelMemory = 49152
	// ChannelDisks carries the disks that are copied.
	ChannelDisks = 49153
)

// Passage is one migration, seen from one of its two nodes.
type Passage struct {
	// Key names it on both nodes; see [PassageKey].
	Key types.UID
	// Migration is the migration's UID. What another migration has left under the same
	// key gives way to it.
	Migration types.UID
	// Domain is the domain's name on this node.
	Domain string
	// Peer is the name of the node at the other end.
	Peer string
	// CopyDisks says that disks travel too.
	CopyDisks bool
}

// Channels are those the passage needs, in ascending order.
func (p Passage) Channels() []int {
	if p.CopyDisks {
		return []int{ChannelControl, ChannelMemory, ChannelDisks}
	}
	return []int{ChannelControl, ChannelMemory}
}

// Listening is where a target takes a migration.
type Listening struct {
	// Address is an IP address.
	Address string
	// Ports gives, by port in decimal, the channel it leads to, as KubeVirt publishes
	// them.
	Ports map[string]int
}

// Route is how the hypervisor of the source reaches that of the target; see the fields
// of the same names in [MigrationRequest].
type Route struct {
	DestinationURI, MigrateURI, DisksURI string
}

// Transport carries migrations between two nodes. All methods may be called from many
// goroutines, repeated, and given up with their contexts.
type Transport interface {
	// Listen makes the target's hypervisor reachable for the passage, from its peer
	// only. Called again it returns the same, unless a restart came between.
	Listen(ctx context.Context, p Passage) (Listening, error)
	// Dial gives the source's hypervisor a way to the target, at which to listens.
	Dial(ctx context.Context, p Passage, to Listening) (Route, error)
	// Close ends what Listen and Dial have opened for the key, streams that flow
	// included. Nothing open: nothing happens.
	Close(key types.UID)
}

// PassageKey names a guest's migration on both of its nodes, as KubeVirt names its
// sockets: by the UID of the guest, and for one that comes from another cluster over
// unix sockets by the UID that it has there.
func PassageKey(vmi *v1.VirtualMachineInstance) types.UID {
	m := vmi.Status.MigrationState
	if vmi.Status.MigrationTransport == v1.MigrationTransportUnix && decentralized(m) {
		if uid := m.SourceState.VirtualMachineInstanceUID; uid != nil && *uid != "" {
			return *uid
		}
	}
	return vmi.UID
}

// PassageOf returns the guest's migration as that node sees it; the zero value if there
// is none. Disks are copied where the guest's migration method says so
// (status.migrationMethod).
func PassageOf(vmi *v1.VirtualMachineInstance, node string) Passage {
	m := vmi.Status.MigrationState
	if m == nil {
		return Passage{}
	}
	p := Passage{Key: PassageKey(vmi), Migration: m.MigrationUID, Domain: Name(vmi.Namespace, vmi.Name), Peer: m.TargetNode}
	if m.TargetNode == node {
		p.Peer = m.SourceNode
	}
	p.CopyDisks = vmi.Status.MigrationMethod == v1.BlockMigration
	return p
}

// decentralized tells whether a migration goes to another cluster or namespace, as
// KubeVirt tells it.
func decentralized(m *v1.VirtualMachineInstanceMigrationState) bool {
	if m == nil || m.SourceState == nil || m.TargetState == nil {
		return false
	}
	return (m.SourceState.SyncAddress == nil) != (m.TargetState.SyncAddress == nil)
}

// SocketName is the file name of the source's socket for a channel, by KubeVirt's
// convention.
func SocketName(key types.UID, channel int) string {
	if channel == ChannelControl {
		return string(key) + "-source.sock"
	}
	return fmt.Sprintf("%s-%d-source.sock", key, channel)
}

// Sockets tell where the sockets of migrations are. A hypervisor may be in another mount
// namespace than this process, so that the two see them at different places.
type Sockets struct {
	// Control is the hypervisor's own socket, as this process sees it.
	Control string
	// Outside is the folder for the sockets of migrations as this process sees it,
	// Inside the same as the hypervisor sees it.
	Outside, Inside string
	// Own says that the hypervisor behind Control runs that one guest and is confined with
	// it, as in a launcher's Pod: whoever reaches Control has power over that guest alone.
	Own bool
}

// SocketMigrator is the ability of a [Migrator] to be reached by sockets of the node, so
// that it need not listen on any network. Found by type assertion.
type SocketMigrator interface {
	// MigrationSockets returns where they are for a domain of that name, which need
	// not exist yet. The folder exists.
	MigrationSockets(ctx context.Context, name string) (Sockets, error)
}

// DirectTransport is a [Transport] over a network that is trusted: the hypervisors
// talk to each other over TCP, unprotected, and choose ports by themselves. It is for
// tests and for networks that protect their traffic.
type DirectTransport struct {
	// Address is the IP address at which others reach this node's hypervisor, Port the
	// port there.
	Address string
	Port    int
}

// Listen returns the address; there is nothing to open.
func (t DirectTransport) Listen(context.Context, Passage) (Listening, error) {
	return Listening{Address: t.Address, Ports: map[string]int{strconv.Itoa(t.Port): ChannelControl}}, nil
}

// Dial names the hypervisor at the target.
func (t DirectTransport) Dial(_ context.Context, p Passage, to Listening) (Route, error) {
	port, found := to.Port(ChannelControl)
	if !found {
		return Route{}, fmt.Errorf("migrate %s: node %s names no port of its hypervisor", p.Domain, p.Peer)
	}
	return Route{DestinationURI: "qemu+tcp://" + net.JoinHostPort(to.Address, port) + "/system"}, nil
}

// Close has nothing to close.
func (t DirectTransport) Close(types.UID) {}

// Port returns the port that leads to the channel; of several the first.
func (l Listening) Port(channel int) (string, bool) {
	found := ""
	for port, to := range l.Ports {
		if to == channel && (found == "" || port < found) {
			found = port
		}
	}
	return found, found != ""
}

// Check tells what is wrong with a place that another node has published; the error names
// the field of status.migrationState.
func (l Listening) Check(channels ...int) error {
	if net.ParseIP(l.Address) == nil {
		return fmt.Errorf("status.migrationState.targetNodeAddress: %q is not an IP address", l.Address)
	}
	for port := range l.Ports {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("status.migrationState.targetDirectMigrationNodePorts: %q is not a port", port)
		}
	}
	for _, c := range channels {
		if _, found := l.Port(c); !found {
			return fmt.Errorf("status.migrationState.targetDirectMigrationNodePorts names no port for channel %d", c)
		}
	}
	return nil
}
