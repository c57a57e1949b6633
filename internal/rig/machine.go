// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// machine is what the nodes of a fabric have in common: a first process in namespaces of its own, with a cable to the fabric.
type machine struct {
	fabric     *Fabric
	name       string
	number     int
	dir        string
	address    string
	namespaces int // those of the node, as flags of clone(2)
	first      *process
	network    string // its network namespace, as /proc names it
}

// place gives a machine its number and its place in the fabric.
func (f *Fabric) place(m *machine, name string, namespaces int) error {
	if !nodeName.MatchString(name) {
		return fmt.Errorf("name %q: use at most 32 lower case letters, digits and dashes", name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.taken[name] {
		return fmt.Errorf("%s: there is one already", name)
	}
	number := f.added
	if firstHost+number > lastHost {
		return fmt.Errorf("%s: the fabric has no address left after %d nodes", name, number)
	}
	f.added++
	f.taken[name] = true
	*m = machine{
		fabric:     f,
		name:       name,
		number:     number,
		dir:        filepath.Join(f.dir, "nodes", name),
		address:    fabricPrefix + strconv.Itoa(firstHost+number),
		namespaces: namespaces,
	}
	return nil
}

// leave gives up the place in the fabric.
func (n *machine) leave() {
	n.fabric.mu.Lock()
	defer n.fabric.mu.Unlock()
	delete(n.fabric.taken, n.name)
	delete(n.fabric.nodes, n.name)
	delete(n.fabric.kubelets, n.name)
}

// begin starts the first process in namespaces of its own, connects it to the fabric, writes a line to its standard input then, and
// returns when it is ready.
func (n *machine) begin(ctx context.Context, program string, args ...string) error {
	goIn, goOut, err := os.Pipe()
	if err != nil {
		return err
	}
	defer goOut.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdin = goIn
	// The namespace of cgroups is not made here, as it has to be made within the cgroup that is its root.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: allNamespaces}
	n.first, err = n.fabric.spawnUntilReady(ctx, "node-"+n.name, cmd, func(p *process) (err error) {
		if n.network, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.Pid())); err != nil {
			return err
		}
		if err := n.fabric.connect(ctx, n.number, p.Pid()); err != nil {
			return err
		}
		_, err = goOut.WriteString("eth0\n")
		return err
	})
	return errors.Join(err, goIn.Close())
}

// mac is the address of the node's bridge. It follows from the number of the node, and no other node
// of the fabric ever has it: a neighbour that remembers another one loses packets for up to a minute.
func (n *machine) mac() string { return fmt.Sprintf("02:55:00:00:00:%02x", firstHost+n.number) }

func (n *machine) logDir() string { return filepath.Join(n.fabric.LogDir(), "node-"+n.name) }

// Name is the host name of the node.
func (n *machine) Name() string { return n.name }

// Address is the IPv4 address of the node in its fabric. The machine itself has no route to it; see
// Dial. With FabricOptions.TCP nodes reach each other's libvirtd at qemu+tcp://ADDRESS/system.
func (n *machine) Address() string { return n.address }

// Pid is the first process of the node.
func (n *machine) Pid() int { return n.first.Pid() }

// kill ends every process of the node. The kernel does so with the first one, which it then keeps
// until all others have been reaped, each by its parent. That may be a program that never asks how
// its child ended, or an init that is slow to, so kill waits until all have ended and not until
// the first one has been reaped.
func (n *machine) kill(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, goneTimeout, fmt.Errorf("still there after %v", goneTimeout))
	defer cancel()
	if err := n.first.signal(syscall.SIGKILL); err != nil {
		return err
	}
	for {
		select {
		case <-n.first.done:
			return nil
		case <-time.After(probeInterval / 4):
		case <-ctx.Done():
			return fmt.Errorf("its processes: %w", context.Cause(ctx))
		}
		if left, err := n.living(); err == nil && len(left) == 0 {
			n.fabric.rig.forget(n.first)
			return nil
		}
	}
}

// processes lists the living processes on the node whose command name, which the kernel cuts off
// after 15 bytes, is comm.
func (n *machine) processes(comm string) ([]int, error) {
	living, err := n.living()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(living, func(pid int) bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		return err != nil || strings.TrimSuffix(string(name), "\n") != comm
	}), nil
}

// living lists the processes on the node, those in its Pods included, that have not ended.
func (n *machine) living() ([]int, error) {
	if n.first == nil {
		return nil, fmt.Errorf("node %s has not been started", n.name)
	}
	outside, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.name, err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A process that has ended, reaped or not, has lost its network. One that is in the network of
		// the node and not in its PID namespace, nor in that of a Pod, is nsenter on its way.
		net, netErr := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		pids, pidErr := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		if netErr == nil && pidErr == nil && net == n.network && pids != outside {
			found = append(found, pid)
		}
	}
	return found, nil
}
