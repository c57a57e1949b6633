// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certificateLife is far longer than any rig runs; certificateSlack allows for a clock set back.
const (
	certificateLife  = 30 * 24 * time.Hour
	certificateSlack = time.Hour
)

// authority is the certificate authority of one rig. It is safe for concurrent use.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// newAuthority makes an authority and writes into dir what the control plane needs on disk:
// ca.crt, server.crt and server.key for every server, sa.key and sa.pub for the tokens of service
// accounts.
func newAuthority(dir string, now time.Time) (*authority, error) {
	a, err := newRoot(dir, "virtloom rig", now)
	if err != nil {
		return nil, err
	}
	if err := a.writeServerFiles(); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	return a, nil
}

// newRoot makes an authority of that name and the folder for its files.
func newRoot(dir, name string, now time.Time) (*authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	a := &authority{dir: dir, key: key}
	root := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-certificateSlack),
		NotAfter:              now.Add(certificateLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("certificates: authority: %w", err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("certificates: authority: %w", err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a, nil
}

func (a *authority) writeServerFiles() error {
	cert, key, err := a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "virtloom-rig-server"},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(fabricGateway), net.ParseIP(apiService)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return err
	}
	tokenKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := encodeKey(tokenKey)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&tokenKey.PublicKey)
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"ca.crt":     a.pem,
		"server.crt": cert,
		"server.key": key,
		"sa.key":     private,
		"sa.pub":     pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
	}
	for name, content := range files {
		if err := os.WriteFile(a.path(name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// user issues a client certificate that makes its holder the given Kubernetes user, in groupsOf(name).
func (a *authority) user(name string) (cert, key []byte, err error) {
	cert, key, err = a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: groupsOf(name)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of user %q: %w", name, err)
	}
	return cert, key, nil
}

// issue signs a certificate for a new key; both are returned in PEM.
func (a *authority) issue(c *x509.Certificate) (cert, key []byte, err error) {
	const serialBits = 120
	if c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits)); err != nil {
		return nil, nil, err
	}
	c.NotBefore, c.NotAfter = a.cert.NotBefore, a.cert.NotAfter
	c.KeyUsage = x509.KeyUsageDigitalSignature
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &private.PublicKey, a.key)
	if err != nil {
		return nil, nil, err
	}
	if key, err = encodeKey(private); err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key, nil
}

// path of a file that newAuthority wrote.
func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
