// SPDX-License-Identifier: Apache-2.0

package migrationproxy_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/virtloom/virtloom/domain/migrationproxy"
	"github.com/virtloom/virtloom/domain/transport"
)

func TestIdentity_OnlyPeerConnects(t *testing.T) {
	type change func(c *x509.Certificate)
	for name, tc := range map[string]struct {
		source, target change
		foreign        string // the node whose CA is another one
		identity       migrationproxy.Identity
		refusedBy      string // "" if it is not
		because        string
	}{
		"both are who they should be": {},
		"the source is another node": {
			source: func(c *x509.Certificate) { c.DNSNames = []string{"node-x"} }, refusedBy: "node-b", because: `not for node "node-a"`,
		},
		"the target is another node": {
			target: func(c *x509.Certificate) { c.DNSNames = []string{"node-x"} }, refusedBy: "node-a", because: `not for node "node-b"`,
		},
		"one of several names is the node's": {source: func(c *x509.Certificate) { c.DNSNames = []string{"node-x", "node-a"} }},
		"the source's name is a wildcard": {
			source: func(c *x509.Certificate) { c.DNSNames = []string{"*"} }, refusedBy: "node-b", because: `not for node "node-a"`,
		},
		"the source's name differs in case": {
			source: func(c *x509.Certificate) { c.DNSNames = []string{"Node-A"} }, refusedBy: "node-b", because: `not for node "node-a"`,
		},
		"the name is the common name only": {
			source: func(c *x509.Certificate) { c.DNSNames, c.Subject.CommonName = nil, "node-a" }, refusedBy: "node-b", because: `not for node "node-a"`,
		},
		"a name tries to write into the log": {
			source: func(c *x509.Certificate) { c.DNSNames = []string{"x\nnode-a"} }, refusedBy: "node-b", because: "certificate",
		},
		"the source is signed by another CA": {foreign: "node-a", refusedBy: "node-b", because: "is not trusted"},
		"the target is signed by another CA": {foreign: "node-b", refusedBy: "node-a", because: "is not trusted"},
		"the source's certificate has expired": {
			source: func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, refusedBy: "node-b", because: "expired",
		},
		"the target's certificate has expired": {
			target: func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, refusedBy: "node-a", because: "expired",
		},
		"the source's certificate is not valid yet": {
			source: func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour / 2) }, refusedBy: "node-b", because: "not yet valid",
		},
		"the source's certificate is for servers only": {
			source:    func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} },
			refusedBy: "node-b", because: "incompatible key usage",
		},
		"the target's certificate is for clients only": {
			target:    func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} },
			refusedBy: "node-a", because: "incompatible key usage",
		},
		"agents share a common name": {
			source:   func(c *x509.Certificate) { c.DNSNames, c.Subject.CommonName = nil, "migration" },
			target:   func(c *x509.Certificate) { c.DNSNames, c.Subject.CommonName = nil, "virt-handler" },
			identity: migrationproxy.CommonNames("virt-handler", "migration"),
		},
		"agents share a common name, which is another one": {
			source:    func(c *x509.Certificate) { c.Subject.CommonName = "virt-api" },
			target:    func(c *x509.Certificate) { c.Subject.CommonName = "virt-handler" },
			identity:  migrationproxy.CommonNames("virt-handler", "migration"),
			refusedBy: "node-b", because: `the certificate is for "virt-api"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			ca, other := newAuthority(t), newAuthority(t)
			identity := func(o *migrationproxy.Options) { o.Identity = tc.identity }
			nodes := map[string]*node{"node-a": newNode(t, "node-a", ca, identity), "node-b": newNode(t, "node-b", ca, identity)}
			for node, change := range map[string]change{"node-a": tc.source, "node-b": tc.target} {
				c := leaf(node)
				if change != nil {
					change(c)
				}
				if tc.foreign == node {
					other.write(nodes[node].dir, c, ca)
				} else {
					ca.write(nodes[node].dir, c, ca)
				}
			}
			source, target := nodes["node-a"], nodes["node-b"]
			var reached atomic.Int64
			target.hypervisor(transport.ChannelControl, func(c *net.UnixConn) {
				reached.Add(1)
				echo(c)
			})
			c := dial(t, connect(t, source, target).DestinationURI)
			if tc.refusedBy == "" {
				roundTrip(t, c, "hello")
				return
			}
			_, _ = io.WriteString(c, "hello") // may fail already
			if got, _ := io.ReadAll(c); len(got) != 0 {
				t.Errorf("the source's hypervisor read %q", got)
			}
			judge := nodes[tc.refusedBy]
			eventually(t, "the stream was refused", func() bool { return judge.total().Refused == 1 })
			if got := judge.total().Trouble; !strings.Contains(got, tc.because) || strings.Contains(got, "\n") {
				t.Errorf("refused because %q, want %q", got, tc.because)
			}
			eventually(t, "no stream is left", func() bool { return source.total().Streams == 0 && target.total().Streams == 0 })
			if n := reached.Load(); n != 0 {
				t.Errorf("the target's hypervisor had %d connections", n)
			}
		})
	}
}

func TestIdentity_StrangersRefused(t *testing.T) {
	ca := newAuthority(t)
	own := func(t *testing.T) tls.Certificate {
		dir := t.TempDir()
		ca.write(dir, leaf("node-a"), ca)
		c, _, err := readFiles(t, dir).Current()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for name, knock := range map[string]func(*testing.T, net.Conn){
		"no certificate": func(_ *testing.T, c net.Conn) {
			_, _ = tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Write([]byte("x"))
		},
		"no TLS": func(_ *testing.T, c net.Conn) { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n") },
		"TLS 1.2": func(t *testing.T, c net.Conn) {
			_, _ = tls.Client(c, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{own(t)}, MaxVersion: tls.VersionTLS12}).Write([]byte("x"))
		},
		"silence":        func(*testing.T, net.Conn) {},
		"a closed door":  func(_ *testing.T, c net.Conn) { c.Close() },
		"half a message": func(_ *testing.T, c net.Conn) { _, _ = c.Write([]byte{22, 3, 1, 0xff, 0xff}) },
	} {
		t.Run(name, func(t *testing.T) {
			source := newNode(t, "node-a", ca)
			target := newNode(t, "node-b", ca, func(o *migrationproxy.Options) {
				if name == "silence" || name == "half a message" {
					o.HandshakeTimeout = 50 * time.Millisecond
				}
			})
			var reached atomic.Int64
			target.hypervisor(transport.ChannelControl, func(c *net.UnixConn) {
				reached.Add(1)
				echo(c)
			})
			at, err := target.proxy.Listen(t.Context(), tunnel("node-a"))
			if err != nil {
				t.Fatal(err)
			}
			port, _ := at.Port(transport.ChannelControl)
			c, err := net.Dial("tcp", net.JoinHostPort(at.Address, port))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			knock(t, c)
			eventually(t, "the stranger was refused", func() bool { return target.total().Refused == 1 })
			if n := reached.Load(); n != 0 {
				t.Errorf("the hypervisor had %d connections", n)
			}
			target.options.HandshakeTimeout = 0
			roundTrip(t, dial(t, connect(t, source, target).DestinationURI), "the peer still comes through")
		})
	}
}
