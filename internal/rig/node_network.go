// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
)

// Dial connects to an address as a program on the node would: 127.0.0.1 is the node's own. The
// address has to be an IP address and a port.
func (n *machine) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = n.onNetwork(func() error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// onNetwork calls f on a thread in the network of the node. A socket belongs to the network that it
// was made in, from wherever it is used.
func (n *machine) onNetwork(f func() error) error {
	if err := inNetworkOf(n.Pid(), f); err != nil {
		return fmt.Errorf("in the network of node %s: %w", n.name, err)
	}
	return nil
}

// relay takes connections to a port of one network to a server in another. It is safe for
// concurrent use.
type relay struct {
	listener net.Listener
	dial     func() (net.Conn, error)

	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
}

// relayAPI makes the API server reachable on the node where it is on the machine, so that a
// kubeconfig is good on both. It does not depend on the fabric.
func (n *HypervisorNode) relayAPI() error {
	address := net.JoinHostPort("127.0.0.1", n.fabric.rig.ports.apiServer)
	r := &relay{dial: func() (net.Conn, error) { return net.Dial("tcp4", address) }, conns: map[net.Conn]bool{}}
	err := n.onNetwork(func() (err error) {
		r.listener, err = net.Listen("tcp4", address)
		return err
	})
	if err != nil {
		return fmt.Errorf("relay the API server: %w", err)
	}
	n.api = r
	go r.serve()
	return nil
}

// serve ends with the listener.
func (r *relay) serve() {
	for {
		from, err := r.listener.Accept()
		if err != nil {
			return
		}
		go r.carry(from)
	}
}

// carry relays one connection until both directions have ended.
func (r *relay) carry(from net.Conn) {
	defer r.drop(from)
	to, err := r.dial()
	if err != nil || !r.keep(from, to) {
		return // whoever connects sees its connection end, as without an API server
	}
	defer r.drop(to)
	var both sync.WaitGroup
	both.Go(func() { half(to, from) })
	both.Go(func() { half(from, to) })
	both.Wait()
}

// half copies one direction and passes on its end.
func half(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if c, able := to.(*net.TCPConn); err == nil && able {
		if c.CloseWrite() == nil {
			return
		}
	}
	// A connection that broke has broken in both directions.
	_, _ = to.Close(), from.Close()
}

// keep remembers connections for close; false means that it came first.
func (r *relay) keep(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		for _, c := range conns {
			_ = c.Close()
		}
		return false
	}
	for _, c := range conns {
		r.conns[c] = true
	}
	return true
}

func (r *relay) drop(c net.Conn) {
	_ = c.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

// close ends the relay with all that goes through it.
func (r *relay) close() error {
	err := r.listener.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for c := range r.conns {
		_ = c.Close()
	}
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Node is a node of a fabric.
type Node interface {
	// Name of the node.
	Name() string
	// Address of the node in its fabric.
	Address() string
	// cable is the name of its cable at the bridge of the fabric.
	cable() string
}

func (n *machine) cable() string { return port(n.number) }

// Cut pulls the cable of a node out of the fabric: no packet comes through until Mend, and no
// process is notified. A hypervisor node reaches the API server all the same, as it has it not by the fabric.
func (f *Fabric) Cut(ctx context.Context, n Node) error { return f.setLink(ctx, n, "down") }

// Mend undoes Cut.
func (f *Fabric) Mend(ctx context.Context, n Node) error { return f.setLink(ctx, n, "up") }

func (f *Fabric) setLink(ctx context.Context, n Node, state string) error {
	if err := f.ip(ctx, "link set "+n.cable()+" "+state+"\n"); err != nil {
		return fmt.Errorf("set the link of node %s %s: %w", n.Name(), state, err)
	}
	return nil
}

// connect lays a cable from the bridge of the fabric to eth0 in the network of process pid.
func (f *Fabric) connect(ctx context.Context, number, pid int) error {
	err := f.ip(ctx, fmt.Sprintf("link add %[1]s type veth peer name eth0 netns %[2]d\nlink set %[1]s master fabric up\n", port(number), pid))
	if err != nil {
		return fmt.Errorf("connect to the fabric: %w", err)
	}
	return nil
}

// port is the name of a node's cable at the bridge of the fabric.
func port(number int) string { return fmt.Sprintf("node%d", number) }

// ip carries out commands of ip(8), one on a line, in the network of the fabric.
func (f *Fabric) ip(ctx context.Context, batch string) error {
	cmd := exec.CommandContext(ctx, "nsenter", "--target", fmt.Sprint(f.holder.Pid()), "--net", "--", "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
