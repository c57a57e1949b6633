// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// probeTimeout bounds one look at a server that is about to become ready.
const probeTimeout = 2 * time.Second

// server is a program of the control plane; it listens on loopback.
type server struct {
	name  string
	args  []string
	ready string // URL that answers 200 when it is ready
}

// serve starts a server and waits until it is ready.
func (r controlPlane) serve(ctx context.Context, s server) error {
	client, err := r.probeClient()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	p, err := r.spawnInNetwork(s.name, exec.Command(filepath.Join(r.bin, s.name), s.args...))
	if err != nil {
		return err
	}
	if err := p.waitReady(ctx, func(ctx context.Context) error { return probe(ctx, client, s.ready) }); err != nil {
		return err
	}
	r.logf("%s is ready", s.name)
	return nil
}

// probeClient trusts the servers of this rig and no others.
func (r controlPlane) probeClient() (*http.Client, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(r.pki.pem) {
		return nil, errors.New("the rig's own authority is not valid")
	}
	return &http.Client{
		Timeout: probeTimeout,
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13},
			DialContext:     r.dial,
		},
	}, nil
}

// probe asks for url and expects 200.
func probe(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		return nil
	}
	const most = 4 << 10
	body, err := io.ReadAll(io.LimitReader(response.Body, most))
	return errors.Join(fmt.Errorf("%s: %s: %s", url, response.Status, body), err)
}

// FreePorts finds ports of loopback that no program listens on. They are free when it looks; another
// program may be quicker to take one, see lostPort.
func FreePorts(n int) ([]string, error) {
	found := make([]string, 0, n)
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer listener.Close()
		_, port, err := net.SplitHostPort(listener.Addr().String())
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		found = append(found, port)
	}
	return found, nil
}

// lostPort reports whether a server did not start because its port was taken in the meantime. The
// server says so in its log only.
func lostPort(err error) bool {
	return err != nil && strings.Contains(err.Error(), "address already in use")
}
