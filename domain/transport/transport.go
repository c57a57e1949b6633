// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
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

// Tunnel is one migration, as one of its two nodes sees it.
type Tunnel struct {
	// Key names the tunnel on both nodes; see [TunnelKey].
	Key types.UID
	// Migration is the UID of the migration. It replaces a tunnel that another
	// migration has left under the same key.
	Migration types.UID
	// Domain is the domain's name on this node.
	Domain string
	// Peer is the name of the node at the other end.
	Peer string
	// CopyDisks says that disks are copied as well.
	CopyDisks bool
}

// Channels returns the channels that the tunnel needs, in ascending order.
func (p Tunnel) Channels() []int {
	if p.CopyDisks {
		return []int{ChannelControl, ChannelMemory, ChannelDisks}
	}
	return []int{ChannelControl, ChannelMemory}
}

// Endpoint is the endpoint at which the target of a migration listens.
type Endpoint struct {
	// Address is an IP address.
	Address string
	// Ports maps a port, in decimal, to its channel, as KubeVirt publishes them.
	Ports map[string]int
}

// Route is the way from the hypervisor of the source to that of the target; see the fields
// of the same names in [domain.MigrationRequest].
type Route struct {
	DestinationURI, MigrateURI, DisksURI string
}

// Transport carries migrations between two nodes. All methods are idempotent and safe for
// concurrent use, and return when their context ends.
type Transport interface {
	// Listen makes the target's hypervisor reachable for the tunnel, from its peer
	// only. Called again it returns the same endpoint, unless the process was restarted.
	Listen(ctx context.Context, p Tunnel) (Endpoint, error)
	// Dial opens a route for the source's hypervisor to the endpoint of the target.
	Dial(ctx context.Context, p Tunnel, to Endpoint) (Route, error)
	// Close closes the sockets and streams that Listen and Dial have opened for the key.
	// Without any it does nothing.
	Close(key types.UID)
}

// TunnelKey returns the key of a VMI's migration on both of its nodes, as KubeVirt names
// its sockets: the UID of the VMI, or the UID in the source cluster if the migration comes
// from another cluster over unix sockets.
func TunnelKey(vmi *v1.VirtualMachineInstance) types.UID {
	m := vmi.Status.MigrationState
	if vmi.Status.MigrationTransport == v1.MigrationTransportUnix && decentralized(m) {
		if uid := m.SourceState.VirtualMachineInstanceUID; uid != nil && *uid != "" {
			return *uid
		}
	}
	return vmi.UID
}

// TunnelOf returns the VMI's migration as that node sees it; the zero value if there is
// none. CopyDisks follows status.migrationMethod.
func TunnelOf(vmi *v1.VirtualMachineInstance, node string) Tunnel {
	m := vmi.Status.MigrationState
	if m == nil {
		return Tunnel{}
	}
	p := Tunnel{Key: TunnelKey(vmi), Migration: m.MigrationUID, Domain: domain.Name(vmi.Namespace, vmi.Name), Peer: m.TargetNode}
	if m.TargetNode == node {
		p.Peer = m.SourceNode
	}
	p.CopyDisks = vmi.Status.MigrationMethod == v1.BlockMigration
	return p
}

// decentralized reports whether a migration goes to another cluster or namespace, by
// KubeVirt's criterion.
func decentralized(m *v1.VirtualMachineInstanceMigrationState) bool {
	if m == nil || m.SourceState == nil || m.TargetState == nil {
		return false
	}
	return (m.SourceState.SyncAddress == nil) != (m.TargetState.SyncAddress == nil)
}

// SocketName returns the file name of the source's socket for a channel, by KubeVirt's
// convention.
func SocketName(key types.UID, channel int) string {
	if channel == ChannelControl {
		return string(key) + "-source.sock"
	}
	return fmt.Sprintf("%s-%d-source.sock", key, channel)
}

// Direct is a [Transport] over a trusted network: the hypervisors connect to each
// other over TCP, without encryption or authentication, and choose ports by themselves. It
// is for tests and for networks that protect their traffic.
type Direct struct {
	// Address and Port are the IP address and the port of this node's hypervisor.
	Address string
	Port    int
}

// Listen returns the address and the port. It opens nothing.
func (t Direct) Listen(context.Context, Tunnel) (Endpoint, error) {
	return Endpoint{Address: t.Address, Ports: map[string]int{strconv.Itoa(t.Port): ChannelControl}}, nil
}

// Dial returns the URI of the target's hypervisor.
func (t Direct) Dial(_ context.Context, p Tunnel, to Endpoint) (Route, error) {
	port, found := to.Port(ChannelControl)
	if !found {
		return Route{}, fmt.Errorf("migrate %s: node %s publishes no port for its hypervisor", p.Domain, p.Peer)
	}
	return Route{DestinationURI: "qemu+tcp://" + net.JoinHostPort(to.Address, port) + "/system"}, nil
}

// Close does nothing.
func (t Direct) Close(types.UID) {}

// Port returns the port of the channel, the first if there are several; false without one.
func (l Endpoint) Port(channel int) (string, bool) {
	found := ""
	for port, to := range l.Ports {
		if to == channel && (found == "" || port < found) {
			found = port
		}
	}
	return found, found != ""
}

// Check validates an endpoint that another node has published, with ports for the channels.
// The error names the field of status.migrationState.
func (l Endpoint) Check(channels ...int) error {
	if net.ParseIP(l.Address) == nil {
		return fmt.Errorf("status.migrationState.targetNodeAddress: Invalid value: %q: must be an IP address", l.Address)
	}
	for port := range l.Ports {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("status.migrationState.targetDirectMigrationNodePorts: Invalid value: %q: must be a port number", port)
		}
	}
	for _, c := range channels {
		if _, found := l.Port(c); !found {
			return fmt.Errorf("status.migrationState.targetDirectMigrationNodePorts: Required value: no port for channel %d", c)
		}
	}
	return nil
}
