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
	"sync"
	"time"

	_ "embed"

	"golang.org/x/sys/unix"
)

// kubeletScript is what the first process of a node with a kubelet runs, kubeletProgramScript what starts its programs, and
// kubeletLoopsScript what detaches the loop devices that it leaves.
var (
	//go:embed kubelet.sh
	kubeletScript string
	//go:embed kubelet_program.sh
	kubeletProgramScript string
	//go:embed kubelet_loops.sh
	kubeletLoopsScript string
)

// kubeletPrograms are what a node with a kubelet runs beside what is in BinDir, with the Debian package that has each.
var kubeletPrograms = []debianProgram{
	{"containerd", "containerd"},
	{"ctr", "containerd"},
	{"runc", "runc"},
	{"nft", "nftables"},
	{"ip", "iproute2"},
	{"mount", "mount"},
	{"losetup", "mount"},
	{"pivot_root", "util-linux"},
	{"nsenter", "util-linux"},
	{"setpriv", "util-linux"},
	{"unshare", "util-linux"},
	{"hostname", "hostname"},
}

// cniFolders are where distributions have the plugins that connect Pods.
var cniFolders = []string{"/usr/lib/cni", "/opt/cni/bin"}

// containerdSocket is where containerd listens on a node.
const containerdSocket = "/run/containerd/containerd.sock"

// KubeletNodeOptions say what node to start.
type KubeletNodeOptions struct {
	// Name of the node and of its Node; required. At most 32 lower case letters, digits and dashes.
	Name string
}

// KubeletNode is a machine within the machine that is a node of the cluster: network, mount, UTS, IPC, PID and cgroup namespaces
// with containerd, a kubelet and kube-proxy in them. Its files are those of the machine, but what is written on the node is seen
// there only and goes with it, except in Rig.Dir. Its Pods have a network of their own, and reach other nodes' Pods, Services, and
// the API server.
//
// Whatever runs on a node dies with its first process, and that dies with this process.
// The methods are safe for concurrent use.
type KubeletNode struct {
	machine
	cgroups cgroupTree

	mu       sync.Mutex // held while a program is started or killed
	programs map[string]*process
}

// kubeletFolders are the folders of a node within its dir.
var kubeletFolders = []string{"scratch", "etc", "kubelet", "containerd", "cni", "virtloom", "net.d", "pods", "containers"}

// checkKubeletPrograms returns an error that names what is missing for nodes with a kubelet.
func checkKubeletPrograms() error {
	const nodes = "nodes with a kubelet"
	if err := checkPrograms(nodes, kubeletPrograms); err != nil {
		return err
	}
	if cniFolder() == "" {
		return fmt.Errorf("%s need the network plugin ptp: install containernetworking-plugins (\"make setup\" does)", nodes)
	}
	bin, err := BinDir()
	if err != nil {
		return err
	}
	for _, name := range []string{"kubelet", "kube-proxy", "pause"} {
		if info, err := os.Stat(filepath.Join(bin, name)); err != nil || info.Mode()&0o111 == 0 {
			return fmt.Errorf("%w (no %s in %s)", ErrNoPrograms, name, bin)
		}
	}
	return nil
}

// cniFolder is the folder of the plugins that connect Pods, "" if they are not there.
func cniFolder() string {
	for _, dir := range cniFolders {
		if _, err := os.Stat(filepath.Join(dir, "ptp")); err == nil {
			return dir
		}
	}
	return ""
}

// StartKubeletNode starts a node and returns when its Node is Ready. It needs Options.Kubelets. A node can be started again after
// it was stopped; it has another address then. Several may be started at the same time.
func (r *Rig) StartKubeletNode(ctx context.Context, o KubeletNodeOptions) (*KubeletNode, error) {
	if !r.options.Kubelets {
		return nil, errors.New("start a node with a kubelet: the rig was started without Options.Kubelets")
	}
	f, err := r.Fabric(ctx)
	if err != nil {
		return nil, err
	}
	n := &KubeletNode{programs: map[string]*process{}}
	if err := f.place(&n.machine, o.Name, allNamespaces|unix.CLONE_NEWCGROUP); err != nil {
		return nil, fmt.Errorf("start a node with a kubelet: %w", err)
	}
	f.mu.Lock()
	f.kubelets[n.name] = n
	f.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not there after %v", startTimeout))
	defer cancel()
	if err := n.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("node %s: %w", n.name, err), n.Stop(context.WithoutCancel(ctx)))
	}
	r.logf("node %s is Ready at %s", n.name, n.address)
	return n, nil
}

