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
	// DefaultDialTimeout is for [Options.DialTimeout].
	DefaultDialTimeout = 30 * time.Second
	// DefaultHandshakeTimeout is for [Options.HandshakeTimeout].
	DefaultHandshakeTimeout = 10 * time.Second
	// DefaultSocketTimeout is for [Options.SocketTimeout].
	DefaultSocketTimeout = 10 * time.Second
	// DefaultDeadAfter is for [Options.DeadAfter]. After a cut TCP tries again in
	// steps that double, so that up to twice the length of the cut may pass until a
	// stream flows again.
	DefaultDeadAfter = 90 * time.Second
	// DefaultLinger is for [Options.Linger].
	DefaultLinger = 5 * time.Minute
	// DefaultMaxStreams is for [Options.MaxStreams].
	DefaultMaxStreams = 1024
)

// Options are those of a [Proxy].
type Options struct {
	// Address is the IP address under which other nodes reach this one. Required.
	Address string
	// Bind is the IP address to listen at; default Address.
	Bind string
	// Ports are those to listen at; default any that is free.
	Ports PortRange
	// NodeName is this node's name. Required; it is for logs only, what the other end
	// checks is in the certificate.
	NodeName string
	// Certificates are what this node shows, and whom it trusts. Required unless
	// Insecure is set.
	Certificates Certificates
	// ClientCertificates are those for connections that this node makes; default
	// Certificates. KubeVirt's virt-handlers have two.
	ClientCertificates Certificates
	// Identity tells whether a certificate is a node's; default [NodeIdentity].
	Identity Identity
	// Insecure is for networks that protect their traffic by themselves: plain TCP,
	// and no check of who connects (KubeVirt: migrations.disableTLS).
	Insecure bool
	// InsecureSharedHypervisor lets the streams of peers into the control socket of a
	// hypervisor that is not one guest's own ([domain.Sockets.Own]). Through that socket a
	// peer can do what this node's agent can: define a guest with any file or device of
	// the node, and so be root here. It is for tests, and for nodes that trust each other
	// with everything.
	InsecureSharedHypervisor bool
	// Sockets returns where the sockets of a domain's migration are. Required; see
	// [domain.SocketMigrator].
	Sockets func(ctx context.Context, domain string) (domain.Sockets, error)

	// DialTimeout is how long a connection to the other node may take to be made;
	// default 30 s.
	DialTimeout time.Duration
	// HandshakeTimeout is how long the TLS handshake may take; default 10 s.
	HandshakeTimeout time.Duration
	// SocketTimeout is how long the target waits for a hypervisor to open its socket
	// once a stream has come for it; default 10 s.
	SocketTimeout time.Duration
	// DeadAfter is how long what was sent may remain unconfirmed, or a silent peer
	// unanswering, until a stream is given up; default 90 s, which a link that is cut
	// for 30 s survives. A peer that takes nothing for that long counts as dead too.
	DeadAfter time.Duration
	// Linger is how long a stream of which one direction has ended may carry nothing in
	// the other; default 5 min.
	Linger time.Duration
	// Drain is how long [Proxy.Start] lets streams go on when the program ends;
	// default not at all.
	Drain time.Duration
	// MaxStreams is how many streams each end of a migration may have at once; default
	// 1024. More are refused.
	MaxStreams int

	// Log is told of streams that are refused or break, and of certificates.
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
		wrong("Address", fmt.Sprintf("%q is not an IP address that others can reach", o.Address))
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
		wrong("Certificates", "is nil; set Insecure for a network that protects its traffic by itself")
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
	o.DialTimeout = cmp.Or(o.DialTimeout, DefaultDialTimeout)
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, DefaultHandshakeTimeout)
	o.SocketTimeout = cmp.Or(o.SocketTimeout, DefaultSocketTimeout)
	o.DeadAfter = cmp.Or(o.DeadAfter, DefaultDeadAfter)
	o.Linger = cmp.Or(o.Linger, DefaultLinger)
	o.MaxStreams = cmp.Or(o.MaxStreams, DefaultMaxStreams)
	if o.Log.GetSink() == nil {
		o.Log = logr.Discard()
	}
	return o
}
