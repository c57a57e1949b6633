// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// LoadImages gives the node images of archives, as docker and podman save them or OCI layouts in a tar file. An archive may be
// anywhere on the machine.
func (n *KubeletNode) LoadImages(ctx context.Context, archives ...string) error {
	for _, path := range archives {
		if err := n.loadImage(ctx, path); err != nil {
			return fmt.Errorf("node %s: load %s: %w", n.name, path, err)
		}
	}
	if err := n.nameByDigest(ctx); err != nil {
		return fmt.Errorf("node %s: %w", n.name, err)
	}
	return nil
}

// nameByDigest gives each image the name by its digest too, as one that was pulled has it: the status of its containers has that
// name, by which the target of a migration asks for the same image.
func (n *KubeletNode) nameByDigest(ctx context.Context) error {
	ctr := func(args ...string) *exec.Cmd {
		return n.Command(ctx, "ctr", append([]string{"--address", containerdSocket, "--namespace", "k8s.io", "images"}, args...)...)
	}
	out, err := ctr("ls").Output()
	if err != nil {
		return fmt.Errorf("list the images: %w", err)
	}
	for _, line := range strings.Split(string(out), "\n") {
		fields := strings.Fields(line) // name, type, digest
		// Names that begin so are those that Kubernetes gave them.
		if len(fields) < 3 || strings.Contains(fields[0], "@") || strings.HasPrefix(fields[0], "sha256:") || !strings.HasPrefix(fields[2], "sha256:") {
			continue
		}
		name := fields[0]
		if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
			name = name[:colon]
		}
		if out, err := ctr("tag", "--force", fields[0], name+"@"+fields[2]).CombinedOutput(); err != nil {
			return fmt.Errorf("name %s by its digest: %w: %s", fields[0], err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

func (n *KubeletNode) loadImage(ctx context.Context, path string) error {
	archive, err := os.Open(path)
	if err != nil {
		return err
	}
	defer archive.Close()
	snapshotter, err := os.ReadFile(n.file("etc/snapshotter"))
	if err != nil {
		return err
	}
	cmd := n.Command(ctx, "ctr", "--address", containerdSocket, "--namespace", "k8s.io",
		"images", "import", "--snapshotter", strings.TrimSpace(string(snapshotter)), "-")
	cmd.Stdin = archive
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// StartContainerd starts containerd, if it does not run, and waits until it answers.
func (n *KubeletNode) StartContainerd(ctx context.Context) error {
	p, err := n.run("containerd", "containerd", "--config", n.file("etc/containerd.toml"))
	if err != nil {
		return err
	}
	return p.waitReady(ctx, func(ctx context.Context) error {
		return n.Command(ctx, "ctr", "--address", containerdSocket, "version").Run()
	})
}

// StartKubelet starts the kubelet, if it does not run, and waits until the Node is Ready with the node's address.
func (n *KubeletNode) StartKubelet(ctx context.Context) error {
	p, err := n.run("kubelet", filepath.Join(n.fabric.rig.bin, "kubelet"), "--config="+n.file("etc/kubelet.yaml"),
		"--kubeconfig="+n.file("etc/kubelet.kubeconfig"), "--hostname-override="+n.name, "--node-ip="+n.address, "--v=2")
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(n.fabric.rig.Config(UserAdmin))
	if err != nil {
		return err
	}
	var state string
	err = wait.PollUntilContextCancel(ctx, 2*probeInterval, true, func(ctx context.Context) (ready bool, err error) {
		if !p.running() {
			return false, p.ended()
		}
		ready, state = n.isReady(ctx, client, p.started)
		return ready, nil
	})
	if err != nil {
		return fmt.Errorf("kubelet: %s: %w%s", state, err, p.tail())
	}
	return nil
}

// isReady reports whether the Node takes Pods, as the kubelet has said that was started then; if not, why.
func (n *KubeletNode) isReady(ctx context.Context, client kubernetes.Interface, started time.Time) (ready bool, state string) {
	node, err := client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	if err != nil {
		return false, err.Error()
	}
	if !n.reported(node, started) {
		return false, "the kubelet has not reported yet"
	}
	return takesPods(node)
}

// reported reports whether the kubelet that was started then wrote the status of a Node. Times in it are in seconds.
func (n *KubeletNode) reported(node *corev1.Node, started time.Time) bool {
	if !slices.Contains(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: n.address}) {
		return false
	}
	return !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.LastHeartbeatTime.Time.Before(started.Truncate(time.Second))
	})
}

func (n *KubeletNode) startProxy(context.Context) error {
	_, err := n.run("kube-proxy", filepath.Join(n.fabric.rig.bin, "kube-proxy"), "--config="+n.file("etc/proxy.yaml"))
	return err
}

// run starts a program of the node unless it runs.
func (n *KubeletNode) run(name string, program string, args ...string) (*process, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.programs[name]; p != nil && p.running() {
		return p, nil
	}
	p, err := n.Run("node-"+n.name+"-"+name,
		exec.Command("/bin/sh", append([]string{n.file("kubelet_program.sh"), program}, args...)...))
	if err != nil {
		return nil, err
	}
	n.programs[name] = p.p
	return p.p, nil
}

// KillContainerd kills containerd as a crash would, and waits until it is gone. Pods live on.
func (n *KubeletNode) KillContainerd() error { return n.killProgram("containerd") }

// KillKubelet kills the kubelet as a crash would, and waits until it is gone. Pods live on.
func (n *KubeletNode) KillKubelet() error { return n.killProgram("kubelet") }

func (n *KubeletNode) killProgram(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.programs[name]
	if p == nil || !p.running() {
		return fmt.Errorf("node %s: kill %s: it does not run", n.name, name)
	}
	if err := p.stop(0); err != nil {
		return err
	}
	n.fabric.rig.forget(p)
	return nil
}
