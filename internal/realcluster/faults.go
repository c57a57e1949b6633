// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/internal/rig"
)

// KillContainer kills the processes of a Pod's container with SIGKILL, as the kernel does when memory is short.
func (c *Cluster) KillContainer(ctx context.Context, pod *corev1.Pod, container string) error {
	n, id, err := c.container(pod, container)
	if err != nil {
		return err
	}
	out, err := n.Command(ctx, "ctr", "-n", "k8s.io", "task", "kill", "--all", "--signal", "SIGKILL", id).CombinedOutput()
	if err != nil {
		return fmt.Errorf("realcluster: kill container %s of Pod %s/%s: %w: %s", container, pod.Namespace, pod.Name, err, out)
	}
	return nil
}

// container finds a Pod's container on its node.
func (c *Cluster) container(pod *corev1.Pod, container string) (*rig.KubeletNode, string, error) {
	n := c.Node(pod.Spec.NodeName)
	i := slices.IndexFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == container })
	if n == nil || i < 0 {
		return nil, "", fmt.Errorf("realcluster: container %s of Pod %s/%s is on no node", container, pod.Namespace, pod.Name)
	}
	return n, strings.TrimPrefix(pod.Status.ContainerStatuses[i].ContainerID, "containerd://"), nil
}

// Node is the node of that name, nil if there is none.
func (c *Cluster) Node(name string) *rig.KubeletNode {
	for _, n := range c.Nodes {
		if n.Name() == name {
			return n
		}
	}
	return nil
}

// Processes returns what the kernel says about each process of a Pod's container (/proc/PID/status and smaps_rollup).
func (c *Cluster) Processes(ctx context.Context, pod *corev1.Pod, container string) ([]string, error) {
	n, id, err := c.container(pod, container)
	if err != nil {
		return nil, err
	}
	out, err := n.Command(ctx, "ctr", "-n", "k8s.io", "task", "ps", id).Output()
	if err != nil {
		return nil, fmt.Errorf("realcluster: processes of container %s of Pod %s/%s: %w", container, pod.Namespace, pod.Name, err)
	}
	var all []string
	for _, line := range strings.Split(string(out), "\n") {
		pid, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if _, err := strconv.Atoi(pid); err != nil {
			continue // the heading
		}
		// It may have ended meanwhile; a zombie has no memory.
		if said, _ := n.Command(ctx, "cat", "/proc/"+pid+"/status", "/proc/"+pid+"/smaps_rollup").Output(); len(said) > 0 {
			all = append(all, string(said))
		}
	}
	return all, nil
}

// Shared makes a folder that every node and the machine have at the same path.
func (c *Cluster) Shared(name string) (string, error) {
	path := filepath.Join(c.Rig.Dir(), "shared", name)
	return path, os.MkdirAll(path, 0o777)
}

// tunResource is what a launcher needs of its node's devices.
const tunResource corev1.ResourceName = "devices.kubevirt.io/tun"

// AwaitSchedulable waits until every node takes guests: the agent that runs there now says so, no taint keeps Pods away, and the
// kubelet has the devices that a launcher needs, which it forgets with each restart of its own and of the agent.
func (c *Cluster) AwaitSchedulable(ctx context.Context, within time.Duration) error {
	return refcluster.Await(ctx, within, "the nodes to take guests", func(ctx context.Context) error {
		for _, n := range c.Nodes {
			node := &corev1.Node{}
			if err := c.Client.Get(ctx, client.ObjectKey{Name: n.Name()}, node); err != nil {
				return err
			}
			if err := c.reports(ctx, node); err != nil {
				return err
			}
			tun := node.Status.Allocatable[tunResource]
			if node.Labels[v1.NodeSchedulable] != "true" || len(node.Spec.Taints) > 0 || tun.IsZero() {
				return fmt.Errorf("%s takes none: labels %v, annotations %v, taints %v, allocatable %v",
					n.Name(), node.Labels, node.Annotations, node.Spec.Taints, node.Status.Allocatable)
			}
		}
		return nil
	})
}

// reports verifies that the agent has sent a heartbeat since it was started. Times of Pods are in seconds.
func (c *Cluster) reports(ctx context.Context, node *corev1.Node) error {
	var agents corev1.PodList
	if err := c.Client.List(ctx, &agents, client.MatchingLabels{"app": "virtloom-node"}); err != nil {
		return err
	}
	beat, err := time.Parse(time.RFC3339, node.Annotations[v1.VirtHandlerHeartbeat])
	if err != nil {
		return fmt.Errorf("%s: its agent has not reported yet: %w", node.Name, err)
	}
	for i := range agents.Items {
		p := &agents.Items[i]
		if p.Spec.NodeName != node.Name || p.DeletionTimestamp != nil {
			continue
		}
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Running == nil || beat.Before(s.State.Running.StartedAt.Time) {
				return fmt.Errorf("%s: its agent is %+v, and reported at %v", node.Name, s.State, beat)
			}
		}
	}
	return nil
}
