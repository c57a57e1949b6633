// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Credentials are the files by which one end of a migration proves to the other which node it is.
type Credentials struct {
	// Cert and Key are a certificate, whose only DNS name is that of the node, and its private key, in
	// PEM. It is good for clients and for servers.
	Cert, Key string
	// CA is the certificate of the authority that issued it. It issues nothing else.
	CA string
}

// Credentials are those of the node. The files are outside of the node and have the same path inside.
func (n *HypervisorNode) Credentials() (Credentials, error) {
	c, err := n.fabric.rig.migrationCredentials(n.name)
	if err != nil {
		return c, fmt.Errorf("node %s: credentials for migrations: %w", n.name, err)
	}
	return c, nil
}

// migrationCredentials issues credentials when they are first asked for.
func (r *Rig) migrationCredentials(node string) (Credentials, error) {
	c := r.credentialFiles(node)
	r.migrationMu.Lock()
	defer r.migrationMu.Unlock()
	if r.migrationPKI == nil {
		a, err := newRoot(filepath.Dir(c.CA), "virtloom rig migrations", time.Now())
		if err != nil {
			return c, err
		}
		if err := os.WriteFile(c.CA, a.pem, 0o600); err != nil {
			return c, err
		}
		r.migrationPKI = a
	}
	if _, err := os.Stat(c.Cert); err == nil {
		return c, nil
	}
	return c, r.writeCredentials(c, node)
}

func (r *Rig) credentialFiles(node string) Credentials {
	dir := filepath.Join(r.dir, "migration-pki")
	return Credentials{
		Cert: filepath.Join(dir, node+".crt"), Key: filepath.Join(dir, node+".key"), CA: filepath.Join(dir, "ca.crt"),
	}
}

func (r *Rig) writeCredentials(c Credentials, node string) error {
	cert, key, err := r.migrationPKI.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: node},
		DNSNames:    []string{node},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return err
	}
	return errors.Join(replaceFile(c.Key, key), replaceFile(c.Cert, cert))
}
