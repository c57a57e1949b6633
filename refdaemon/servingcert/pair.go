// SPDX-License-Identifier: Apache-2.0

package servingcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/virtloom/virtloom/refdaemon/rotation"
)

// rotation returns the rules for the Secret, for the configurations that were read.
func (k *Keeper) rotation(all []configuration) *rotation.Rotation {
	now, hosts := rotation.Now(k.Clock), hosts(all)
	return &rotation.Rotation{
		Secret: k.Secret, Lifetime: k.Lifetime, Now: now,
		Valid: func(p rotation.Pair, trusted []*x509.Certificate) *x509.Certificate {
			authority := authorityOf(p, hosts, now)
			if authority == nil || !slices.ContainsFunc(trusted, authority.Equal) {
				return nil
			}
			return authority
		},
		Issue: func() (rotation.Pair, *x509.Certificate, error) { return issue(hosts, now, k.Lifetime) },
		Known: func(authority *x509.Certificate) bool { return trust(all, authority) },
	}
}

// authorityOf returns the authority of a certificate for all hosts; nil if it is not valid.
func authorityOf(p rotation.Pair, hosts []string, now time.Time) *x509.Certificate {
	if _, err := tls.X509KeyPair(p.Certificate, p.Key); err != nil {
		return nil
	}
	chain, err := cert.ParseCertsPEM(p.Certificate)
	if err != nil || len(chain) != 2 || !now.Before(chain[0].NotAfter) {
		return nil
	}
	for _, host := range hosts {
		if chain[0].VerifyHostname(host) != nil {
			return nil
		}
	}
	return chain[1]
}

// issue issues a certificate with an authority of its own behind it, whose key is discarded at once.
func issue(hosts []string, now time.Time, lifetime time.Duration) (rotation.Pair, *x509.Certificate, error) {
	if len(hosts) == 0 {
		return rotation.Pair{}, nil, errors.New("no webhook configuration has a host")
	}
	authority, signer, err := rotation.NewAuthority("virtloom webhooks", now, lifetime)
	if err != nil {
		return rotation.Pair{}, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return rotation.Pair{}, nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano() + 1), Subject: pkix.Name{CommonName: hosts[0]},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, host)
		}
	}
	certificate, err := rotation.Sign(leaf, authority, key.Public(), signer)
	if err != nil {
		return rotation.Pair{}, nil, err
	}
	pair, err := rotation.Encode(key, certificate, authority)
	return pair, authority, err
}
