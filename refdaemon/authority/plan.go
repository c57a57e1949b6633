// SPDX-License-Identifier: Apache-2.0

package authority

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// The keys of the Secret: the authority that signs, the one that will, and the certificates of all that are trusted.
const (
	keyCurrent, keyCurrentKey = "tls.crt", "tls.key"
	keyNext, keyNextKey       = "next.crt", "next.key"
	keyAuthorities            = "ca.crt"
)

// early is the time by which NotBefore precedes the issue, as the clocks of nodes differ.
const early = time.Hour

// plan is the input of a step besides the stored data.
type plan struct {
	lifetime time.Duration
	// settle is the time for which an authority is published before it signs: agents that are within reach of the API server
	// know it by then.
	settle time.Duration
	now    time.Time
	// published is what agents are given now.
	published []byte
}

// advance returns the next data of the Secret; the same if nothing is due. An authority is trusted before it signs, and until it
// expires, which no certificate of it outlives.
func (p *plan) advance(stored map[string][]byte) (map[string][]byte, error) {
	data := maps.Clone(stored)
	if data == nil {
		data = map[string][]byte{}
	}
	current, next := p.read(data, keyCurrent, keyCurrentKey), p.read(data, keyNext, keyNextKey)
	var err error
	switch {
	case current == nil: // nothing can be signed: there is nothing to wait for
		next = nil
		current, err = p.issue(data, keyCurrent, keyCurrentKey)
	case next != nil && contains(p.published, next) && !p.now.Before(next.NotBefore.Add(early+p.settle)):
		current, next = next, nil
		data[keyCurrent], data[keyCurrentKey] = data[keyNext], data[keyNextKey]
	case next == nil && current.NotAfter.Sub(p.now) < p.lifetime/3:
		next, err = p.issue(data, keyNext, keyNextKey)
	}
	if err != nil {
		return nil, fmt.Errorf("issue an authority: %w", err)
	}
	if next == nil {
		delete(data, keyNext)
		delete(data, keyNextKey)
	}
	return data, p.trust(data, current, next)
}

// trust sets the trusted authorities: those given, and the former ones that have not expired.
func (p *plan) trust(data map[string][]byte, current, next *x509.Certificate) error {
	all := []*x509.Certificate{current}
	if next != nil {
		all = append(all, next)
	}
	known, err := cert.ParseCertsPEM(data[keyAuthorities])
	if err == nil { // otherwise absent or unreadable
		for _, c := range known {
			if p.now.Before(c.NotAfter) && !slices.ContainsFunc(all, c.Equal) {
				all = append(all, c)
			}
		}
	}
	bundle, err := cert.EncodeCertificates(all...)
	data[keyAuthorities] = bundle
	return err
}

// read returns a stored authority; nil if it is not valid.
func (p *plan) read(data map[string][]byte, certificate, key string) *x509.Certificate {
	pair, err := tls.X509KeyPair(data[certificate], data[key])
	if err != nil || !pair.Leaf.IsCA || !p.now.Before(pair.Leaf.NotAfter) {
		return nil
	}
	return pair.Leaf
}

// issue makes an authority.
func (p *plan) issue(data map[string][]byte, certificate, key string) (*x509.Certificate, error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(p.now.UnixNano()), Subject: pkix.Name{CommonName: fmt.Sprintf("virtloom node agents %d", p.now.UnixNano())},
		NotBefore: p.now.Add(-early), NotAfter: p.now.Add(p.lifetime),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, signer.Public(), signer)
	if err != nil {
		return nil, err
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	if data[certificate], err = cert.EncodeCertificates(made); err != nil {
		return nil, err
	}
	data[key], err = keyutil.MarshalPrivateKeyToPEM(signer)
	return made, err
}

// contains reports whether a bundle holds an authority.
func contains(bundle []byte, authority *x509.Certificate) bool {
	known, err := cert.ParseCertsPEM(bundle)
	return err == nil && slices.ContainsFunc(known, authority.Equal)
}

// same reports whether two versions of the data are equal.
func same(a, b map[string][]byte) bool { return maps.EqualFunc(a, b, bytes.Equal) }
