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

// Certificates are what a node shows to others, and whom it trusts.
type Certificates interface {
	// Current returns both as they are now. It is called for each connection, from
	// many goroutines.
	Current() (own tls.Certificate, roots *x509.CertPool, err error)
}

// Files are certificates in files. They are looked at for each connection: what was
// changed counts from the next one on, and files that cannot be used, or do not belong
// together because only some of them are new yet, leave in force what was there before.
// Make one with [ReadFiles].
type Files struct {
	cert, key, ca string
	log           logr.Logger

	mu    sync.Mutex
	seen  [3]version // the files that were read last, whether or not they could be used
	own   tls.Certificate
	roots *x509.CertPool
	err   error // why those are not in use
}

// version tells whether a file was changed.
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

// ReadFiles reads PEM files: the certificate, with the intermediate ones after it, its
// private key, and the CA certificates to trust. The error names the file; what is
// returned with it can be used all the same, and tries again for each connection.
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

// Current returns what the files hold, or held when they could be used last.
func (f *Files) Current() (own tls.Certificate, roots *x509.CertPool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lockedFollow()
	if f.roots == nil {
		return tls.Certificate{}, nil, f.err
	}
	return f.own, f.roots, nil
}

// Problem returns why the files are not what is in use; nil if they are. It is for
// reports of an agent's health.
func (f *Files) Problem() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lockedFollow()
	return f.err
}

// lockedFollow reads the files if they have changed. Their versions are taken before
// their content: a change in between is seen the next time.
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
		f.log.Error(err, "Certificates cannot be used", "keepsPrevious", !first)
		return
	}
	f.own, f.roots = own, roots
	f.log.Info("Certificates were read", "certificate", f.cert, "subject", own.Leaf.Subject.String(), "notAfter", own.Leaf.NotAfter)
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

var errNoCA = errors.New("there is no certificate in it")