func (n *KubeletNode) start(ctx context.Context) error {
	rig := n.fabric.rig
	if err := n.writeFiles(); err != nil {
		return err
	}
	if err := n.makeCgroups(); err != nil {
		return err
	}
	bin, err := filepath.EvalSymlinks(rig.bin)
	if err != nil {
		return err
	}
	err = n.begin(ctx, "/bin/sh", n.file("kubelet.sh"), n.name, n.address+fabricBits, fabricGateway, n.mac(), n.dir, rig.dir, bin,
		n.cgroups.name)
	if err != nil {
		return err
	}
	err = n.fabric.ip(ctx, fmt.Sprintf("route replace %s via %s\n", n.podRange(), n.address))
	if err != nil {
		return fmt.Errorf("route to its Pods: %w", err)
	}
	if err := n.StartContainerd(ctx); err != nil {
		return err
	}
	if err := n.LoadImages(ctx, n.file("pause.tar")); err != nil {
		return err
	}
	return together(ctx, n.StartKubelet, n.startProxy)
}

// makeCgroups makes the node's control groups. The watchdog knows of them, and of loop devices, before there are any.
func (n *KubeletNode) makeCgroups() (err error) {
	name := filepath.Base(n.fabric.rig.dir) + "-" + strconv.Itoa(n.number)
	if n.cgroups, err = newCgroupTree(cgroupRoot, name); err != nil {
		return err
	}
	if err := n.fabric.rig.watchdog.AddCgroup(name); err != nil {
		return err
	}
	if err := n.fabric.rig.watchdog.AddCleanup("/bin/sh", n.file("kubelet_loops.sh"), n.file("loops")); err != nil {
		return err
	}
	if err := n.cgroups.make(); err != nil {
		return fmt.Errorf("control groups: %w", err)
	}
	return nil
}

// podRange is where the addresses of the node's Pods are from.
func (n *machine) podRange() string { return fmt.Sprintf("%s%d.0/24", podPrefix, n.number+1) }

// file is the path of a file of the node, which is the same on the node.
func (n *machine) file(name string) string { return filepath.Join(n.dir, name) }

// HostPath is where the machine sees the file that has the absolute path p on the node, as long as the node runs.
func (n *KubeletNode) HostPath(p string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", n.Pid()), filepath.Clean(p))
}

// Stop turns the node off for good and removes its files but for the logs. That the node has been stopped already is no error.
// The Kubernetes Node stays.
func (n *KubeletNode) Stop(ctx context.Context) error {
	n.fabric.mu.Lock()
	current := n.fabric.kubelets[n.name] == n
	n.fabric.mu.Unlock()
	if !current {
		return nil
	}
	err := errors.Join(n.PowerOff(ctx), os.RemoveAll(n.dir))
	n.leave()
	return err
}

// PowerOff kills everything that runs on the node, as when a machine loses its power, and returns when all of it is gone. Its
// files stay. That the node is off is no error.
func (n *KubeletNode) PowerOff(ctx context.Context) error {
	var errs []error
	if n.first != nil {
		errs = append(errs, n.end(ctx), n.detachLoops(ctx),
			n.fabric.ip(ctx, fmt.Sprintf("route flush exact %s\n", n.podRange())))
	}
	if n.cgroups.name != "" {
		errs = append(errs, n.cgroups.remove(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("turn off node %s: %w", n.name, err)
	}
	n.first = nil
	return nil
}

// PowerOn starts a node that was turned off, with its files and its address, and returns when its Node is Ready.
func (n *KubeletNode) PowerOn(ctx context.Context) error {
	if n.first != nil {
		return fmt.Errorf("turn on node %s: it runs", n.name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not there after %v", startTimeout))
	defer cancel()
	if err := n.start(ctx); err != nil {
		return fmt.Errorf("turn on node %s: %w", n.name, err)
	}
	return nil
}

// end kills the first process, and with it all others, and waits until they are gone.
func (n *KubeletNode) end(ctx context.Context) error {
	if err := n.first.signal(unix.SIGKILL); err != nil {
		return err
	}
	select {
	case <-n.first.done:
		n.fabric.rig.forget(n.first)
		return nil
	case <-time.After(goneTimeout):
		return fmt.Errorf("its processes are still there after %v", goneTimeout)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (n *KubeletNode) detachLoops(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "/bin/sh", n.file("kubelet_loops.sh"), n.file("loops")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("detach its loop devices: %w: %s", err, out)
	}
	return nil
}
