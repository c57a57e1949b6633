// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

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
	machine
	api *relay // to the API server; nil without one

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
	if err := r.addNode(ctx, NodeSpec{Name: name, Address: n.address}); err != nil {
		return nil, errors.Join(err, n.Stop(ctx))
	}
	return n, nil
}

// Fabric is what connects the nodes of the rig that are not simulated. The first call starts it, by
// Options.Fabric; the rig stops it. Without root it is ErrNeedsRoot.
func (r *Rig) Fabric(ctx context.Context) (*Fabric, error) {
	r.fabricMu.Lock()
	defer r.fabricMu.Unlock()
	if r.fabric != nil {
		return r.fabric, nil
	}
	check := checkNodePrograms
	if r.options.Kubelets {
		check = checkKubeletPrograms
	}
	if err := check(); err != nil {
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
	n := &HypervisorNode{}
	if err := f.place(&n.machine, name, allNamespaces); err != nil {
		return nil, fmt.Errorf("hypervisor node: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[name] = n
	return n, nil
}

func (n *HypervisorNode) start(ctx context.Context) error {
	if err := n.writeFiles(); err != nil {
		return err
	}
	err := n.begin(ctx, "/bin/sh", filepath.Join(n.dir, "node.sh"), n.name, n.address+fabricBits, fabricGateway,
		n.mac(), n.dir, n.fabric.stateDir, n.fabric.emulators)
	if err != nil {
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

// StateDir is a folder on the node that is private to it, with the same path on all nodes. HostPath
// finds it from outside.
func (n *HypervisorNode) StateDir() string { return n.fabric.stateDir }

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
	n.leave()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stop hypervisor node %s: %w", n.name, err)
	}
	return nil
}
