// SPDX-License-Identifier: Apache-2.0

package servingcert

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// The keys of the Secret. The keys of Kubernetes' TLS Secrets hold the certificate in force; the others hold the next one, and
// the authorities of all certificates that some replica may serve.
const (
	keyServed, keyServedKey = "tls.crt", "tls.key"
	keyNext, keyNextKey     = "next.crt", "next.key"
	keyAuthorities          = "ca.crt"
)

// early is the time by which NotBefore precedes the issue, as the clocks of API servers differ.
const early = time.Hour

// plan is the input of a step besides the stored data.
type plan struct {
	// hosts are the host names and addresses of the webhooks.
	hosts []string
	// trusted reports whether all webhook configurations have an authority.
	trusted  func(authority *x509.Certificate) bool
	lifetime time.Duration
	now      time.Time
}

// advance returns the next data of the Secret; the same if nothing is due. An authority is trusted before a certificate of it
// is served, and as long as one of it may be.
func (p *plan) advance(stored map[string][]byte) (map[string][]byte, error) {
	data := maps.Clone(stored)
	if data == nil {
		data = map[string][]byte{}
	}
	served, next := p.read(data, keyServed, keyServedKey), p.read(data, keyNext, keyNextKey)
	switch {
	case served == nil: // no request can be served: there is nothing to wait for
		delete(data, keyNext)
		delete(data, keyNextKey)
		return data, p.issue(data, keyServed, keyServedKey)
	case next != nil && p.trusted(next):
		data[keyServed], data[keyServedKey] = data[keyNext], data[keyNextKey]
		delete(data, keyNext)
		delete(data, keyNextKey)
	case next == nil && served.NotAfter.Sub(p.now) < p.lifetime/3:
		return data, p.issue(data, keyNext, keyNextKey)
	}
	return data, nil
}

// read returns the authority of a stored certificate; nil if none is valid.
func (p *plan) read(data map[string][]byte, certificate, key string) *x509.Certificate {
	if _, err := tls.X509KeyPair(data[certificate], data[key]); err != nil {
		return nil
	}
	chain, err := cert.ParseCertsPEM(data[certificate])
	if err != nil || len(chain) != 2 || !p.now.Before(chain[0].NotAfter) {
		return nil
	}
	for _, host := range p.hosts {
		if chain[0].VerifyHostname(host) != nil {
			return nil
		}
	}
	known, err := cert.ParseCertsPEM(data[keyAuthorities])
	if err != nil || !slices.ContainsFunc(known, chain[1].Equal) {
		return nil
	}
	return chain[1]
}

// issue issues a certificate with an authority of its own, whose key is discarded at once.
func (p *plan) issue(data map[string][]byte, certificate, key string) error {
	if len(p.hosts) == 0 {
		return errors.New("no webhook configuration has a host")
	}
	pair, secret, authority, err := p.pair()
	if err != nil {
		return fmt.Errorf("issue a certificate: %w", err)
	}
	authorities := []*x509.Certificate{authority}
	known, err := cert.ParseCertsPEM(data[keyAuthorities])
	if err == nil { // otherwise absent or unreadable
		authorities = append(authorities, slices.DeleteFunc(known, func(c *x509.Certificate) bool { return !p.now.Before(c.NotAfter) })...)
	}
	bundle, err := cert.EncodeCertificates(authorities...)
	if err != nil {
		return fmt.Errorf("issue a certificate: %w", err)
	}
	data[certificate], data[key], data[keyAuthorities] = pair, secret, bundle
	return nil
}

// pair returns a certificate with its authority behind it, its key, and the authority.
func (p *plan) pair() (certificates, secret []byte, authority *x509.Certificate, err error) {
	signer, key, err := keys()
	if err != nil {
		return nil, nil, nil, err
	}
	from := &x509.Certificate{
		SerialNumber: big.NewInt(p.now.UnixNano()), Subject: pkix.Name{CommonName: fmt.Sprintf("virtloom webhooks %d", p.now.UnixNano())},
		NotBefore: p.now.Add(-early), NotAfter: p.now.Add(p.lifetime),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	authority, err = signed(from, from, signer.Public(), signer)
	if err != nil {
		return nil, nil, nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(p.now.UnixNano() + 1), Subject: pkix.Name{CommonName: p.hosts[0]},
		NotBefore: from.NotBefore, NotAfter: from.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range p.hosts {
		if ip := net.ParseIP(host); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, host)
		}
	}
	certificate, err := signed(leaf, authority, key.Public(), signer)
	if err != nil {
		return nil, nil, nil, err
	}
	certificates, err = cert.EncodeCertificates(certificate, authority)
	if err != nil {
		return nil, nil, nil, err
	}
	secret, err = keyutil.MarshalPrivateKeyToPEM(key)
	return certificates, secret, authority, err
}

// keys returns the keys of an authority and of its certificate.
func keys() (authority, leaf *ecdsa.PrivateKey, err error) {
	authority, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	leaf, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return authority, leaf, err
}

func signed(template, parent *x509.Certificate, public crypto.PublicKey, by crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// contains reports whether a bundle holds an authority.
func contains(bundle []byte, authority *x509.Certificate) bool {
	known, err := cert.ParseCertsPEM(bundle)
	return err == nil && slices.ContainsFunc(known, authority.Equal)
}

// same reports whether two versions of the data are equal.
func same(a, b map[string][]byte) bool { return maps.EqualFunc(a, b, bytes.Equal) }
