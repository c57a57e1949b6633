// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// lastLines is how much of a container's log a description has.
const lastLines = 20

// describe returns what keeps the Pods of a namespace from being ready: their state, warnings about them, and what they said last.
// It begins with a line break, for use at the end of an error.
func (c *Cluster) describe(ctx context.Context, namespace string) string {
	pods, err := c.Clientset.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Sprintf("\n(their Pods: %v)", err)
	}
	var b strings.Builder
	for i := range pods.Items {
		c.describePod(ctx, &b, &pods.Items[i])
	}
	events, err := c.Clientset.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning})
	if err != nil {
		fmt.Fprintf(&b, "\n(events: %v)", err)
		return b.String()
	}
	for _, e := range events.Items {
		if e.InvolvedObject.Kind == "Node" {
			continue // those of nodes are in the namespace default
		}
		fmt.Fprintf(&b, "\nwarning about %s %s: %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
	return b.String()
}

func (c *Cluster) describePod(ctx context.Context, b *strings.Builder, pod *corev1.Pod) {
	statuses := slices.DeleteFunc(append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...), steady)
	if len(statuses) == 0 && slices.ContainsFunc(pod.Status.Conditions, isReady) {
		return
	}
	fmt.Fprintf(b, "\nPod %s on node %q: %s %s %s", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.Status.Reason, pod.Status.Message)
	for _, condition := range pod.Status.Conditions {
		if condition.Message != "" {
			fmt.Fprintf(b, "\n  %s is %s: %s", condition.Type, condition.Status, condition.Message)
		}
	}
	for _, s := range statuses {
		fmt.Fprintf(b, "\n  container %s, restarted %d times: %s", s.Name, s.RestartCount, stateOf(s.State))
		if last := stateOf(s.LastTerminationState); last != "" {
			fmt.Fprintf(b, ", before that %s", last)
		}
		c.describeLog(ctx, b, pod, s)
	}
}

// steady reports whether there is nothing to say about a container.
func steady(s corev1.ContainerStatus) bool { return s.Ready && s.RestartCount == 0 }

func isReady(c corev1.PodCondition) bool {
	return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
}

func stateOf(s corev1.ContainerState) string {
	switch {
	case s.Waiting != nil:
		return fmt.Sprintf("waiting: %s %s", s.Waiting.Reason, s.Waiting.Message)
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("terminated: %s, exit code %d %s", s.Terminated.Reason, s.Terminated.ExitCode, s.Terminated.Message)
	}
	return ""
}

// describeLog writes the end of a container's log: of the one that ended before, if it runs again or is about to.
func (c *Cluster) describeLog(ctx context.Context, b *strings.Builder, pod *corev1.Pod, s corev1.ContainerStatus) {
	if s.State.Waiting != nil && s.LastTerminationState.Terminated == nil {
		return // it has never been started
	}
	lines := int64(lastLines)
	log, err := c.Clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: s.Name, TailLines: &lines, Previous: s.State.Terminated == nil && s.LastTerminationState.Terminated != nil,
	}).DoRaw(ctx)
	if err != nil {
		fmt.Fprintf(b, "\n  (its log: %v)", err)
		return
	}
	for line := range strings.Lines(string(log)) {
		fmt.Fprintf(b, "\n  | %s", strings.TrimRight(line, "\n"))
	}
}
