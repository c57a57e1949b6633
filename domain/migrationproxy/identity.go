// SPDX-License-Identifier: Apache-2.0

package migrationproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
)

// Identity checks whether a certificate, which is valid and signed by the CA, belongs to the node:
// nil if it does. It must be safe for concurrent use.
type Identity func(peer *x509.Certificate, node string) error

// NodeIdentity requires the node's exact name among the certificate's DNS names; wildcards do not
// count.
func NodeIdentity(peer *x509.Certificate, node string) error {
	if node == "" || !slices.Contains(peer.DNSNames, node) {
		return fmt.Errorf("the certificate is for %q, not for node %q", peer.DNSNames, node)
	}
	return nil
}

// CommonNames accepts a certificate with one of the common names for any node, for clusters in
// which all agents share a certificate. Stock virt-handlers present
// "kubevirt.io:system:client:virt-handler" or, with separate migration certificates,
// "kubevirt.io:system:client:migration" as clients, and the same with node in the place of client
// as servers.
func CommonNames(names ...string) Identity {
	return func(peer *x509.Certificate, _ string) error {
		if !slices.Contains(names, peer.Subject.CommonName) {
			return fmt.Errorf("the certificate is for %q, not for one of %q", peer.Subject.CommonName, names)
		}
		return nil
	}
}

// side is one half of the handshake.
type side struct {
	certificates Certificates
	peer         x509.ExtKeyUsage // the required key usage of the peer's certificate
	over         func(net.Conn, *tls.Config) *tls.Conn
}

func (p *Proxy) client() side {
	return side{p.o.ClientCertificates, x509.ExtKeyUsageServerAuth, tls.Client}
}

func (p *Proxy) server() side { return side{p.o.Certificates, x509.ExtKeyUsageClientAuth, tls.Server} }

// secure does this node's side of the handshake with the peer, unless the proxy is insecure.
func (p *Proxy) secure(ctx context.Context, c net.Conn, peer string, ours side) (half, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("a connection of type %T is not a TCP connection", c)
	}
	if err := tune(tcp, p.o.DeadAfter); err != nil {
		return nil, err
	}
	if p.o.Insecure {
		return tcp, nil
	}
	config, err := p.config(ours.certificates, peer, ours.peer)
	if err != nil {
		return nil, err
	}
	return p.handshake(ctx, tcp, func(c net.Conn) *tls.Conn { return ours.over(c, config) })
}

// config is for one handshake. Only verify checks the peer's identity, on both sides alike: the
// address that is dialled is not a name in a certificate.
func (p *Proxy) config(c Certificates, node string, usage x509.ExtKeyUsage) (*tls.Config, error) {
	own, roots, err := c.Current()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:                  tls.VersionTLS13,
		Certificates:                []tls.Certificate{own},
		ClientAuth:                  tls.RequireAnyClientCert,
		InsecureSkipVerify:          true, // in favour of VerifyConnection
		SessionTicketsDisabled:      true, // each connection is authenticated anew
		DynamicRecordSizingDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			return p.verify(s.PeerCertificates, roots, usage, node)
		},
	}, nil
}

func (p *Proxy) verify(chain []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage, node string) error {
	if len(chain) == 0 {
		return errors.New("the peer presented no certificate")
	}
	o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{usage}}
	for _, c := range chain[1:] {
		o.Intermediates.AddCert(c)
	}
	if _, err := chain[0].Verify(o); err != nil {
		return fmt.Errorf("the certificate of %q is not trusted: %w", chain[0].Subject.String(), err)
	}
	return p.o.Identity(chain[0], node)
}
