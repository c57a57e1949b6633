// SPDX-License-Identifier: Apache-2.0

package rotation

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// NewAuthority makes an authority that signs certificates of others, and no authorities, and is valid from Early before now.
func NewAuthority(name string, now time.Time, lifetime time.Duration) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: fmt.Sprintf("%s %d", name, now.UnixNano())},
		NotBefore: now.Add(-Early), NotAfter: now.Add(lifetime),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	made, err := Sign(template, template, key.Public(), key)
	return made, key, err
}

// Sign makes a certificate of a public key, which the key of its parent signs.
func Sign(template, parent *x509.Certificate, public crypto.PublicKey, by crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Encode returns a pair of a key, its certificate and the chain behind it.
func Encode(key *ecdsa.PrivateKey, chain ...*x509.Certificate) (Pair, error) {
	certificate, err := cert.EncodeCertificates(chain...)
	if err != nil {
		return Pair{}, err
	}
	secret, err := keyutil.MarshalPrivateKeyToPEM(key)
	return Pair{Certificate: certificate, Key: secret}, err
}
