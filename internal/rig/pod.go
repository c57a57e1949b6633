// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	_ "embed"
)

// podScript is what the first process of a Pod runs.
//
//go:embed pod.sh
var podScript string

// podFolders are the folders of a Pod within its dir. The log is elsewhere.
var podFolders = []string{"etc", "lib/qemu", "cache/qemu/capabilities", "run", "kubevirt/sockets"}

// Pod is a program in the place of a Pod's containers: it runs on a node, in mount and PID namespaces of
// its own, with /etc/libvirt, /var/lib/libvirt, /var/cache/libvirt, /var/log/libvirt, /run/libvirt and
// /run/kubevirt of its own, made for a libvirt daemon that listens at local sockets only. No such daemon
// runs until the program starts one. What runs in it dies with the program.
type Pod struct {
	*Program
	node *HypervisorNode
	uid  string
}

// PodShared is the folder of a Pod that is KubeVirt's in a launcher.
const PodShared = "/run/kubevirt"

// RunPod starts cmd as the Pod with that UID. name is for its log, shared a folder of the node that the
// Pod has at PodShared/sockets.
func (n *HypervisorNode) RunPod(name, uid, shared string, cmd *exec.Cmd) (*Pod, error) {
	if !podUID(uid) {
		return nil, fmt.Errorf("node %s: %q is no UID of a Pod", n.name, uid)
	}
	dir := filepath.Join(n.dir, "pods", uid)
	if err := n.writePod(dir, name, uid); err != nil {
		return nil, fmt.Errorf("node %s: pod %s: %w", n.name, name, err)
	}
	// A thread that has moved to the PID namespace of the node cannot make another one, so unshare does;
	// it lets SIGTERM pass it by, and takes the Pod with it when it is killed.
	script := exec.Command("unshare", append([]string{"--mount", "--pid", "--fork", "--kill-child", "--",
		"/bin/sh", filepath.Join(dir, "pod.sh"), dir, shared, cmd.Path}, cmd.Args[1:]...)...)
	script.Env, script.Dir = cmd.Env, cmd.Dir
	p, err := n.Run(name, script)
	if err != nil {
		return nil, err
	}
	return &Pod{Program: p, node: n, uid: uid}, nil
}

// podUID matches texts that can be part of a path and of libvirt's configuration.
func podUID(uid string) bool {
	for _, r := range uid {
		if (r < '0' || r > '9') && (r < 'a' || r > 'f') && r != '-' {
			return false
		}
	}
	return len(uid) == len("00000000-0000-0000-0000-000000000000")
}

// writePod makes what the Pod finds when it starts.
func (n *HypervisorNode) writePod(dir, name, uid string) error {
	for _, folder := range podFolders {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			return err
		}
	}
	log := filepath.Join(n.logDir(), name)
	if err := os.MkdirAll(log, 0o755); err != nil {
		return err
	}
	if err := os.Symlink(log, filepath.Join(dir, "log")); err != nil {
		return err
	}
	for path, content := range map[string]string{
		"pod.sh":            podScript,
		"etc/libvirtd.conf": libvirtdConf("listen_tcp = 0\n", uid),
		"etc/qemu.conf":     qemuConf(n.address),
	} {
		if err := os.WriteFile(filepath.Join(dir, path), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return seedCapabilities(dir)
}

// URI connects to a libvirt daemon in the Pod, which listens at that path there, from anywhere on the
// machine.
func (p *Pod) URI(socket string) string {
	return fmt.Sprintf("qemu+unix:///system?socket=/proc/%d/root%s", p.Pid(), socket)
}

// Remove removes the files of a Pod that has ended, but for its log.
func (p *Pod) Remove() error {
	<-p.Done()
	if err := os.RemoveAll(filepath.Join(p.node.dir, "pods", p.uid)); err != nil {
		return fmt.Errorf("node %s: pod %s: %w", p.node.name, p.uid, err)
	}
	return nil
}
