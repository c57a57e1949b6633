// SPDX-License-Identifier: Apache-2.0

package realcluster

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Describe returns what the API server and the containers' logs say about a VMI and its launcher Pods, for the output of a test that
// has failed.
func (c *Cluster) Describe(ctx context.Context, key types.NamespacedName) string {
	var b strings.Builder
	vmi := &v1.VirtualMachineInstance{}
	if err := c.Client.Get(ctx, key, vmi); err != nil {
		fmt.Fprintln(&b, err)
	} else {
		c.write(&b, "VMI "+key.String(), vmi.Status)
	}
	var pods corev1.PodList
	if err := c.Client.List(ctx, &pods, client.InNamespace(key.Namespace), client.HasLabels{v1.AppLabel}); err != nil {
		fmt.Fprintln(&b, err)
	}
	for i := range pods.Items {
		c.tell(ctx, &b, &pods.Items[i])
	}
	var events corev1.EventList
	if err := c.Client.List(ctx, &events, client.InNamespace(key.Namespace)); err != nil {
		fmt.Fprintln(&b, err)
	}
	for i := range events.Items {
		e := &events.Items[i]
		if e.Type != corev1.EventTypeNormal {
			fmt.Fprintf(&b, "event %s/%s %s: %s\n", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
	return b.String()
}

func (c *Cluster) tell(ctx context.Context, b *strings.Builder, pod *corev1.Pod) {
	c.write(b, "Pod "+pod.Namespace+"/"+pod.Name+" on "+pod.Spec.NodeName, pod.Status)
	for _, s := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if s.State.Waiting != nil {
			continue
		}
		raw, err := c.Clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: s.Name, TailLines: ptr.To(int64(2 * lastLines))}).DoRaw(ctx)
		fmt.Fprintf(b, "log of %s/%s (%v):\n%s\n", pod.Name, s.Name, err, raw)
	}
}

func (c *Cluster) write(b *strings.Builder, what string, status any) {
	raw, err := yaml.Marshal(status)
	fmt.Fprintf(b, "%s (%v):\n%s\n", what, err, raw)
}
