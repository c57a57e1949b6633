// SPDX-License-Identifier: Apache-2.0

package migrationproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-logr/logr"

	"github.com/virtloom/virtloom/domain"
)

// Defaults of [Options].
const (
	defaultDialTimeout      = 30 * time.Second
	defaultHandshakeTimeout = 10 * time.Second
	defaultSocketTimeout    = 10 * time.Second
	// After an interruption TCP retries in steps that double, so that up to twice its length may pass until a stream flows again.
	defaultDeadAfter  = 90 * time.Second
	defaultLinger     = 5 * time.Minute
	defaultMaxStreams = 1024
)

// Options are those of a [Proxy].
type Options struct {
	// Address is the IP address under which other nodes reach this one. Required.
	Address string
	// Bind is the IP address to listen on; default Address.
	Bind string
	// Ports are those to listen on; default any free port.
	Ports PortRange
	// NodeName is this node's name. Required; it is for logs only, the other end checks the
	// certificate.
	NodeName string
	// Certificates are this node's certificate, and the CAs it trusts. Required unless Insecure is
	// set.
	Certificates Certificates
	// ClientCertificates are those for outbound connections; default Certificates. KubeVirt's
	// virt-handlers have two.
	ClientCertificates Certificates
	// Identity checks whether a certificate is a node's; default [NodeIdentity].
	Identity Identity
	// Insecure is for networks that protect their traffic themselves: plain TCP, and no
	// authentication (KubeVirt: migrations.disableTLS).
	Insecure bool
	// InsecureSharedHypervisor lets the streams of peers into the control socket of a hypervisor
	// that several VMIs share ([domain.Sockets.Own]). Through that socket a peer can do what this
	// node's agent can: define a domain with any file or device of the node, and so be root here.
	// It is for tests, and for nodes that trust each other fully.
	InsecureSharedHypervisor bool
	// Sockets returns the sockets of a domain's migration. Required; see [domain.SocketMigrator].
	Sockets func(ctx context.Context, domain string) (domain.Sockets, error)

	// DialTimeout bounds connecting to the other node; default 30 s.
	DialTimeout time.Duration
	// HandshakeTimeout bounds the TLS handshake; default 10 s.
	HandshakeTimeout time.Duration
	// SocketTimeout is how long the target waits for a hypervisor to open its socket once a stream
	// has arrived for it; default 10 s.
	SocketTimeout time.Duration
	// DeadAfter is how long sent data may remain unacknowledged, or a peer unresponsive, until a
	// stream is ended; default 90 s, which a link that is interrupted for 30 s survives. A peer
	// that receives nothing for that long counts as dead too.
	DeadAfter time.Duration
	// Linger is how long a stream of which one direction has ended may be idle in the other;
	// default 5 min.
	Linger time.Duration
	// Drain is how long [Proxy.Start] lets streams continue when the program ends; default not at
	// all.
	Drain time.Duration
	// MaxStreams is the number of concurrent streams of each end of a migration; default 1024. More
	// are refused.
	MaxStreams int

	// Log receives messages about refused and broken streams, and certificates.
	Log logr.Logger
}

// PortRange is a range of TCP ports, both ends included; zero is any port.
type PortRange struct {
	// First and Last are its ends.
	First, Last uint16
}

func (r PortRange) valid() bool {
	return r == PortRange{} || r.First > 0 && r.First <= r.Last
}

// complete checks the options and fills in defaults.
func (o Options) complete() (Options, error) {
	var problems []error
	wrong := func(field, reason string) {
		problems = append(problems, fmt.Errorf("migrationproxy: Options.%s %s: %w", field, reason, domain.ErrInvalid))
	}
	o.Bind = cmp.Or(o.Bind, o.Address)
	if ip := net.ParseIP(o.Address); ip == nil || ip.IsUnspecified() {
		wrong("Address", fmt.Sprintf("%q is not an IP address reachable from other nodes", o.Address))
	}
	if net.ParseIP(o.Bind) == nil {
		wrong("Bind", fmt.Sprintf("%q is not an IP address", o.Bind))
	}
	if o.NodeName == "" {
		wrong("NodeName", "is empty")
	}
	if o.Sockets == nil {
		wrong("Sockets", "is nil")
	}
	if o.Certificates == nil && !o.Insecure {
		wrong("Certificates", "is nil; set Insecure for a network that protects its traffic itself")
	}
	if !o.Ports.valid() {
		wrong("Ports", fmt.Sprintf("%d to %d is not a range of ports", o.Ports.First, o.Ports.Last))
	}
	if min(o.DialTimeout, o.HandshakeTimeout, o.SocketTimeout, o.DeadAfter, o.Linger, o.Drain) < 0 || o.MaxStreams < 0 {
		wrong("DialTimeout, HandshakeTimeout, SocketTimeout, DeadAfter, Linger, Drain or MaxStreams", "is negative")
	}
	return o.defaults(), errors.Join(problems...)
}

func (o Options) defaults() Options {
	if o.ClientCertificates == nil {
		o.ClientCertificates = o.Certificates
	}
	if o.Identity == nil {
		o.Identity = NodeIdentity
	}
	o.DialTimeout = cmp.Or(o.DialTimeout, defaultDialTimeout)
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, defaultHandshakeTimeout)
	o.SocketTimeout = cmp.Or(o.SocketTimeout, defaultSocketTimeout)
	o.DeadAfter = cmp.Or(o.DeadAfter, defaultDeadAfter)
	o.Linger = cmp.Or(o.Linger, defaultLinger)
	o.MaxStreams = cmp.Or(o.MaxStreams, defaultMaxStreams)
	if o.Log.GetSink() == nil {
		o.Log = logr.Discard()
	}
	return o
}
