// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	_ "embed"
)

// nodeScript is what the first process of a node runs.
//
//go:embed node.sh
var nodeScript string

// HypervisorNode is a machine within the machine: network, mount, UTS, IPC and PID namespaces with a
// libvirtd in them. It shares the files of the machine, but has its own /etc/libvirt,
// /var/lib/libvirt, /var/cache/libvirt, /var/log/libvirt, /run/libvirt, /run/kubevirt, /etc/hosts and
// state folder. Guests can be attached to the bridge br0, which reaches all nodes of the fabric. Where
// there is a control plane, the API server is at the same address of loopback as on the machine.
//
// Whatever runs in a node dies with its first process, and that dies with this process.
// The methods are safe for concurrent use.
type HypervisorNode struct {
	fabric  *Fabric
	name    string
	number  int
	dir     string
	address string
	first   *process
	network string // its network namespace, as /proc names it
	api     *relay // to the API server; nil without one

	libvirtd sync.Mutex // held while libvirtd is started or killed
}

// nodeFolders are the folders of a node within its dir. The log is elsewhere, see logDir.
var nodeFolders = []string{"scratch", "etc", "lib/qemu", "lib/images", "cache/qemu/capabilities", "run", "kubevirt", "state"}

// AddNode starts a node and its libvirtd. The name becomes the node's host name: at most 32 lower
// case letters, digits and dashes. A node can be added again after it was stopped; it gets another
// address then.
func (f *Fabric) AddNode(ctx context.Context, name string) (*HypervisorNode, error) {
	n, err := f.reserve(name)
	if err != nil {
		return nil, err
	}
	if err := n.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("hypervisor node %s: %w", name, err), n.Stop(ctx))
	}
	f.rig.logf("hypervisor node %s is up at %s", name, n.address)
	return n, nil
}

