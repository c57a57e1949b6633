// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// KillContainer kills the processes of a Pod's container with SIGKILL, as the kernel does when memory is short.
func (c *Cluster) KillContainer(ctx context.Context, pod *corev1.Pod, container string) error {
	n := c.Node(pod.Spec.NodeName)
	i := slices.IndexFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == container })
	if n == nil || i < 0 {
		return fmt.Errorf("realcluster: container %s of Pod %s/%s is on no node", container, pod.Namespace, pod.Name)
	}
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[i].ContainerID, "containerd://")
	out, err := n.Command(ctx, "ctr", "-n", "k8s.io", "task", "kill", "--all", "--signal", "SIGKILL", id).CombinedOutput()
	if err != nil {
		return fmt.Errorf("realcluster: kill container %s of Pod %s/%s: %w: %s", container, pod.Namespace, pod.Name, err, out)
	}
	return nil
}
