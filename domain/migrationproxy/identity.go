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

// Identity tells whether a certificate, which is valid and signed by the CA, belongs to
// the node: nil if it does. It may be called from many goroutines.
type Identity func(peer *x509.Certificate, node string) error

// NodeIdentity wants the node's name among the certificate's DNS names, letter by
// letter; wildcards do not count.
func NodeIdentity(peer *x509.Certificate, node string) error {
	if node == "" || !slices.Contains(peer.DNSNames, node) {
		return fmt.Errorf("the certificate is for %q, not for node %q", peer.DNSNames, node)
	}
	return nil
}

// CommonNames takes a certificate with one of the common names for any node, for
// clusters in which all agents share a certificate. Stock virt-handlers show
// "kubevirt.io:system:client:virt-handler" or, where certificates for migrations are
// apart, "kubevirt.io:system:client:migration" when they connect, and the same with node
// in the place of client when they are connected to.
func CommonNames(names ...string) Identity {
	return func(peer *x509.Certificate, _ string) error {
		if !slices.Contains(names, peer.Subject.CommonName) {
			return fmt.Errorf("the certificate is for %q, not for one of %q", peer.Subject.CommonName, names)
		}
		return nil
	}
}

// side is a half of the handshake.
type side struct {
	certificates Certificates
	peer         x509.ExtKeyUsage // what the peer's certificate has to be for
	over         func(net.Conn, *tls.Config) *tls.Conn
}

func (p *Proxy) client() side {
	return side{p.o.ClientCertificates, x509.ExtKeyUsageServerAuth, tls.Client}
}

func (p *Proxy) server() side { return side{p.o.Certificates, x509.ExtKeyUsageClientAuth, tls.Server} }

// secure does our side of the handshake with the peer, unless the proxy is insecure.
func (p *Proxy) secure(ctx context.Context, c net.Conn, peer string, ours side) (half, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("a connection of type %T is no TCP connection", c)
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

// config is for one handshake. Who the peer is gets checked by verify alone, on both
// sides alike: the address that is dialled is no name in a certificate.
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
		SessionTicketsDisabled:      true, // each connection proves who it is
		DynamicRecordSizingDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			return p.verify(s.PeerCertificates, roots, usage, node)
		},
	}, nil
}

func (p *Proxy) verify(chain []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage, node string) error {
	if len(chain) == 0 {
		return errors.New("the peer shows no certificate")
	}
	o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{usage}}
	for _, c := range chain[1:] {
		o.Intermediates.AddCert(c)
	}
	if _, err := chain[0].Verify(o); err != nil {
		return fmt.Errorf("the certificate of %q is not to be trusted: %w", chain[0].Subject.String(), err)
	}
	return p.o.Identity(chain[0], node)
}
