// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
)

// whose is the guest that the controller made a Pod for. A Pod that it made for none is
// [domain.ErrInvalid], whatever sockets are in it; one that the API server does not have,
// or not yet, is [domain.ErrNotReady].
func (c *Connector) whose(ctx context.Context, uid types.UID) (Guest, error) {
	pod, err := c.Find(ctx, uid)
	switch {
	case err != nil:
		return Guest{}, fmt.Errorf("whose pod it is: %w", err)
	case pod == nil:
		return Guest{}, fmt.Errorf("the API server has no such pod on node %s: %w", c.NodeName, domain.ErrNotReady)
	}
	key, of, launches := domain.GuestOf(pod)
	if !launches {
		return Guest{}, fmt.Errorf("pod %s/%s is controlled by no VirtualMachineInstance, so that its sockets are no launcher's: %w",
			pod.Namespace, pod.Name, domain.ErrInvalid)
	}
	return Guest{Namespace: key.Namespace, Name: key.Name, UID: of}, nil
}

// refuse logs, once, that a Pod has what it should not.
func (c *Connector) refuse(uid types.UID, why error) {
	c.mu.Lock()
	known := c.bad[uid]
	if c.bad == nil {
		c.bad = map[types.UID]bool{}
	}
	c.bad[uid] = true
	c.mu.Unlock()
	if !known {
		c.logger().Info("A Pod is not believed to have a launcher", "pod", uid, "cause", why.Error())
	}
}
