// SPDX-License-Identifier: Apache-2.0

package migrationproxy_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrationproxy"
	"github.com/virtloom/virtloom/domain/transport"
)

// authority signs certificates.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA of the test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = a.sign(template, template, a.key)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) sign(c, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

// leaf is a template for a node's certificate.
func leaf(node string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "agent of " + node}, DNSNames: []string{node},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
}

// write writes a certificate into a folder, and as its CA the one of trusts.
func (a *authority) write(dir string, c *x509.Certificate, trusts *authority) {
	a.t.Helper()
	key := newKey(a.t)
	cert := a.sign(c, a.cert, key)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for name, b := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: cert.Raw}, "tls.key": {Type: "EC PRIVATE KEY", Bytes: der},
		"ca.crt": {Type: "CERTIFICATE", Bytes: trusts.cert.Raw},
	} {
		writeFile(a.t, filepath.Join(dir, name), pem.EncodeToMemory(b))
	}
}

// writeFile replaces a file as a whole, as the kubelet does.
func writeFile(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func readFiles(t testing.TB, dir string) *migrationproxy.Files {
	t.Helper()
	f, err := migrationproxy.ReadFiles(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt"), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// node is a node with a proxy and a folder for sockets, in which a test may play the hypervisor.
type node struct {
	t       testing.TB
	name    string
	dir     string // folder of its certificates
	sockets domain.Sockets
	options migrationproxy.Options
	proxy   *migrationproxy.Proxy
}

// newNode makes a node with a signed certificate, with a change of its options.
func newNode(t testing.TB, name string, ca *authority, change ...func(*migrationproxy.Options)) *node {
	t.Helper()
	sockets := shortDir(t)
	n := &node{t: t, name: name, dir: t.TempDir()}
	n.sockets = domain.Sockets{Own: true, Control: filepath.Join(sockets, "libvirt-sock"), Outside: sockets, Inside: sockets}
	ca.write(n.dir, leaf(name), ca)
	n.options = migrationproxy.Options{
		Address: "127.0.0.1", NodeName: name, Certificates: readFiles(t, n.dir),
		Sockets: func(context.Context, string) (domain.Sockets, error) { return n.sockets, nil },
	}
	for _, c := range change {
		c(&n.options)
	}
	n.restart()
	return n
}

// shortDir is a folder whose path leaves room for the names of sockets.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// restart gives the node a new proxy. The old one is closed only by the test's end, as if it had
// been killed.
func (n *node) restart() {
	n.t.Helper()
	p, err := migrationproxy.NewProxy(n.options)
	if err != nil {
		n.t.Fatal(err)
	}
	n.proxy = p
	n.t.Cleanup(func() { p.Close(tunnel("").Key) })
}

// tunnel is the migration of the tests.
func tunnel(peer string) transport.Tunnel {
	return transport.Tunnel{Key: "8a1e6e44-0b5e-4c1c-9d5e-5a3f1f0f7a11", Migration: "m1", Domain: "ns_vm", Peer: peer}
}

// socket is the path of the hypervisor's socket for a channel.
func (n *node) socket(channel int) string {
	if channel == transport.ChannelControl {
		return n.sockets.Control
	}
	return filepath.Join(n.sockets.Outside, transport.SocketName(tunnel("").Key, channel))
}

// listen makes the hypervisor's socket for a channel.
func (n *node) listen(channel int) *net.UnixListener {
	n.t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.socket(channel), Net: "unix"})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { l.Close() })
	return l
}

// hypervisor plays the target's hypervisor at a channel's socket: each connection is passed to
// serve, and closed after it.
func (n *node) hypervisor(channel int, serve func(*net.UnixConn)) {
	n.t.Helper()
	l := n.listen(channel)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c.(*net.UnixConn))
			}()
		}
	}()
}

// echo sends back its input.
func echo(c *net.UnixConn) {
	if _, err := io.Copy(c, c); err == nil {
		_ = c.CloseWrite()
	}
}

// connect opens both ends of the migration.
func connect(t testing.TB, source, target *node) transport.Route {
	t.Helper()
	at, err := target.proxy.Listen(t.Context(), tunnel(source.name))
	if err != nil {
		t.Fatal(err)
	}
	route, err := source.proxy.Dial(t.Context(), tunnel(target.name), at)
	if err != nil {
		t.Fatal(err)
	}
	return route
}

// dial connects to a route as the source's hypervisor does.
func dial(t testing.TB, uri string) *net.UnixConn {
	t.Helper()
	c, err := net.Dial("unix", socketOf(uri))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.UnixConn)
}

func socketOf(uri string) string {
	if _, path, found := strings.Cut(uri, "socket="); found {
		return path
	}
	return strings.TrimPrefix(uri, "unix://")
}

// roundTrip sends text, ends the direction, and expects the text back, with an end.
func roundTrip(t testing.TB, c *net.UnixConn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil || string(got) != text {
		t.Fatalf("got %d bytes back, error %v, want %d", len(got), err, len(text))
	}
}

// eventually waits for a condition; the limit is for a test that fails.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-limit:
			t.Fatalf("waited in vain until %s", what)
		case <-tick.C:
		}
	}
}

// total sums up the statistics of a node's tunnels.
func (n *node) total() migrationproxy.Stats {
	var sum migrationproxy.Stats
	for _, s := range n.proxy.Stats() {
		sum.Sent += s.Sent
		sum.Received += s.Received
		sum.Streams += s.Streams
		sum.Refused += s.Refused
		sum.Broken += s.Broken
		sum.Trouble += s.Trouble
	}
	return sum
}
