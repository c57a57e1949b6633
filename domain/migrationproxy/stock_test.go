// SPDX-License-Identifier: Apache-2.0

package migrationproxy_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/virtloom/virtloom/domain/transport"
)

// pipe copies like a stock virt-handler's proxy: for each incoming connection it makes another one,
// copies both ways, and closes both when one of them has ended.
func pipe(t *testing.T, l net.Listener, dial func() (net.Conn, error)) {
	t.Helper()
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				to, err := dial()
				if err != nil {
					return
				}
				defer to.Close()
				ends := make(chan struct{}, 2)
				for from, to := range map[net.Conn]net.Conn{c: to, to: c} {
					go func() {
						_, _ = io.Copy(to, from)
						ends <- struct{}{}
					}()
				}
				<-ends
			}()
		}
	}()
}

// stockConfig is that of a node whose proxy is a pipe.
func stockConfig(t *testing.T, ca *authority, node string) *tls.Config {
	t.Helper()
	dir := t.TempDir()
	ca.write(dir, leaf(node), ca)
	own, roots, err := readFiles(t, dir).Current()
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots, InsecureSkipVerify: true,
		VerifyPeerCertificate: func(chain [][]byte, _ [][]*x509.Certificate) error {
			c, err := x509.ParseCertificate(chain[0])
			if err == nil {
				_, err = c.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
			}
			return err
		},
	}
}

// dialTCP connects to a channel of a target.
func dialTCP(t *testing.T, at transport.Endpoint, channel int) net.Conn {
	t.Helper()
	port, _ := at.Port(channel)
	c, err := net.Dial("tcp", net.JoinHostPort(at.Address, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// listeningAt is a target that serves the memory's channel.
func listeningAt(l net.Listener) transport.Endpoint {
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	return transport.Endpoint{Address: "127.0.0.1", Ports: map[string]int{port: transport.ChannelMemory, "1": transport.ChannelControl}}
}

// stockTarget is a stock proxy in front of the node's hypervisor.
func stockTarget(t *testing.T, ca *authority, n *node) transport.Endpoint {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", stockConfig(t, ca, n.name))
	if err != nil {
		t.Fatal(err)
	}
	pipe(t, l, func() (net.Conn, error) { return net.Dial("unix", n.socket(transport.ChannelMemory)) })
	return listeningAt(l)
}

// stockSource is a stock proxy that connects to a target; it returns the address for its
// hypervisor.
func stockSource(t *testing.T, ca *authority, node string, at transport.Endpoint) string {
	t.Helper()
	path := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	config := stockConfig(t, ca, node)
	port, _ := at.Port(transport.ChannelMemory)
	pipe(t, l, func() (net.Conn, error) { return tls.Dial("tcp", net.JoinHostPort(at.Address, port), config) })
	return "unix://" + path
}

// TestStockVirtHandler_EitherEnd sends streams both ways at once, in which every byte must be the
// hypervisors'.
func TestStockVirtHandler_EitherEnd(t *testing.T) {
	for name, open := range map[string]func(t *testing.T, ca *authority, source, target *node) string{
		"stock is the source": func(t *testing.T, ca *authority, source, target *node) string {
			at, err := target.proxy.Listen(t.Context(), tunnel(source.name))
			if err != nil {
				t.Fatal(err)
			}
			return stockSource(t, ca, source.name, at)
		},
		"stock is the target": func(t *testing.T, ca *authority, source, target *node) string {
			route, err := source.proxy.Dial(t.Context(), tunnel(target.name), stockTarget(t, ca, target))
			if err != nil {
				t.Fatal(err)
			}
			return route.MigrateURI
		},
	} {
		t.Run(name, func(t *testing.T) {
			ca := newAuthority(t)
			source, target := newNode(t, "node-a", ca), newNode(t, "node-b", ca)
			there, back := noise(1<<20), noise(3<<20)
			target.hypervisor(transport.ChannelMemory, func(c *net.UnixConn) { swap(t, c, back, there) })
			uri := open(t, ca, source, target)
			var all sync.WaitGroup
			for range 5 {
				c := dial(t, uri)
				all.Go(func() {
					swap(t, c, there, back)
					if rest, _ := io.ReadAll(c); len(rest) > 0 {
						t.Errorf("%d bytes came after the end", len(rest))
					}
				})
			}
			all.Wait()
		})
	}
}

// swap sends out, and expects in.
func swap(t *testing.T, c net.Conn, out, in []byte) {
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(out)
		sent <- err
	}()
	got := make([]byte, len(in))
	if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, in) {
		t.Errorf("read %d bytes, error %v; they are those that were sent: %t", n, err, bytes.Equal(got, in))
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}
