// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/plan"
)

// guestOfPod returns the VMI that a Pod was made for. A Pod without a controlling VMI is
// [domain.ErrInvalid], whatever sockets are in it; one that the API server does not have, or not
// yet, is [domain.ErrNotReady].
func (c *Connector) guestOfPod(ctx context.Context, uid types.UID) (Guest, error) {
	pod, err := c.Find(ctx, uid)
	switch {
	case err != nil:
		return Guest{}, fmt.Errorf("find the VMI of the pod: %w", err)
	case pod == nil:
		return Guest{}, fmt.Errorf("pod not found on node %s: %w", c.NodeName, domain.ErrNotReady)
	}
	key, of, launches := plan.VMIOf(pod)
	if !launches {
		return Guest{}, fmt.Errorf("pod %s/%s is not controlled by a VirtualMachineInstance, its sockets are ignored: %w",
			pod.Namespace, pod.Name, domain.ErrInvalid)
	}
	return Guest{Namespace: key.Namespace, Name: key.Name, UID: of}, nil
}

// refuse logs, once, that a Pod's socket is refused.
func (c *Connector) refuse(uid types.UID, why error) {
	c.mu.Lock()
	known := c.bad[uid]
	if c.bad == nil {
		c.bad = map[types.UID]bool{}
	}
	c.bad[uid] = true
	c.mu.Unlock()
	if !known {
		c.logger().Info("Ignoring the launcher socket of a Pod", "pod", uid, "cause", why.Error())
	}
}
