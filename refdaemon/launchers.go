// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher"
)

// guests returns the hypervisor that runs the node's guests, and what connects single
// guests to theirs, if each has one.
func (o *nodeOptions) guests(ctx context.Context, mgr manager.Manager, node domain.Hypervisor) (domain.Hypervisor, domain.Connector, error) {
	if o.launchers == "" {
		return node, nil, nil
	}
	c := &launcher.Connector{
		Pods: o.launchers, NodeName: o.node, Fleet: &domain.Fleet{Node: node}, Log: ctrl.Log.WithName("launchers"),
	}
	// Guests that run already have to be known before anybody asks what runs here.
	if err := c.Discover(ctx); err != nil {
		ctrl.Log.Error(err, "Some launchers cannot be asked")
	}
	if err := mgr.Add(manager.RunnableFunc(c.Run)); err != nil {
		return nil, nil, fmt.Errorf("watch launchers: %w", err)
	}
	return c.Fleet, c, nil
}
