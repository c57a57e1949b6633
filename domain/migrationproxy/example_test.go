// SPDX-License-Identifier: Apache-2.0

package migrationproxy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-logr/logr"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrationproxy"
	"github.com/virtloom/virtloom/domain/transport"
)

// A node agent makes one proxy, which is its transport in both directions, and ends it
// with the program.
func Example() {
	certificates, err := migrationproxy.ReadFiles("/etc/agent/tls.crt", "/etc/agent/tls.key", "/etc/agent/ca.crt", logr.Discard())
	if err != nil {
		fmt.Println("not there yet, tried again for each migration")
	}
	proxy, err := migrationproxy.NewProxy(migrationproxy.Options{
		Address: "192.0.2.7", NodeName: "node-a", Certificates: certificates,
		Sockets: func(context.Context, string) (domain.Sockets, error) {
			return domain.Sockets{Own: true, Control: "/run/libvirt/libvirt-sock", Outside: "/run/agent/migrations", Inside: "/run/agent/migrations"}, nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var t transport.Transport = proxy // for domainctrl.Reconciler; proxy.Start goes to the manager
	t.Close("nothing is open")
	fmt.Println("migrations that are open:", len(proxy.Stats()))
	// Output:
	// not there yet, tried again for each migration
	// migrations that are open: 0
}

// Agents of a stock KubeVirt share certificates, distinguished by their common names.
func ExampleCommonNames() {
	stock := migrationproxy.Options{
		Identity: migrationproxy.CommonNames(
			"kubevirt.io:system:client:virt-handler", "kubevirt.io:system:client:migration",
			"kubevirt.io:system:node:virt-handler", "kubevirt.io:system:node:migration",
		),
	}
	fmt.Println(stock.Identity != nil)
	// Output: true
}

// issued are certificates that an issuer in the same process renews.
type issued struct {
	own   tls.Certificate
	roots *x509.CertPool
}

var _ migrationproxy.Certificates = (*issued)(nil)

func (c *issued) Current() (own tls.Certificate, roots *x509.CertPool, err error) {
	return c.own, c.roots, nil
}

// A cluster in which SPIFFE names the agents, and a firewall opens some ports between nodes.
func ExampleIdentity() {
	var agents migrationproxy.Identity = func(peer *x509.Certificate, node string) error {
		named := func(u *url.URL) bool { return u.String() == "spiffe://example.org/agent/"+node }
		if slices.ContainsFunc(peer.URIs, named) {
			return nil
		}
		return migrationproxy.NodeIdentity(peer, node)
	}
	_, err := migrationproxy.NewProxy(migrationproxy.Options{
		Address: "192.0.2.7", NodeName: "node-a", Certificates: &issued{}, Identity: agents,
		Ports:   migrationproxy.PortRange{First: 49152, Last: 49215},
		Sockets: func(context.Context, string) (domain.Sockets, error) { return domain.Sockets{}, nil },
	})
	fmt.Println(err)

	agent := &url.URL{Scheme: "spiffe", Host: "example.org", Path: "/agent/node-b"}
	fmt.Println(agents(&x509.Certificate{URIs: []*url.URL{agent}}, "node-b"))
	fmt.Println(agents(&x509.Certificate{DNSNames: []string{"node-c"}}, "node-b"))
	// Output:
	// <nil>
	// <nil>
	// the certificate is for ["node-c"], not for node "node-b"
}

// The report of an agent's health says whether the certificates are in use.
func ExampleFiles_Problem() {
	healthy := func(files *migrationproxy.Files) bool {
		return files.Problem() == nil
	}
	files, err := migrationproxy.ReadFiles("/nonexistent/tls.crt", "/nonexistent/tls.key", "/nonexistent/ca.crt", logr.Discard())
	fmt.Println(healthy(files), err)
	// Output: false migrationproxy: open /nonexistent/tls.crt: no such file or directory
}

// newProxy makes the proxy of a node whose hypervisor has its sockets in dir.
func newProxy(node, dir string, own bool) *migrationproxy.Proxy {
	p, err := migrationproxy.NewProxy(migrationproxy.Options{
		Address: "127.0.0.1", NodeName: node, Insecure: true, // a network that protects its traffic itself
		Sockets: func(context.Context, string) (domain.Sockets, error) {
			return domain.Sockets{Own: own, Control: filepath.Join(dir, "libvirt-sock"), Outside: dir, Inside: dir}, nil
		},
	})
	if err != nil {
		panic(err)
	}
	return p
}

// A domain migrates from node-a to node-b: what the source's hypervisor writes to the socket of its
// proxy arrives at the target's.
func ExampleProxy() {
	ctx := context.Background()
	dirA, errA := os.MkdirTemp("", "a")
	dirB, errB := os.MkdirTemp("", "b")
	if err := errors.Join(errA, errB); err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dirA)
	defer os.RemoveAll(dirB)
	hypervisor, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dirB, "libvirt-sock"), Net: "unix"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer hypervisor.Close()
	go func() {
		if c, err := hypervisor.Accept(); err == nil {
			defer c.Close()
			_, _ = io.WriteString(c, "ready")
			_, _ = io.Copy(io.Discard, c)
		}
	}()

	source, target := newProxy("node-a", dirA, true), newProxy("node-b", dirB, true)
	tunnel := func(peer string) transport.Tunnel {
		return transport.Tunnel{Key: "5b6c1a2e", Migration: "m1", Domain: "default_web", Peer: peer}
	}
	listening, err := target.Listen(ctx, tunnel("node-a"))
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := source.Dial(ctx, tunnel("node-b"), listening); err != nil {
		fmt.Println(err)
		return
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dirA, transport.SocketName("5b6c1a2e", transport.ChannelControl)), Net: "unix"})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = io.WriteString(c, "a domain")
	_ = c.CloseWrite()
	answer, err := io.ReadAll(c)
	fmt.Printf("%s %v\n", answer, err)
	printStats(source.Stats())
	source.Close("5b6c1a2e")
	target.Close("5b6c1a2e")
	printStats(source.Stats())
	// Output:
	// ready <nil>
	// default_web to node-b: 8 bytes sent, 5 received
}

func printStats(ends []migrationproxy.Stats) {
	for _, s := range ends {
		fmt.Printf("%s to %s: %d bytes sent, %d received\n", s.Domain, s.Peer, s.Sent, s.Received)
	}
}

// Two errors of Listen do not pass by themselves: the target's hypervisor is shared by several VMIs,
// or its agent has ended.
func ExampleProxy_Listen() {
	tunnel := transport.Tunnel{Key: "5b6c1a2e", Migration: "m1", Domain: "default_web", Peer: "node-a"}
	_, err := newProxy("node-b", "/run/libvirt", false).Listen(context.Background(), tunnel)
	fmt.Println(errors.Is(err, migrationproxy.ErrSharedHypervisor))

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	proxy := newProxy("node-b", "/run/agent", true)
	if err := proxy.Start(ended); err != nil {
		fmt.Println(err)
	}
	_, err = proxy.Listen(context.Background(), tunnel)
	fmt.Println(errors.Is(err, migrationproxy.ErrEnded))
	// Output:
	// true
	// true
}
