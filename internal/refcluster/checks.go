// SPDX-License-Identifier: Apache-2.0

package refcluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// AwaitAgents waits until the agent of every node has reported it.
func (c *Cluster) AwaitAgents(ctx context.Context, within time.Duration) error {
	return c.Await(ctx, within, "the agents to report their nodes", func(ctx context.Context) error {
		for _, n := range c.Nodes {
			node := &corev1.Node{}
			if err := c.Client.Get(ctx, types.NamespacedName{Name: n.Name()}, node); err != nil {
				return err
			}
			switch {
			case node.Annotations[v1.VirtHandlerHeartbeat] == "":
				return fmt.Errorf("%s has not reported", n.Name())
			case node.Labels[v1.NodeSchedulable] != "true":
				return fmt.Errorf("%s takes no guests", n.Name())
			}
		}
		return nil
	})
}

// AwaitSingle waits until exactly one Pod and one domain of the VMI are left, both on
// the node of its status, and passes the counts to report.
func (c *Cluster) AwaitSingle(ctx context.Context, key types.NamespacedName, within time.Duration, report func(pods, domains int, err error) error) error {
	var pods, domains int
	err := c.Await(ctx, within, "exactly one Pod and one domain", func(ctx context.Context) (err error) {
		pods, domains, err = c.count(ctx, key)
		return err
	})
	return report(pods, domains, err)
}

// count counts the VMI's Pods and domains; the error describes deviations.
func (c *Cluster) count(ctx context.Context, key types.NamespacedName) (pods, domains int, err error) {
	vmi, err := c.VMI(ctx, key)
	if err != nil {
		return 0, 0, err
	}
	list, err := c.Pods(ctx, key.Namespace)
	if err != nil {
		return 0, 0, err
	}
	all, err := c.Domains(ctx)
	if err != nil {
		return 0, 0, err
	}
	var where []string
	for i := range list {
		if list[i].Labels[v1.CreatedByLabel] == string(vmi.UID) {
			pods++
			where = append(where, list[i].Spec.NodeName)
		}
	}
	for _, d := range all {
		if node, name, _ := strings.Cut(d, "/"); name == domain.Name(key.Namespace, key.Name) {
			domains++
			where = append(where, node)
		}
	}
	elsewhere := slices.ContainsFunc(where, func(node string) bool { return node != vmi.Status.NodeName })
	if pods != 1 || domains != 1 || elsewhere {
		err = fmt.Errorf("there are %d Pods and %d domains, on %q; the guest's status says %q", pods, domains, where, vmi.Status.NodeName)
	}
	return pods, domains, err
}