// AddHypervisorNode starts a node and its libvirtd in the fabric of the rig, and creates the
// Kubernetes Node that stands for it, with its address. See Fabric.AddNode.
func (r *Rig) AddHypervisorNode(ctx context.Context, name string) (*HypervisorNode, error) {
	f, err := r.Fabric(ctx)
	if err != nil {
		return nil, err
	}
	n, err := f.AddNode(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := r.AddNode(ctx, NodeSpec{Name: name, Address: n.address}); err != nil {
		return nil, errors.Join(err, n.Stop(ctx))
	}
	return n, nil
}

// Fabric is what connects the hypervisor nodes of the rig. The first call starts it, by
// Options.Fabric; the rig stops it. Without root it is ErrNeedsRoot.
func (r *Rig) Fabric(ctx context.Context) (*Fabric, error) {
	r.fabricMu.Lock()
	defer r.fabricMu.Unlock()
	if r.fabric != nil {
		return r.fabric, nil
	}
	if err := checkNodePrograms(); err != nil {
		return nil, err
	}
	f, err := newFabric(ctx, r, r.options.Fabric)
	if err != nil {
		return nil, fmt.Errorf("start the fabric: %w", err)
	}
	r.fabric = f
	return f, nil
}

// reserve gives a node its number and its place in the fabric.
func (f *Fabric) reserve(name string) (*HypervisorNode, error) {
	if !nodeName.MatchString(name) {
		return nil, fmt.Errorf("hypervisor node: name %q: use at most 32 lower case letters, digits and dashes", name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes[name] != nil {
		return nil, fmt.Errorf("hypervisor node %s: there is one already", name)
	}
	number := f.added
	if firstHost+number > lastHost {
		return nil, fmt.Errorf("hypervisor node %s: the fabric has no address left after %d nodes", name, number)
	}
	f.added++
	n := &HypervisorNode{
		fabric:  f,
		name:    name,
		number:  number,
		dir:     filepath.Join(f.dir, "nodes", name),
		address: fabricPrefix + strconv.Itoa(firstHost+number),
	}
	f.nodes[name] = n
	return n, nil
}

func (n *HypervisorNode) start(ctx context.Context) error {
	if err := n.writeFiles(); err != nil {
		return err
	}
	goIn, goOut, err := os.Pipe()
	if err != nil {
		return err
	}
	defer goOut.Close()
	cmd := exec.Command("/bin/sh", filepath.Join(n.dir, "node.sh"), n.name, n.address+fabricBits, fabricGateway,
		n.mac(), n.dir, n.fabric.stateDir, n.fabric.emulators)
	cmd.Stdin = goIn
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS |
		syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWPID}
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
	if err = errors.Join(err, goIn.Close()); err != nil {
		return err
	}
	if n.fabric.rig.server != "" {
		if err := n.relayAPI(); err != nil {
			return err
		}
	}
	return n.StartLibvirtd(ctx)
}

// writeFiles makes what the node finds when it starts.
func (n *HypervisorNode) writeFiles() error {
	for _, folder := range nodeFolders {
		if err := os.MkdirAll(filepath.Join(n.dir, folder), 0o755); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(n.logDir(), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(n.logDir(), filepath.Join(n.dir, "log")); err != nil {
		return err
	}
	users, err := withAccount("/etc/passwd", qemuAccount, "x:64055:64055::/nonexistent:/usr/sbin/nologin")
	if err != nil {
		return err
	}
	groups, err := withAccount("/etc/group", qemuAccount, "x:64055:")
	if err != nil {
		return err
	}
	for path, content := range map[string]string{
		"node.sh":           nodeScript,
		"passwd":            users,
		"group":             groups,
		"hosts":             "127.0.0.1 localhost\n" + n.address + " " + n.name + "\n",
		"etc/libvirtd.conf": libvirtd{n}.conf(),
		"etc/qemu.conf":     qemuConf(n.address),
	} {
		if err := os.WriteFile(filepath.Join(n.dir, path), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return seedCapabilities(n.dir)
}

// qemuAccount has to exist for libvirtd to start, although its configuration says otherwise. On a
// machine it comes with the package libvirt-daemon-system, which a node can do without.
const qemuAccount = "libvirt-qemu"

// withAccount is the content of a file such as /etc/passwd, with a line for the account.
func withAccount(path, account, rest string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	text := strings.TrimSuffix(string(content), "\n") + "\n"
	if strings.Contains("\n"+text, "\n"+account+":") {
		return text, nil
	}
	return text + account + ":" + rest + "\n", nil
}

// mac is the address of the node's bridge. It follows from the number of the node, and no other node
// of the fabric ever has it: a neighbour that remembers another one loses packets for up to a minute.
func (n *HypervisorNode) mac() string { return fmt.Sprintf("02:55:00:00:00:%02x", firstHost+n.number) }

func (n *HypervisorNode) logDir() string { return filepath.Join(n.fabric.LogDir(), "node-"+n.name) }

// Name is the host name of the node.
func (n *HypervisorNode) Name() string { return n.name }

// Address is the IPv4 address of the node in its fabric. The machine itself has no route to it; see
// Dial. With FabricOptions.TCP nodes reach each other's libvirtd at qemu+tcp://ADDRESS/system.
func (n *HypervisorNode) Address() string { return n.address }

// StateDir is a folder on the node that is private to it, with the same path on all nodes. HostPath
// finds it from outside.
func (n *HypervisorNode) StateDir() string { return n.fabric.stateDir }

// Pid is the first process of the node.
func (n *HypervisorNode) Pid() int { return n.first.Pid() }

// URI connects to the node's libvirtd from anywhere on the machine. A program that runs on the node
// says qemu:///system as usual.
func (n *HypervisorNode) URI() string { return "qemu+unix:///system?socket=" + n.socket() }

// socket is short in whatever folder the node is: the path of a socket may have 107 bytes.
func (n *HypervisorNode) socket() string {
	return fmt.Sprintf("/proc/%d/root/run/libvirt/libvirt-sock", n.Pid())
}

// HostPath is where the machine sees the file that has the absolute path p on the node. What is in
// the private folders of the node can be read there until the node is stopped.
func (n *HypervisorNode) HostPath(p string) string {
	p = filepath.Clean(p)
	for _, private := range []struct{ target, source string }{
		{n.fabric.stateDir, filepath.Join(n.dir, "state")},
		{"/var/log/libvirt", n.logDir()},
		{"/var/lib/libvirt", filepath.Join(n.dir, "lib")},
		{"/run/libvirt", filepath.Join(n.dir, "run")},
		{"/run/kubevirt", filepath.Join(n.dir, "kubevirt")},
		{"/etc/libvirt", filepath.Join(n.dir, "etc")},
	} {
		if rest, ok := strings.CutPrefix(p, private.target); ok && (rest == "" || rest[0] == '/') {
			return filepath.Join(private.source, rest)
		}
	}
	return filepath.Join(fmt.Sprintf("/proc/%d/root", n.Pid()), p)
}

// Stop kills everything that runs on the node, the guests first of all, as when a machine loses its
// power, and removes its files but for the logs. It returns when all of it is gone; that the node
// has been stopped already is no error. The Kubernetes Node stays.
func (n *HypervisorNode) Stop(ctx context.Context) error {
	n.fabric.mu.Lock()
	current := n.fabric.nodes[n.name] == n
	n.fabric.mu.Unlock()
	if !current {
		return nil
	}
	var errs []error
	if n.api != nil {
		errs = append(errs, n.api.close())
	}
	if n.first != nil {
		errs = append(errs, keepCapabilities(n.dir), n.kill(ctx))
	}
	errs = append(errs, os.RemoveAll(n.dir))
	n.fabric.mu.Lock()
	delete(n.fabric.nodes, n.name)
	n.fabric.mu.Unlock()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stop hypervisor node %s: %w", n.name, err)
	}
	return nil
}

// kill ends every process of the node. The kernel does so with the first one, which it then keeps
// until all others have been reaped, each by its parent. That may be a program that never asks how
// its child ended, or an init that is slow to, so kill waits until all have ended and not until
// the first one has been reaped.
func (n *HypervisorNode) kill(ctx context.Context) error {
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
