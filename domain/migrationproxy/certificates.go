// SPDX-License-Identifier: Apache-2.0

package migrationproxy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// Certificates are the certificate of a node, and the CAs it trusts.
type Certificates interface {
	// Current returns both as they are now. It is called for each connection, and is safe for
	// concurrent use.
	Current() (own tls.Certificate, roots *x509.CertPool, err error)
}

// Files are certificates in files. They are checked for each connection: a change takes effect at
// the next one, and files that are invalid, or do not belong together because only some of them are
// new yet, keep the previous certificates in force. Make one with [ReadFiles].
type Files struct {
	cert, key, ca string
	log           logr.Logger

	mu    sync.Mutex
	seen  [3]version // the files that were read last, valid or not
	own   tls.Certificate
	roots *x509.CertPool
	err   error // why they are not in use
}

// version detects a change of a file.
type version struct {
	modified time.Time
	size     int64
	file     os.FileInfo // nil if there is none
}

func versionOf(path string) version {
	f, err := os.Stat(path)
	if err != nil {
		return version{}
	}
	return version{modified: f.ModTime(), size: f.Size(), file: f}
}

func (v version) equal(o version) bool {
	if v.file == nil || o.file == nil {
		return v.file == nil && o.file == nil
	}
	return v.size == o.size && v.modified.Equal(o.modified) && os.SameFile(v.file, o.file)
}

// ReadFiles reads PEM files: the certificate, followed by the intermediate ones, its private key,
// and the CA certificates to trust. The error names the file; the result can be used even so, and
// tries again for each connection.
func ReadFiles(cert, key, ca string, log logr.Logger) (*Files, error) {
	f := &Files{cert: cert, key: key, ca: ca, log: log}
	if f.log.GetSink() == nil {
		f.log = logr.Discard()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lockedFollow()
	return f, f.err
}

// Current returns the certificates in the files, or the last valid ones.
func (f *Files) Current() (own tls.Certificate, roots *x509.CertPool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lockedFollow()
	if f.roots == nil {
		return tls.Certificate{}, nil, f.err
	}
	return f.own, f.roots, nil
}

// Problem returns why the files are not in use; nil if they are. It is for reports of an agent's
// health.
func (f *Files) Problem() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lockedFollow()
	return f.err
}

// lockedFollow reads the files if they have changed. Their versions are taken before their content:
// a change in between is detected the next time.
func (f *Files) lockedFollow() {
	now := [3]version{versionOf(f.cert), versionOf(f.key), versionOf(f.ca)}
	if f.roots != nil && now[0].equal(f.seen[0]) && now[1].equal(f.seen[1]) && now[2].equal(f.seen[2]) {
		return
	}
	first := f.roots == nil
	f.seen = now
	own, roots, err := f.read()
	f.err = err
	if err != nil {
		f.log.Error(err, "Invalid certificates", "keepsPrevious", !first)
		return
	}
	f.own, f.roots = own, roots
	f.log.Info("Read certificates", "certificate", f.cert, "subject", own.Leaf.Subject.String(), "notAfter", own.Leaf.NotAfter)
}

func (f *Files) read() (tls.Certificate, *x509.CertPool, error) {
	var content [3][]byte
	for i, path := range []string{f.cert, f.key, f.ca} {
		var err error
		if content[i], err = os.ReadFile(path); err != nil {
			return tls.Certificate{}, nil, fmt.Errorf("migrationproxy: %w", err)
		}
	}
	own, err := tls.X509KeyPair(content[0], content[1])
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("migrationproxy: %s with %s: %w", f.cert, f.key, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(content[2]) {
		return tls.Certificate{}, nil, fmt.Errorf("migrationproxy: %s: %w", f.ca, errNoCA)
	}
	return own, roots, nil
}

var errNoCA = errors.New("no certificate in the file")
